//! See [`super`].

use crate::volume::{KeptState, VolumeDurability, VolumeSpec};

impl From<KeptState> for model::KeptState {
    fn from(KeptState { by, manifest }: KeptState) -> Self {
        Self { by, manifest }
    }
}

impl From<model::KeptState> for KeptState {
    fn from(model::KeptState { by, manifest }: model::KeptState) -> Self {
        Self { by, manifest }
    }
}

impl From<VolumeDurability> for model::VolumeDurability {
    fn from(from: VolumeDurability) -> Self {
        match from {
            VolumeDurability::Local => Self::Local,
            VolumeDurability::Object => Self::Object,
        }
    }
}

impl From<model::VolumeDurability> for VolumeDurability {
    fn from(from: model::VolumeDurability) -> Self {
        match from {
            model::VolumeDurability::Local => Self::Local,
            model::VolumeDurability::Object => Self::Object,
        }
    }
}

impl From<model::VolumeSpec> for VolumeSpec {
    fn from(model::VolumeSpec { name, bytes_max, inodes_max, durability, uid, gid, mode }: model::VolumeSpec) -> Self {
        Self { name, bytes_max, inodes_max, durability: durability.into(), uid, gid, mode }
    }
}
