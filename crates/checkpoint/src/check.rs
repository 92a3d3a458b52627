//! Whether a checkpoint is whole: everything in it is read, opened, decoded and unpacked. What is wrong is noted, and the rest goes on.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use base::error::chain;
use memory::{PageRun, PageTarget};
use model::Damage;
use process::ProgramState;
use store::{
    id::{ManifestId, SegmentId},
    manifest::Manifest,
    tree::Checker,
    verify::is_out_of_reach,
};
use tokio::runtime::Handle;

use super::{Checkpoint, Durable, Program};
use crate::error::{Result, Storing};

/// What a check has seen.
#[derive(Debug, Default)]
pub struct Checked {
    /// Segments that were read.
    pub segments: u64,
    /// Chunks in these, each opened.
    pub chunks: u64,
    /// Pages of memory, each decoded.
    pub pages: u64,
    /// Files, directories and the like in layers, each unpacked.
    pub files: u64,
    /// What is damaged or missing.
    pub damage: Vec<Damage>,
    /// What could not be read and may be sound.
    pub unreachable: Vec<Damage>,
}

impl Checked {
    /// Notes an error of `part`.
    fn note<T>(&mut self, part: impl Into<String>, checked: Result<T>) -> Option<T> {
        match checked {
            Ok(checked) => Some(checked),
            Err(error) => {
                let list = if is_out_of_reach(&error) { &mut self.unreachable } else { &mut self.damage };
                list.push(Damage { part: part.into(), problem: chain(&error) });
                None
            }
        }
    }
}

/// Checks all that `manifest` names. Layers are unpacked to `scratch`, which is not there yet and is gone afterwards. Blocks.
pub fn checkpoint(manifest: ManifestId, durable: &Durable, runtime: &Handle, scratch: &Path) -> Checked {
    let mut checked = Checked::default();
    let read = runtime.block_on(Manifest::read(&durable.store, manifest)).storing("read the manifest");
    let Some(read) = checked.note("manifest", read) else { return checked };
    for segment in read.segments {
        checked_segment(segment, durable, runtime, &mut checked);
    }
    let read = runtime.block_on(Checkpoint::read(durable, manifest));
    if let Some(checkpoint) = checked.note("manifest", read) {
        volumes(&checkpoint, durable, runtime, &mut checked);
        contents(&checkpoint, durable, runtime, scratch, &mut checked);
    }
    checked
}

/// Checks the states of its volumes. Blocks.
pub fn volumes(checkpoint: &Checkpoint, durable: &Durable, runtime: &Handle, checked: &mut Checked) {
    let states: BTreeSet<[u8; 16]> = checkpoint.volumes.iter().map(|included| included.state).collect();
    for state in states {
        volume(ManifestId(state), durable, runtime, checked);
    }
}

fn checked_segment(segment: SegmentId, durable: &Durable, runtime: &Handle, checked: &mut Checked) {
    checked.segments += 1;
    let chunks = runtime.block_on(async {
        let reader = durable.store.segment(segment).await.storing("open the segment")?;
        reader.verify().await.storing("read the segment")?;
        Ok(reader.chunks().len() as u64)
    });
    checked.chunks += checked.note(format!("segment {segment}"), chunks).unwrap_or(0);
}

/// Checks a state of a volume as far as the store goes: its trees and segments. Blocks.
fn volume(manifest: ManifestId, durable: &Durable, runtime: &Handle, checked: &mut Checked) {
    let read = runtime.block_on(Manifest::read(&durable.store, manifest)).storing("read the manifest");
    let Some(read) = checked.note(format!("volume {manifest}"), read) else { return };
    let mut trees = Checker::default();
    for tree in &read.trees {
        let sound = runtime.block_on(trees.check(&durable.store, tree)).storing("read the tree");
        checked.note(format!("volume {manifest}"), sound);
    }
    for segment in read.segments {
        checked_segment(segment, durable, runtime, checked);
    }
}

/// Checks what a checkpoint is made of: its state, its memory, page by page, and its layers. Blocks.
pub fn contents(checkpoint: &Checkpoint, durable: &Durable, runtime: &Handle, scratch: &Path, checked: &mut Checked) {
    if let Some(program) = &checkpoint.program {
        checked.note("state", state(program, durable, runtime));
        let pages = pages(program, durable, runtime);
        checked.pages = checked.note("memory", pages).unwrap_or(0);
    }
    for (number, layer) in checkpoint.layers.iter().enumerate() {
        let unpacked = Checkpoint::unpack_layer(layer, durable, runtime, scratch);
        let removed = match std::fs::remove_dir_all(scratch) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).storing("remove what was unpacked")
            }
            _ => Ok(()),
        };
        let files = checked.note(format!("layer {number}"), unpacked.and_then(|totals| removed.map(|()| totals)));
        checked.files += files.map_or(0, |totals| totals.entries);
    }
}

fn state(program: &Program, durable: &Durable, runtime: &Handle) -> Result<()> {
    let state = program.read_state(durable, runtime)?;
    ProgramState::decode(&state).map(drop).storing("read the description of the program")
}

/// Decodes every page, and gives their number.
fn pages(program: &Program, durable: &Durable, runtime: &Handle) -> Result<u64> {
    let reader = program.pages(durable, runtime)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (seen, runs) = (Seen::default(), reader.runs().storing("read the index of the memory")?);
    reader.restore(PageRun::ALL, threads, &seen).storing("read the memory")?;
    let (seen, indexed) = (seen.0.into_inner(), runs.iter().map(|run| run.count).sum::<u64>());
    if seen != indexed {
        return Err(format!("{seen} pages came of {indexed}")).storing("read the memory");
    }
    Ok(seen)
}

/// Counts pages.
#[derive(Default)]
struct Seen(AtomicU64);

impl PageTarget for Seen {
    fn data(&self, _first: u64, bytes: &[u8]) -> std::result::Result<(), memory::BoxError> {
        self.0.fetch_add((bytes.len() / memory::PAGE_BYTES) as u64, Relaxed);
        Ok(())
    }

    fn zero(&self, pages: PageRun) -> std::result::Result<(), memory::BoxError> {
        self.0.fetch_add(pages.count, Relaxed);
        Ok(())
    }
}
