//! Checkpoints: programs with their memory and files, kept where every node can start them.

use std::fmt;

use base::id::{TemplateName, VolumeName};
use serde::{Deserialize, Serialize};

use crate::volume::KeptState;

/// Body of a request to take one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRequest {
    /// Its name; none: one is made.
    pub name: Option<TemplateName>,
    /// Take the place of a checkpoint of that name.
    #[serde(default)]
    pub replace: bool,
    /// Keep the program and its memory, and not only files.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub memory: bool,
}

/// What a request without a field means.
pub(crate) fn yes() -> bool {
    true
}

/// Whether a field can be left out.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde calls it
pub(crate) fn is_true(yes: &bool) -> bool {
    *yes
}

/// One checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its name.
    pub name: TemplateName,
    /// When it was taken, in milliseconds since 1970.
    pub created_ms: u64,
    /// The immutable state that the name stands for.
    pub manifest: String,
    /// It has a program and its memory, and not only files.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub memory: bool,
    /// The command of the template at its root; empty if it has no program.
    pub command: Vec<String>,
    /// Its root filesystem below its own changes.
    pub image: crate::Image,
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<CheckpointVolume>,
    /// The node that answers has something else of its name, which `create` starts there: a template that was built, or one that was restored of a
    /// checkpoint that has been replaced since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
}

/// A volume of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointVolume {
    /// The volume's name then.
    pub volume: VolumeName,
    /// The directory that it was mounted on.
    pub path: String,
    /// What was in it.
    pub state: KeptState,
}

/// What taking a checkpoint is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
        model::CheckpointStage::from(*self).fmt(f)
    }
}

/// How far a checkpoint or a pause is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointProgress {
    /// What is being done.
    pub stage: CheckpointStage,
    /// Milliseconds since the request.
    pub elapsed_ms: u64,
    /// Of the memory that is to be stored: bytes that were read, and about how many there are. Pages that an earlier checkpoint has need not be read.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryProgress>,
}

/// See [`CheckpointProgress::memory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the words say it
pub struct MemoryProgress {
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// One line of the answer to a request for a checkpoint. The last one is `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointEvent {
    /// A stage begins, or is further.
    Stage(CheckpointProgress),
    /// It is durable.
    Done(Box<Checkpoint>),
    /// It was not taken.
    Failed(crate::ErrorDetail),
}
