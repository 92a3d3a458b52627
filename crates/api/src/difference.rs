//! How two sandboxes differ.

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
