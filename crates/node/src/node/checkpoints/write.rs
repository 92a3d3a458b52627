//! Writing what was captured: memory, the program's description and layers into segments, and then what names them.

use std::{
    fs::File,
    io::{Read, Seek},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use checkpoint::{BlobRef, Checkpoint, Counts, Durable, Program, Writing, nouns, pack_layer, page_reader, write_bytes};
use memory::{Known, PageRun, PageSource, ProcessPages, scan::Scan};
use model::{CheckpointStage, MemoryProgress};
use process::ProgramState;
use procfs::Fields;
use sys::remote::Range;
use tokio::runtime::Handle;

use super::{
    Captured, Commit, KeepProgress,
    base::{self, Base},
    to_model, volumes,
};
use crate::{
    error::{Context, Result, Storing},
    node::{files_only::Files, now_ms},
};

/// How much more of the memory has to be read until a client hears of it again.
const TOLD_BYTES: u64 = 32 << 20;

/// Threads that pack memory: what a dump takes of it grows with each, and the sandboxes want processors, too.
const THREADS_MAX: usize = 4;

/// Blocks while everything is read, compressed and stored.
pub(super) fn write(
    durable: &Durable,
    runtime: &Handle,
    mut captured: Captured,
    spec: model::TemplateSpec,
    commit: Commit,
    progress: &KeepProgress,
) -> Result<model::Checkpoint> {
    let encoded = read_description(captured.description.take())?;
    let state = ProgramState::decode(&encoded).storing("read the description of the program")?;
    let mut writing = Writing::begin(durable, runtime, &format!("checkpoint {}", spec.name))?;
    writing.leave_room(nouns::bytes_of(&spec));
    let volumes = volumes::keep_states(&writing, &captured.cut)?;
    progress.stage(CheckpointStage::StoringMemory);
    let program = Memory::of(captured.zygote_pid, &state)?;
    let (base, known) = find_base(&captured, &spec, &program, (durable, runtime, &writing))?;
    let dump = write_memory(&mut writing, &program, base.as_ref().and_then(|base| base.zygote), &known, progress)?;
    drop(known);
    let memory = write_bytes(&mut writing, &dump.root)?;
    let own_contents = write_bytes(&mut writing, &dump.contents)?;
    let state = write_bytes(&mut writing, &encoded)?;
    progress.stage(CheckpointStage::StoringFiles);
    let known = base.as_ref().map_or(&[][..], |base| &base.layers);
    let layers = write_layers(&mut writing, &captured.layers, known)?;
    let keeps_layers = known.iter().any(|layer| !layer.is_inline());
    progress.stage(CheckpointStage::Committing);
    let counts = counts(&dump.totals, captured.pause_us, &layers);
    // What nothing refers to need not be kept, and what no page is looked up in need not be opened.
    let base = base.filter(|_| dump.totals.parent_pages > 0 || keeps_layers);
    let by_frames = dump.totals.parent_pages > dump.known_pages;
    let parent = base.as_ref().map(|base| base.manifest);
    let (roots, older) = base.map_or_else(Default::default, |base| (base.roots, base.contents));
    let base = if by_frames { roots } else { Vec::new() };
    let contents = std::iter::once(own_contents).chain(older).collect();
    let created_ms = now_ms();
    let program = Some(Program { state, memory, base, hot: None, contents });
    let checkpoint = Checkpoint { spec, created_ms, program, layers, counts, volumes };
    if parent.is_some() {
        // The zygote's pages and its image are compared once more, as far as the index goes: none may be missing.
        writing.finish_segment()?;
        page_reader(checkpoint.images(), durable, runtime)?.runs().storing("read back the index of the memory")?;
    }
    let manifest = commit(&checkpoint, writing, parent)?;
    to_model(&checkpoint, &manifest.to_string())
}

/// What a capture of files has left for the writer.
pub(in crate::node) struct CapturedFiles {
    /// Of the checkpoint.
    pub(in crate::node) spec: model::TemplateSpec,
    /// Layers that only this node has, topmost first.
    pub(in crate::node) layers: Vec<PathBuf>,
    pub(in crate::node) files: Files,
}

/// As [`write()`], of files alone.
pub(in crate::node) fn write_files(
    durable: &Durable,
    runtime: &Handle,
    CapturedFiles { spec, layers, files }: CapturedFiles,
    commit: Commit,
    progress: &KeepProgress,
) -> Result<model::Checkpoint> {
    let mut writing = Writing::begin(durable, runtime, &format!("checkpoint {}", spec.name))?;
    writing.leave_room(nouns::bytes_of(&spec));
    let volumes = volumes::keep_states(&writing, &files.cut)?;
    progress.stage(CheckpointStage::StoringFiles);
    let layers = write_layers(&mut writing, &layers, &[])?;
    progress.stage(CheckpointStage::Committing);
    let counts = counts(&memory::Totals::default(), files.pause.as_micros() as u64, &layers);
    let checkpoint = Checkpoint { spec, created_ms: now_ms(), program: None, layers, counts, volumes };
    let manifest = commit(&checkpoint, writing, None)?;
    to_model(&checkpoint, &manifest.to_string())
}

/// What the keeper has written into a file without a name.
fn read_description(description: Option<OwnedFd>) -> Result<Vec<u8>> {
    let file = description.ok_or("the keeper has not sent it").storing("describe the program")?;
    let mut file = File::from(file);
    let mut encoded = Vec::new();
    let read = file.rewind().and_then(|()| file.read_to_end(&mut encoded));
    read.doing("read the description of the program").map(|_| encoded)
}

/// Writes layers, topmost first. The last of them are `known` already, and are left as they are, but for small ones, which are in the manifest itself.
fn write_layers(writing: &mut Writing, layers: &[PathBuf], known: &[BlobRef]) -> Result<Vec<BlobRef>> {
    let (new, old) = layers.split_at(layers.len().saturating_sub(known.len()));
    let mut written = new.iter().map(|layer| pack_layer(writing, layer)).collect::<checkpoint::Result<Vec<_>>>()?;
    for (layer, known) in old.iter().zip(known) {
        written.push(if known.is_inline() { pack_layer(writing, layer)? } else { known.clone() });
    }
    Ok(written)
}

fn counts(dump: &memory::Totals, pause_us: u64, layers: &[BlobRef]) -> Counts {
    Counts {
        pause_us,
        pages: dump.zero_pages + dump.data_pages + dump.duplicate_pages + dump.parent_pages,
        zero_pages: dump.zero_pages,
        duplicate_pages: dump.duplicate_pages,
        memory_bytes: dump.chunk_bytes,
        layer_bytes: layers.iter().map(|layer| layer.bytes).sum(),
    }
}

/// What is known of the pages that a dump will read, and whose they are.
fn find_base(
    captured: &Captured,
    spec: &model::TemplateSpec,
    memory: &Memory,
    (durable, runtime, writing): (&Durable, &Handle, &Writing),
) -> Result<(Option<Base>, Known)> {
    let known = |base: &Base| {
        base.known(durable, runtime).unwrap_or_else(|error| {
            // All that is lost is space.
            tracing::warn!(error = crate::chain(&error), "an earlier checkpoint is of no use to this one");
            Known::default()
        })
    };
    let restored = captured.restored.as_ref().and_then(|from| {
        base::restored(from, &captured.layers, (durable, runtime, writing)).unwrap_or_else(|error| {
            // All of it can be stored without.
            tracing::warn!(error = crate::chain(&error), "the checkpoint that it comes from is of no use to this one");
            None
        })
    });
    if let Some(base) = restored {
        let known = known(&base);
        return Ok((Some(base), known));
    }
    for base in base::alike(spec, durable, runtime, writing)? {
        let known = known(&base);
        let sample = known.sample(&memory.pages, memory.scan(None)?).storing("look at the program's memory")?;
        if base::is_worth_keeping(&known, sample) {
            return Ok((Some(base), known));
        }
    }
    Ok((None, Known::default()))
}

/// The memory of a parked zygote, which stands still.
struct Memory {
    zygote: i32,
    ranges: Vec<Range>,
    pages: ProcessPages,
}

impl Memory {
    fn of(zygote: i32, state: &ProgramState) -> Result<Self> {
        let ranges = state.memory_ranges().into_iter().map(|(start, end)| Range { start, end }).collect();
        let pages = ProcessPages::open(zygote).storing("open the program's memory")?;
        Ok(Self { zygote, ranges, pages })
    }

    /// Its pages; those whose frames are still the ones of the zygote `base` are the parent's.
    fn scan(&self, base: Option<i32>) -> Result<Scan<impl Iterator<Item = Range> + Send + use<>>> {
        let ranges = self.ranges.clone();
        let scan = match base {
            Some(base) => Scan::against(self.zygote, base, ranges),
            None => Scan::new(self.zygote, ranges),
        };
        scan.storing("look at the program's memory")
    }
}

fn write_memory(
    writing: &mut Writing,
    memory: &Memory,
    base: Option<i32>,
    known: &Known,
    progress: &KeepProgress,
) -> Result<memory::Dump> {
    let options = memory::Options { packing: memory::codec::Packing::SMALL, threads: threads() };
    let total_bytes = anonymous_bytes(memory.zygote)?;
    let pages = Told { pages: &memory.pages, done: AtomicU64::new(0), total_bytes, progress };
    memory::dump(&pages, memory.scan(base)?, writing, options, known).storing("store the program's memory")
}

/// Pages as they are read, of which a client hears.
struct Told<'a> {
    pages: &'a ProcessPages,
    done: AtomicU64,
    total_bytes: u64,
    progress: &'a KeepProgress,
}

impl PageSource for Told<'_> {
    fn read(&self, runs: &[PageRun], into: &mut [u8]) -> std::result::Result<(), memory::Error> {
        let bytes = into.len() as u64;
        self.pages.read(runs, into)?;
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        let done_bytes = before + bytes;
        if before / TOLD_BYTES < done_bytes / TOLD_BYTES {
            let memory = MemoryProgress { done_bytes, total_bytes: self.total_bytes.max(done_bytes) };
            self.progress.tell(CheckpointStage::StoringMemory, Some(memory));
        }
        Ok(())
    }
}

/// Memory of a process that is in no file: what a dump reads at most, and a little more.
fn anonymous_bytes(pid: i32) -> Result<u64> {
    let rollup = Fields::read(format!("/proc/{pid}/smaps_rollup")).doing("read the memory of the process")?;
    Ok(rollup.bytes("Anonymous").unwrap_or(0))
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX)
}
