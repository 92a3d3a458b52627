//! Volumes: durable workspaces.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
pub struct NewVolume {
    /// Unique for the team.
    pub name: String,
    /// Most MiB of data. An addition of this server.
    #[serde(rename = "sizeMB", default, skip_serializing_if = "Option::is_none")]
    pub size_mb: Option<u64>,
}

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// The id.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// Its name.
    pub name: String,
    /// When it was made. An addition of this server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
}

/// One volume, and what its files are read and written with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeAndToken {
    /// The id.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// Its name.
    pub name: String,
    /// For its files.
    pub token: String,
    /// Below which its files are served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

/// A file or directory of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeEntry {
    /// The last part of the path.
    pub name: String,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: VolumeEntryType,
    /// From the volume's top directory.
    pub path: String,
    /// Bytes of a file.
    pub size: u64,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access that was set.
    pub atime: String,
    /// Last change of the content.
    pub mtime: String,
    /// When it was made.
    pub ctime: String,
    /// Where a symbolic link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// What an entry of a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // the words say it
pub enum VolumeEntryType {
    Directory,
    File,
    Symlink,
    Unknown,
}

/// `PATCH /volumecontent/{id}/path`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(default)]
pub struct VolumeAttributes {
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Permissions.
    pub mode: Option<u32>,
}

/// An answer from 400 on about the content of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct VolumeError {
    /// The status, as text.
    pub code: String,
    /// Why.
    pub message: String,
}

/// `POST /volumes/{id}/snapshots`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(default)]
pub struct NewVolumeSnapshot {
    /// Unique for the volume; none: the server chooses one.
    pub name: Option<String>,
    /// Any text.
    pub note: Option<String>,
}

/// A state of a volume that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshot {
    /// Its name.
    pub name: String,
    /// When it was taken.
    pub created_at: String,
    /// The note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// `POST /volumes/{id}/fork`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
pub struct NewVolumeFork {
    /// The name of the new volume, unique for the team.
    pub name: String,
    /// The snapshot that it begins with; none: the present state.
    pub snapshot: Option<String>,
}

/// `POST /volumes/{id}/restore`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
pub struct VolumeRestore {
    /// The snapshot that the volume becomes.
    pub snapshot: String,
}

/// A volume was restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeRestored {
    /// The snapshot of what the volume was until then.
    pub before: String,
}

/// What became of one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumePathChange {
    /// From the volume's top directory.
    pub path: String,
    /// `added`, `removed`, `renamed`, `modified`, or `metadata` if only owner, permissions or times differ.
    pub change: String,
    /// What it is, or was.
    #[serde(rename = "type")]
    pub kind: VolumeEntryType,
    /// Where it was before, if it was renamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}
