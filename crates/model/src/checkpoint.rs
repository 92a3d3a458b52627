//! Checkpoints: programs with their memory and files, kept where every node can start them.

use std::fmt;

use base::id::{TemplateName, VolumeName};

use crate::Image;

/// What of a sandbox is captured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Keep {
    /// Its program with its memory, and its files.
    #[default]
    Memory,
    /// Its files. What goes on from them has no program.
    Files,
}

/// Body of a request to take one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// Its name; none: one is made.
    pub name: Option<TemplateName>,
    /// Take the place of a checkpoint of that name.
    pub replace: bool,
    /// What of the sandbox.
    pub keep: Keep,
}

/// One checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its name.
    pub name: TemplateName,
    /// When it was taken, in milliseconds since 1970.
    pub created_ms: u64,
    /// The immutable state that the name stands for.
    pub manifest: String,
    /// What of the sandbox it has.
    pub keep: Keep,
    /// The command of the template at its root; empty if no program starts from it.
    pub command: Vec<String>,
    /// Its root filesystem below its own changes.
    pub image: Image,
    /// How long the source stood still, in microseconds.
    pub pause_us: u64,
    /// Memory of the program, in bytes.
    pub memory_bytes: u64,
    /// Of that, zeros and pages that are equal to others.
    pub redundant_bytes: u64,
    /// What its memory takes in the store before sealing, in bytes.
    pub stored_memory_bytes: u64,
    /// What its file changes take, in bytes.
    pub layer_bytes: u64,
    /// The volumes that it could write, as they were in the same instant. Each sandbox that is started from it gets forks of them.
    pub volumes: Vec<CheckpointVolume>,
    /// The node that answers has something else of its name, which `create` starts there: a template that was built, or one that was restored of a
    /// checkpoint that has been replaced since.
    pub hidden: bool,
}

/// A volume of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointVolume {
    /// The volume's name then.
    pub volume: VolumeName,
    /// The directory that it was mounted on.
    pub path: String,
    /// What was in it.
    pub state: KeptState,
}

/// What taking a checkpoint is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointStage {
    /// The sandbox was itself started from a checkpoint, and part of its memory has not arrived yet.
    WaitingForMemory,
    /// The program is stopped for a moment, and goes on.
    Capturing,
    /// Its memory is compressed and stored.
    StoringMemory,
    /// Its file changes are.
    StoringFiles,
    /// It gets its name.
    Committing,
    /// Of a pause: processes and memory are given back.
    Freeing,
}

impl fmt::Display for CheckpointStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WaitingForMemory => "waiting for the rest of its own memory",
            Self::Capturing => "capturing the program",
            Self::StoringMemory => "storing its memory",
            Self::StoringFiles => "storing its files",
            Self::Committing => "committing",
            Self::Freeing => "ending its processes",
        })
    }
}

/// How far a checkpoint or a pause is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointProgress {
    /// What is being done.
    pub stage: CheckpointStage,
    /// Milliseconds since the request.
    pub elapsed_ms: u64,
    /// Of the memory that is to be stored: bytes that were read, and about how many there are. Pages that an earlier checkpoint has need not be read.
    pub memory: Option<MemoryProgress>,
}

/// See [`CheckpointProgress::memory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the words say it
pub struct MemoryProgress {
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// A state of a volume that has no name of its own: a checkpoint has it, and keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptState {
    /// The checkpoint's name among those of the store.
    pub by: String,
    /// The manifest of the state.
    pub manifest: String,
}
