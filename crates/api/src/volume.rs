//! Volumes: durable workspaces, and the files in them.
//!
//! | request | body -> answer |
//! |---|---|
//! | `POST /v1/volumes` | [`VolumeSpec`] -> [`Volume`] |
//! | `GET /v1/volumes`, `GET /v1/volumes/NAME` | [`Volume`] (a list of them) |
//! | `GET /v1/volumes?removed=true` | a list of [`RemovedVolume`] |
//! | `DELETE /v1/volumes/NAME` | `null`; 409 while it is held on this node |
//! | `GET /v1/volumes/usage` | a list of [`VolumeMeter`]; by realm: [`VolumeUsage`] of all its volumes |
//! | `GET /v1/metrics` | the same and more, as Prometheus' text |
//! | `POST /v1/volumes/NAME/snapshots` | [`SnapshotRequest`] -> [`Snapshot`], or [`SnapshotEnd`] |
//! | `GET /v1/volumes/NAME/snapshots` | a list of [`Snapshot`], newest first |
//! | `DELETE /v1/volumes/NAME/snapshots/SNAP` | `null` |
//! | `POST /v1/volumes/NAME/restore` | [`RestoreRequest`] -> [`Restored`] |
//! | `POST /v1/volumes/NAME/fork` | [`ForkVolumeRequest`] -> [`Volume`] |
//! | `GET /v1/volumes/NAME/files/PATH` | the bytes of a file (`Range` and `If-None-Match` are understood), or a [`FileList`] of a directory |
//! | `GET /v1/volumes/NAME/files/PATH?op=read` | as without `op`; a directory is refused |
//! | `GET /v1/volumes/NAME/files/PATH?op=stat` | [`FileInfo`]; of a symbolic link itself |
//! | `GET /v1/volumes/NAME/files/PATH?op=tree&depth=N` | lines of [`TreeEntry`]: all that is below a directory, N levels deep |
//! | `HEAD /v1/volumes/NAME/files/PATH` | the headers of `GET` |
//! | `PUT /v1/volumes/NAME/files/PATH?mode=OCTAL&uid=N&gid=N&parents=BOOL&replace=BOOL&sync=BOOL` | bytes -> [`FileInfo`]; takes the place of what is there in one step, makes missing directories; with `sync` as if followed by `fsync` |
//! | `DELETE /v1/volumes/NAME/files/PATH?recursive=BOOL` | `null` |
//! | `POST /v1/volumes/NAME/files/PATH?op=mkdir&mode=OCTAL&uid=N&gid=N&parents=BOOL&existing=BOOL` | [`FileInfo`]; makes missing directories |
//! | `POST /v1/volumes/NAME/files/PATH?op=rename&to=PATH` | [`FileInfo`] |
//! | `POST /v1/volumes/NAME/files/PATH?op=symlink&target=TEXT` | [`FileInfo`] |
//! | `POST /v1/volumes/NAME/files/PATH?op=chmod&mode=OCTAL` | [`FileInfo`] |
//! | `POST /v1/volumes/NAME/files/PATH?op=set&mode=OCTAL&uid=N&gid=N` | [`FileInfo`]; changes what is given, in one step |
//!
//! Requests that read take `snapshot=SNAP`. Lists of directories take `after=CURSOR` and `limit=N`. Paths are percent-encoded bytes, relative to
//! the volume's top; `..` ends there, and symbolic links lead nowhere else.

use base::id::{SnapshotName, VolumeName};
use serde::{Deserialize, Serialize};

/// What `fsync` in a volume promises.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeDurability {
    /// It is on the node's disk: it survives a crash of the node, not its loss.
    #[default]
    Local,
    /// It is in the object store.
    Object,
}

/// Body of a request to make a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeSpec {
    /// Its name.
    pub name: VolumeName,
    /// Most bytes of data, 4 KiB at least; none: 10 GiB.
    #[serde(default)]
    pub bytes_max: Option<u64>,
    /// Most files, directories and all else, 2 at least; none: 10 Mi.
    #[serde(default)]
    pub inodes_max: Option<u64>,
    /// What `fsync` promises.
    #[serde(default)]
    pub durability: VolumeDurability,
    /// Owner of the top directory; none: 1000, as whom programs in sandboxes run.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Its group; none: 1000.
    #[serde(default)]
    pub gid: Option<u32>,
    /// Its permissions; none: 0o755.
    #[serde(default)]
    pub mode: Option<u16>,
}

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Its name.
    pub name: VolumeName,
    /// When it was made, in milliseconds since 1970. None, here and below: the store does not answer now.
    pub created_ms: Option<u64>,
    /// When its head was last moved or taken over, in milliseconds since 1970.
    pub committed_ms: Option<u64>,
    /// Changes whenever a node takes it over.
    pub generation: Option<u64>,
    /// How full it is, as of its last commit, or of now where it is open.
    pub usage: Option<VolumeUsage>,
    /// What `fsync` promises.
    pub durability: Option<VolumeDurability>,
    /// It is open on this node.
    pub open: Option<OpenVolume>,
    /// What this node had to do with it.
    pub meter: Meter,
}

