//! What a look through a volume finds: differences, and damage.

use serde::{Deserialize, Serialize};

use crate::{Damage, volume::FileKind};

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
    /// Only its owner, permissions, times or attributes differ.
    Metadata,
}

/// One line of a diff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeChange {
    /// Below the volume's top directory, without a slash at its beginning; written as the name in [`crate::volume::FileInfo`].
    pub path: String,
    /// What became of it.
    pub change: Change,
    /// What it is, or was.
    pub kind: FileKind,
    /// Where it was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
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
