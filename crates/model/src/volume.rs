//! Volumes, as far as sandboxes and checkpoints are concerned with them.

use base::id::VolumeName;

/// What `fsync` in a volume promises.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VolumeDurability {
    /// The data is on the node's disk. It survives a crash of the node, not the loss of the node.
    #[default]
    Local,
    /// The data is in the object store.
    Object,
}

/// A volume that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Its name.
    pub name: VolumeName,
    /// Most bytes of data, 4 KiB at least; none: 10 GiB.
    pub bytes_max: Option<u64>,
    /// Most files, directories and all else, 2 at least; none: 10 Mi.
    pub inodes_max: Option<u64>,
    /// What `fsync` promises.
    pub durability: VolumeDurability,
    /// Owner of the top directory; none: 1000, the user that runs programs in sandboxes.
    pub uid: Option<u32>,
    /// Its group; none: 1000.
    pub gid: Option<u32>,
    /// Its permissions; none: 0o755.
    pub mode: Option<u16>,
}
