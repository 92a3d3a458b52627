//! Volumes: durable workspaces, mounted in sandboxes, changed over HTTP, kept in the store.

use base::id::{SnapshotName, VolumeName};
use serde::{Deserialize, Serialize};

use crate::{Damage, StoreRequests};

/// What `fsync` in a volume promises.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeDurability {
    /// It is on the node's disk: it survives a crash of the node.
    #[default]
    Local,
    /// It is in the store: it survives the loss of the node.
    Object,
}

/// Body of a request to make a volume. What is missing is the default of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// Its name.
    pub name: VolumeName,
    /// Most bytes of data in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
    /// Most files, directories and all else in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes_max: Option<u64>,
    /// What `fsync` promises.
    #[serde(default)]
    pub durability: VolumeDurability,
    /// Owner of its top directory; none: the user of sandboxed programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group of its top directory; none: that of sandboxed programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Permissions of its top directory; none: 0755.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u16>,
}

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Its name.
    pub name: VolumeName,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// What `fsync` promises.
    pub durability: VolumeDurability,
    /// Bytes of data in it.
    pub bytes: u64,
    /// Most of them.
    pub bytes_max: u64,
    /// Files, directories and all else in it.
    pub inodes: u64,
    /// Most of them.
    pub inodes_max: u64,
    /// Grows each time that a node takes it over.
    pub generation: u64,
    /// How it stands on this node; none: it is not open here, and the figures are those of its last commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<OpenVolume>,
}

/// A volume that is open on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenVolume {
    /// Who has it mounted here: ids of sandboxes, and `host:` with the path of a directory of the host.
    pub holders: Vec<String>,
    /// Bytes that are not in the store yet; they are in the log on this node's disk.
    pub dirty_bytes: u64,
    /// Milliseconds since the store had all of it, as it was then.
    pub committed_ms_ago: u64,
    /// Whether the last commit reached the store.
    pub store_reachable: bool,
    /// Why nothing can be written to it any more; none: it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<String>,
}

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

/// A state of a volume that has a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSnapshot {
    /// Its name.
    pub snapshot: SnapshotName,
    /// When it was taken, in milliseconds since 1970.
    pub created_ms: u64,
    /// What its maker said about it.
    #[serde(default)]
    pub note: String,
}

/// Body of a request to take a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSnapshotRequest {
    /// Its name; none: one is made of the time.
    #[serde(default)]
    pub snapshot: Option<SnapshotName>,
    /// What to say about it in the log.
    #[serde(default)]
    pub note: String,
}

/// Body of a request to make a volume what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRestoreRequest {
    /// The state.
    pub snapshot: SnapshotName,
}

/// A volume was made what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRestored {
    /// The snapshot that keeps the state before.
    pub before: SnapshotName,
}

/// Body of a request to make a volume of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeForkRequest {
    /// Name of the new one.
    pub name: VolumeName,
    /// The state that it begins with; none: the present one.
    #[serde(default)]
    pub snapshot: Option<SnapshotName>,
}

/// What an entry of a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the words say it
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharacterDevice,
    BlockDevice,
}

/// What became of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It was not there before.
    Added,
    /// It is not there any more.
    Removed,
    /// It was there as it is now, at `from`.
    Renamed,
    /// Its content differs, or what it is.
    Modified,
    /// Only its owner, mode, times or attributes differ.
    Metadata,
}

/// One line of a diff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeChange {
    /// Below the volume's top directory, without a slash at its beginning.
    pub path: String,
    /// What became of it.
    pub change: Change,
    /// What it is, or was.
    pub kind: FileKind,
    /// Where it was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// One entry of a directory of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name. What is not UTF-8 in it is replaced.
    pub name: String,
    /// What it is.
    pub kind: FileKind,
    /// Length of a file, in bytes.
    pub bytes: u64,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// When its content changed last, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Where a symbolic link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// What verifying a volume has seen: all of it was read and opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeVerification {
    /// Files, directories and all else.
    pub inodes: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// What is damaged or missing, by path.
    pub damage: Vec<Damage>,
    /// What could not be read and may be sound, by path.
    #[serde(default)]
    pub unreachable: Vec<Damage>,
}

/// What volumes use on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeUsage {
    /// Each volume.
    pub volumes: Vec<UsageOfVolume>,
    /// What their worker has asked of the object store since it began.
    pub requests: StoreRequests,
}

/// What one volume uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageOfVolume {
    /// Its name.
    pub volume: VolumeName,
    /// Bytes of data in it.
    pub bytes: u64,
    /// Files, directories and all else in it.
    pub inodes: u64,
    /// Operations through mounts and HTTP on this node, since their worker began.
    pub operations: u64,
    /// Bytes that these have read.
    pub read_bytes: u64,
    /// Bytes that these have written.
    pub written_bytes: u64,
}
