//! See [`super`].

use crate::{Checkpoint, CheckpointProgress, CheckpointRequest, CheckpointStage, CheckpointVolume, MemoryProgress};

impl From<CheckpointRequest> for model::CheckpointOptions {
    fn from(CheckpointRequest { name, replace, memory }: CheckpointRequest) -> Self {
        Self { name, replace, keep: keep(memory) }
    }
}

/// What `memory` of a request means.
pub(super) fn keep(memory: bool) -> model::Keep {
    if memory { model::Keep::Memory } else { model::Keep::Files }
}

impl From<model::Checkpoint> for Checkpoint {
    fn from(
        model::Checkpoint {
            name,
            created_ms,
            manifest,
            keep,
            command,
            image,
            pause_us,
            memory_bytes,
            redundant_bytes,
            stored_memory_bytes,
            layer_bytes,
            volumes,
            hidden,
        }: model::Checkpoint,
    ) -> Self {
        Self {
            name,
            created_ms,
            manifest,
            memory: keep == model::Keep::Memory,
            command,
            image: image.into(),
            pause_us,
            memory_bytes,
            redundant_bytes,
            stored_memory_bytes,
            layer_bytes,
            volumes: volumes.into_iter().map(Into::into).collect(),
            hidden,
        }
    }
}

impl From<model::CheckpointVolume> for CheckpointVolume {
    fn from(model::CheckpointVolume { volume, path, state }: model::CheckpointVolume) -> Self {
        Self { volume, path, state: state.into() }
    }
}

impl From<CheckpointStage> for model::CheckpointStage {
    fn from(from: CheckpointStage) -> Self {
        match from {
            CheckpointStage::WaitingForMemory => Self::WaitingForMemory,
            CheckpointStage::Capturing => Self::Capturing,
            CheckpointStage::StoringMemory => Self::StoringMemory,
            CheckpointStage::StoringFiles => Self::StoringFiles,
            CheckpointStage::Committing => Self::Committing,
            CheckpointStage::Freeing => Self::Freeing,
        }
    }
}

impl From<model::CheckpointStage> for CheckpointStage {
    fn from(from: model::CheckpointStage) -> Self {
        match from {
            model::CheckpointStage::WaitingForMemory => Self::WaitingForMemory,
            model::CheckpointStage::Capturing => Self::Capturing,
            model::CheckpointStage::StoringMemory => Self::StoringMemory,
            model::CheckpointStage::StoringFiles => Self::StoringFiles,
            model::CheckpointStage::Committing => Self::Committing,
            model::CheckpointStage::Freeing => Self::Freeing,
        }
    }
}

impl From<model::CheckpointProgress> for CheckpointProgress {
    fn from(model::CheckpointProgress { stage, elapsed_ms, memory }: model::CheckpointProgress) -> Self {
        Self { stage: stage.into(), elapsed_ms, memory: memory.map(Into::into) }
    }
}

impl From<model::MemoryProgress> for MemoryProgress {
    fn from(model::MemoryProgress { done_bytes, total_bytes }: model::MemoryProgress) -> Self {
        Self { done_bytes, total_bytes }
    }
}
