//! How two sandboxes differ.

use std::path::PathBuf;

use crate::ProcessInfo;

/// How two sandboxes differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Differences {
    /// Files, in the order of their paths.
    pub files: Vec<FileDifference>,
    /// Whether more files differ than are listed.
    pub is_truncated: bool,
    /// Processes that only the first has.
    pub removed: Vec<ProcessInfo>,
    /// Processes that only the second has.
    pub added: Vec<ProcessInfo>,
}

/// What a merge of one sandbox's files into another one's does, or would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merge {
    /// What is taken: how the two differ there before.
    pub files: Vec<FileDifference>,
    /// What stands against it.
    pub conflicts: Vec<MergeConflict>,
}

/// An entry that a merge does not decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeConflict {
    /// From the root, without a slash before it.
    pub path: PathBuf,
    /// Whether it is a directory, where it is.
    pub is_directory: bool,
    /// What the sandbox that gets the changes has done to it; none: something is mounted there.
    pub ours: Option<FileChange>,
    /// What the other one has done to it.
    pub theirs: FileChange,
}

/// A file that is not the same in two sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDifference {
    /// From the root, without a slash before it.
    pub path: PathBuf,
    /// How it differs.
    pub change: FileChange,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// How a file differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileChange {
    /// Only the second sandbox has it, with all below it.
    Added,
    /// Only the first has it, with all below it.
    Removed,
    /// Both have it.
    Changed(Vec<FileAspect>),
}

/// What of a file differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