/// A volume that was removed and has snapshots: they are kept, and are those of a new volume of its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedVolume {
    /// Its name.
    pub name: VolumeName,
    /// How many snapshots there are.
    pub snapshots: usize,
}

/// How full a volume is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the words say it
pub struct VolumeUsage {
    pub bytes: u64,
    pub bytes_max: u64,
    pub inodes: u64,
    pub inodes_max: u64,
}

/// A volume that is open on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenVolume {
    /// Who has it mounted: a sandbox's id, or `host:DIRECTORY`.
    pub holders: Vec<String>,
    /// What is in memory and in the node's log, and not yet in the store: bytes of data, and 1 KiB for each inode, name or piece of a file that has changed.
    pub dirty_bytes: u64,
    /// Since everything was in the store, or since it was opened, in milliseconds.
    pub last_commit_age_ms: u64,
    /// Commits that failed since it was opened.
    pub store_failures: u64,
    /// Why the last commit failed; none: it did not. Writers wait when too much is dirty, and nothing is lost.
    pub store_failure: Option<String>,
    /// Why nothing in it can be changed.
    pub read_only: Option<String>,
    /// Another node writes it; what that commits is seen here. The age of the last commit is then how long ago all of it was seen, and failures
    /// are those of looking for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub followed: bool,
}

/// What was done with a volume on this node since its process of volumes began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meter {
    /// Operations on its files, through mounts and by HTTP. What the kernel answers from its caches is not in these numbers.
    pub operations: u64,
    /// Bytes of files that were read.
    pub read_bytes: u64,
    /// Bytes of files that were written.
    pub written_bytes: u64,
    /// Requests by HTTP.
    pub http_requests: u64,
    /// Of the bytes read, those by HTTP.
    pub http_read_bytes: u64,
    /// Of the bytes written, those by HTTP.
    pub http_written_bytes: u64,
}

/// What a volume costs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMeter {
    /// Whose it is.
    pub realm: String,
    /// None: of all volumes of the realm together.
    pub name: Option<VolumeName>,
    /// How full.
    pub usage: VolumeUsage,
    /// What was done.
    pub meter: Meter,
}

/// Body of a request for a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRequest {
    /// Its name; none: one is made.
    #[serde(default)]
    pub snapshot: Option<SnapshotName>,
    /// For people.
    #[serde(default)]
    pub note: Option<String>,
    /// The head of the answer comes as soon as it is settled what will be in the snapshot, and a [`SnapshotEnd`] when it is durable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub early: bool,
}

/// What became of a snapshot, behind an answer that began early.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotEnd {
    /// It is durable.
    Done(Snapshot),
    /// There is none. The status is what an answer that had not begun would have.
    #[allow(missing_docs)] // the words say it
    Failed { status: u16, error: crate::ErrorDetail },
}

/// A state of a volume that was kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name.
    pub snapshot: SnapshotName,
    /// When it was taken, in milliseconds since 1970.
    pub created_ms: u64,
    /// For people.
    pub note: Option<String>,
}

/// Body of a request to make a volume what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreRequest {
    /// At which snapshot.
    pub snapshot: SnapshotName,
}

/// What a restore has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// A new snapshot of the state before.
    pub before: SnapshotName,
}

/// Body of a request to make a volume with what another has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkVolumeRequest {
    /// Of the new volume.
    pub name: VolumeName,
    /// What it begins with; none, and no other state: what the volume has now.
    #[serde(default)]
    pub snapshot: Option<SnapshotName>,
    /// What it begins with, if that is a state without a name. The volume itself may be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<KeptState>,
}

/// A state of a volume that has no name of its own: a checkpoint has it, and keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptState {
    /// The checkpoint's name among those of the store.
    pub by: String,
    /// The manifest of the state.
    pub manifest: String,
}

/// What lies at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the words say it
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// What `stat` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Its name in its directory; bytes that are no UTF-8, control characters and `%` as `%XX`. `.` for the top directory.
    pub name: String,
    /// What it is.
    pub kind: FileKind,
    /// Number of the inode; never used twice in a volume.
    pub ino: u64,
    /// Bytes of a file or of a link's target; entries of a directory.
    pub size: u64,
    /// The twelve bits below the kind.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that it has.
    pub links: u32,
    /// Last change of data or entries, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Last change of anything, in nanoseconds since 1970.
    pub changed_ns: i64,
    /// Last access that was set, in nanoseconds since 1970: reading changes nothing.
    #[serde(default)]
    pub accessed_ns: i64,
    /// When it was made, in nanoseconds since 1970.
    #[serde(default)]
    pub born_ns: i64,
    /// Where a symbolic link leads, written as a name is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// Something below a directory that is listed with all that is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeEntry {
    /// Below that directory, without a slash at its beginning; written as the name in [`FileInfo`].
    pub path: String,
    /// What `stat` shows.
    #[serde(flatten)]
    pub info: FileInfo,
}

/// Part of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileList {
    /// In an order of their own, which stays the same; without `.` and `..`.
    pub entries: Vec<FileInfo>,
    /// For `after=` of the next request; none: this was the end.
    pub next: Option<u64>,
}
