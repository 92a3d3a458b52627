//! See [`super`].

use crate::VolumeMount;

impl From<VolumeMount> for model::Mount {
    fn from(VolumeMount { volume, path, read_only, snapshot }: VolumeMount) -> Self {
        Self { volume, path, read_only, snapshot }
    }
}

impl From<model::Mount> for VolumeMount {
    fn from(model::Mount { volume, path, read_only, snapshot }: model::Mount) -> Self {
        Self { volume, path, read_only, snapshot }
    }
}
