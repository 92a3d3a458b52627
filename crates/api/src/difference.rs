//! How two sandboxes differ.

use base::id::SandboxId;
use serde::{Deserialize, Serialize};

use crate::ProcessInfo;

/// How two sandboxes differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Differences {
    /// Files, in the order of their paths.
    pub files: Vec<FileDifference>,
    /// Whether more files differ than are listed.
    pub truncated: bool,
    /// Processes that only the first has.
    pub removed_processes: Vec<ProcessInfo>,
    /// Processes that only the second has.
    pub added_processes: Vec<ProcessInfo>,
}

/// Asks to bring what another sandbox has changed in its files into this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MergeRequest {
    /// The other sandbox. Both descend from one, or one of them from the other.
    pub from: SandboxId,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// Only what is at these absolute paths or below them; empty: everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

/// What a merge has done, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merge {
    /// What is taken from the other sandbox, in the order of the paths: how the two differ there before.
    pub files: Vec<FileDifference>,
    /// What stands against it. Empty, unless it was only asked what would be done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<MergeConflict>,
}

/// A file or directory that both have changed in different ways, or that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeConflict {
    /// From the root on. Bytes that are no UTF-8 are replaced.
    pub path: String,
    /// Whether it is a directory.
    pub directory: bool,
    /// What this sandbox has done to it. Not there: something is mounted at, above or below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<FileChange>,
    /// What the other one has done to it.
    pub theirs: FileChange,
}

/// A file that is not the same in two sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDifference {
    /// From the root on. Bytes that are no UTF-8 are replaced.
    pub path: String,
    /// How it differs.
    pub change: FileChange,
    /// If both have it: what of it differs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aspects: Vec<FileAspect>,
    /// Whether it is a directory.
    pub directory: bool,
}

/// How a file differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileChange {
    /// Only the second sandbox has it, with all below it.
    Added,
    /// Only the first has it, with all below it.
    Removed,
    /// Both have it.
    Changed,
}

/// What of a file differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileAspect {
    /// It is of another kind: a file, a directory, a link.
    Kind,
    /// Content of a file, target of a link, number of a device.
    Content,
    /// Bits of access.
    Mode,
    /// User or group.
    Owner,
    /// Extended attributes.
    Attributes,
}
