//! Volumes where programs see them: in sandboxes, and on directories of the host.

use base::id::{SnapshotName, VolumeName};

/// How a volume is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Which volume.
    pub volume: VolumeName,
    /// Absolute path of the directory that it is mounted on: in the sandbox, or a directory of the host.
    pub path: String,
    /// Nothing can be written through this mount.
    pub read_only: bool,
    /// This state of it, which is read-only, instead of the present one.
    pub snapshot: Option<SnapshotName>,
}

/// Where a sandbox may have volumes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MountPoints {
    /// On the mount points of its template.
    #[default]
    Declared,
    /// On any directory that is not the sandbox's own. One that is missing is made. If the sandbox has a program, a
    /// directory that the template does not declare must be empty: the program may have opened what is in it.
    Anywhere,
}

impl Mount {
    /// Whether a program could change the volume through it.
    pub fn is_writable(&self) -> bool {
        !self.read_only && self.snapshot.is_none()
    }
}
