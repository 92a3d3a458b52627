//! Volumes where programs see them: in sandboxes, and on directories of the host.

use base::id::{SnapshotName, VolumeName};

/// How a volume is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Which volume.
    pub volume: VolumeName,
    /// Absolute path of the directory that it is mounted on: a mount point of the template, or a directory of the host.
    pub path: String,
    /// Nothing can be written through this mount.
    pub read_only: bool,
    /// This state of it, which is read-only, instead of the present one.
    pub snapshot: Option<SnapshotName>,
}

impl Mount {
    /// Whether a program could change the volume through it.
    pub fn is_writable(&self) -> bool {
        !self.read_only && self.snapshot.is_none()
    }
}
