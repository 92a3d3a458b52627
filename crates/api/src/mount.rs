//! Volumes where programs see them: in sandboxes, and on directories of the host.

use base::id::{SnapshotName, VolumeName};
use serde::{Deserialize, Serialize};

/// How a volume is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Which volume.
    pub volume: VolumeName,
    /// Absolute path of the directory that it is mounted on: a mount point of the template, or a directory of the host.
    pub path: String,
    /// Nothing can be written through this mount.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// This state of it, which is read-only, instead of the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotName>,
}

impl VolumeMount {
    /// Whether a program could change the volume through it.
    pub fn is_writable(&self) -> bool {
        !self.read_only && self.snapshot.is_none()
    }
}

/// Body of a request to mount a volume on a directory of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRequest {
    /// Absolute path of the directory.
    pub path: String,
    /// Nothing can be written through this mount.
    #[serde(default)]
    pub read_only: bool,
    /// This state of it, which is read-only, instead of the present one.
    #[serde(default)]
    pub snapshot: Option<SnapshotName>,
}

/// Body of a request to take a volume off a directory of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmountRequest {
    /// Absolute path of the directory.
    pub path: String,
}
