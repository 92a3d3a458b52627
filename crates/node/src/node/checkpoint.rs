//! Checkpoints of running sandboxes: the source stops as long as for a fork, all else happens behind a zygote of that instant.
//!
//! ```text
//! keeper: still, upper directory copied, volumes cut (the only pause) -> zygote, and a description of the program
//! here:   the zygote's memory -> page image; changed layers -> archives; description -> segments; then manifest, then head
//! ```

mod base;
mod volumes;

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use ::base::id::{SandboxId, TemplateName};
use api::{CheckpointProgress, CheckpointRequest, CheckpointStage, MemoryProgress};
use memory::{Known, PageRun, PageSource, ProcessPages, scan::Scan};
use process::ProgramState;
use store::id::ManifestId;
use sys::remote::Range;
use tokio::{runtime::Handle, sync::mpsc};

use self::base::Base;
use super::{
    Node,
    cut::{self, Cut},
    images::{random_suffix, remove_quietly},
    now_ms,
};
use crate::{
    durable::{BlobRef, Checkpoint, Counts, Durable, Storing, Writing, pack_layer, page_reader, realm, write_bytes},
    error::{Context, Error, Result},
    keeper::message::BuildZygote,
    records::SandboxRecord,
    state::{FORK_LAYER, RestoredZygote},
};

/// How much more of the memory has to be read until a client hears of it again.
const TOLD_BYTES: u64 = 32 << 20;

/// Threads that pack memory: what a dump takes of it grows with each, and the sandboxes want processors, too.
const THREADS_MAX: usize = 4;

/// Name of the description of the program in the directory of the capture.
const STATE: &str = "state";

/// Where a checkpoint, or a pause, tells how far it is.
#[derive(Clone)]
pub(crate) struct KeepProgress {
    began: Instant,
    listener: Arc<dyn Fn(CheckpointProgress) + Send + Sync>,
}

impl KeepProgress {
    /// For a client.
    pub(crate) fn to<E: Send + 'static>(
        listener: mpsc::UnboundedSender<E>,
        event: fn(CheckpointProgress) -> E,
    ) -> Self {
        let listener = Arc::new(move |progress| {
            // A client that hung up does not stop what is almost done.
            let _ = listener.send(event(progress));
        });
        Self { began: Instant::now(), listener }
    }

    pub(super) fn stage(&self, stage: CheckpointStage) {
        self.tell(stage, None);
    }

    fn tell(&self, stage: CheckpointStage, memory: Option<MemoryProgress>) {
        (self.listener)(CheckpointProgress { stage, elapsed_ms: self.began.elapsed().as_millis() as u64, memory });
    }
}

/// What is to be kept, and how.
pub(super) struct Keep<'a> {
    pub(super) record: &'a SandboxRecord,
    /// Of its template, under the name that the checkpoint gets.
    pub(super) spec: api::TemplateSpec,
    /// Whether the sandbox is frozen from the captured instant on.
    pub(super) hold: bool,
    /// Gives it its name.
    pub(super) commit: Commit,
}

/// Commits what was written, with what it was taken against. Blocks.
pub(super) type Commit = Box<dyn FnOnce(&Checkpoint, Writing, Option<ManifestId>) -> Result<ManifestId> + Send>;

/// What a capture has left for the writer.
struct Captured {
    zygote_pid: i32,
    /// If the template was itself restored.
    restored: Option<RestoredZygote>,
    state: PathBuf,
    /// Layers that only this node has, topmost first.
    layers: Vec<PathBuf>,
    pause_us: u64,
    cut: Cut,
}

impl Node {
    /// Takes a checkpoint of a running sandbox; durable when this returns.
    pub(crate) async fn checkpoint(
        self: &Arc<Self>,
        id: &SandboxId,
        request: &CheckpointRequest,
        progress: &KeepProgress,
    ) -> Result<api::Checkpoint> {
        let record = self.state().running(id)?.clone();
        let spec = self.state().spec_of(&record)?;
        let name = match &request.name {
            Some(name) => name.clone(),
            None => made_up(&record.template)?,
        };
        let replaces = match Checkpoint::find(&self.durable, &name).await? {
            Some(_) if !request.replace => return Err(Error::CheckpointExists(name)),
            found => found.is_some(),
        };
        let (durable, runtime, head_name) = (self.durable.clone(), Handle::current(), crate::durable::name_of(&name)?);
        let commit: Commit = Box::new(move |checkpoint, writing, parent| {
            let replaces = match replaces {
                // As it is by now: its working set may have been recorded meanwhile.
                true => {
                    Some(runtime.block_on(durable.heads.get(&realm(), &head_name)).storing("look for the checkpoint")?)
                }
                false => None,
            };
            checkpoint.commit(writing, replaces.as_ref(), parent).map(|(manifest, _)| manifest)
        });
        let spec = api::TemplateSpec { name, ..spec };
        self.keep(Keep { record: &record, spec, hold: false, commit }, progress).await
    }

    /// Captures a sandbox and writes it into the store.
    pub(super) async fn keep(self: &Arc<Self>, keep: Keep<'_>, progress: &KeepProgress) -> Result<api::Checkpoint> {
        let point = self.state().claim();
        let directory = self.config.sandbox_dir(&point);
        let taken = self.take(keep, &directory, progress).await;
        remove_quietly(&directory).await;
        self.state().release(&point);
        taken
    }

    async fn take(
        self: &Arc<Self>,
        Keep { record, spec, hold, commit }: Keep<'_>,
        directory: &std::path::Path,
        progress: &KeepProgress,
    ) -> Result<api::Checkpoint> {
        if let Some(pages) = &record.pages {
            progress.stage(CheckpointStage::WaitingForMemory);
            self.wait_filled(pages).await?;
        }
        progress.stage(CheckpointStage::Capturing);
        // So that little is left to be written while it stands still.
        let trees = self.commit_written(&record.id, &record.volumes).await?;
        fs::create_dir_all(directory).at("create", directory)?;
        let (base, restored, zygote) = {
            let mut state = self.state();
            let base = state.parked_zygote(&record.template);
            let restored = state.restored_zygote(&record.template);
            (base, restored, state.number())
        };
        let layer = directory.join(FORK_LAYER);
        // What is resumed has all the volumes that it had.
        let kept: Vec<&String> =
            record.volumes.iter().filter(|mount| hold || mount.is_writable()).map(|mount| &mount.path).collect();
        let job = BuildZygote {
            zygote,
            id: record.id.clone(),
            main: record.main,
            streams: self.streams(&self.open_output(&record.id)?)?,
            earlier_arena: record.arena,
            base,
            layers: record.layers.clone(),
            layer_dest: layer.clone(),
            state_dest: Some(directory.join(STATE)),
            // What other copies may have other volumes in the place of.
            mount_points: if hold {
                Vec::new()
            } else {
                spec.mount_points.iter().filter(|path| !kept.contains(path)).map(PathBuf::from).collect()
            },
            volumes: kept.iter().map(PathBuf::from).collect(),
            huge_pages: false,
            hold: hold || cut::written(&record.volumes).next().is_some(),
        };
        self.state().hold(&record.layers);
        let built = if hold {
            drop(trees);
            self.capture_to_pause(job, record).await
        } else {
            self.capture_and_cut(job, (record, trees)).await
        };
        let written = match built {
            Ok((built, timings, cut)) => {
                let captured = Captured {
                    zygote_pid: built.engine.pid,
                    restored,
                    state: directory.join(STATE),
                    layers: std::iter::once(layer).chain(self.own_layers(&record.layers)).collect(),
                    pause_us: timings.pause_us,
                    cut: cut.clone(),
                };
                let (durable, progress, runtime) = (self.durable.clone(), progress.clone(), Handle::current());
                let write = move || write(&durable, &runtime, &captured, spec, commit, &progress);
                let written = tokio::task::spawn_blocking(write).await.doing("write the checkpoint").flatten();
                self.forget_cut(&cut).await;
                written
            }
            Err(error) => Err(error),
        };
        self.drop_zygote(zygote).await;
        let unused = self.state().unhold(&record.layers);
        self.remove_layers(unused).await;
        written
    }

    /// Layers that this node has made; the others are an image's, which every node has of its own.
    fn own_layers(&self, layers: &[PathBuf]) -> Vec<PathBuf> {
        let own = [self.config.templates_dir(), self.config.sandboxes_dir()];
        layers.iter().filter(|layer| own.iter().any(|own| layer.starts_with(own))).cloned().collect()
    }

    /// All checkpoints of the store.
    pub(crate) async fn checkpoints(&self) -> Result<Vec<api::Checkpoint>> {
        let found = Checkpoint::list(&self.durable).await?;
        let mut readable = Vec::new();
        for (head, checkpoint) in found {
            match checkpoint {
                Ok(checkpoint) => readable.push(to_api(&checkpoint, &head.manifest.to_string())?),
                Err(error) => {
                    tracing::warn!(name = %head.name, error = crate::chain(&error), "a checkpoint is unreadable")
                }
            }
        }
        Ok(readable)
    }

    /// One of them.
    pub(crate) async fn find_checkpoint(&self, name: &TemplateName) -> Result<api::Checkpoint> {
        let found = Checkpoint::find(&self.durable, name).await?;
        let (head, checkpoint) = found.ok_or_else(|| Error::NoCheckpoint(name.clone()))?;
        to_api(&checkpoint, &head.manifest.to_string())
    }

    /// Removes its name; what only it used is garbage then.
    pub(crate) async fn remove_checkpoint(&self, name: &TemplateName) -> Result<()> {
        let head = match self.durable.heads.get(&realm(), &crate::durable::name_of(name)?).await {
            Err(store::heads::HeadsError::NotFound { .. }) => return Err(Error::NoCheckpoint(name.clone())),
            head => head.storing("look for the checkpoint")?,
        };
        self.durable.heads.remove(&head).await.storing("remove the checkpoint")
    }
}

fn made_up(template: &TemplateName) -> Result<TemplateName> {
    let name = format!("{template}-{}", random_suffix());
    name.parse().map_err(|_| Error::Invalid {
        message: format!("{name} is too long for a name"),
        hint: Some("give the checkpoint a name with --name".to_owned()),
    })
}

/// Blocks while everything is read, compressed and stored.
fn write(
    durable: &Durable,
    runtime: &Handle,
    captured: &Captured,
    spec: api::TemplateSpec,
    commit: Commit,
    progress: &KeepProgress,
) -> Result<api::Checkpoint> {
    let encoded = fs::read(&captured.state).at("read", &captured.state)?;
    let state = ProgramState::decode(&encoded).storing("read the description of the program")?;
    let mut writing = Writing::begin(durable, runtime, &format!("checkpoint {}", spec.name))?;
    let volumes = volumes::keep_states(&writing, &captured.cut)?;
    progress.stage(CheckpointStage::StoringMemory);
    let program = Memory::of(captured.zygote_pid, &state)?;
    let (base, known) = find_base(captured, &spec, &program, (durable, runtime, &writing))?;
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
    let checkpoint = Checkpoint { spec, created_ms, state, memory, base, layers, counts, hot: None, contents, volumes };
    if parent.is_some() {
        // The zygote's pages and its image are compared once more, as far as the index goes: none may be missing.
        writing.finish_segment()?;
        page_reader(checkpoint.images(), durable, runtime)?.runs().storing("read back the index of the memory")?;
    }
    let manifest = commit(&checkpoint, writing, parent)?;
    to_api(&checkpoint, &manifest.to_string())
}

/// Writes layers, topmost first. The last of them are `known` already, and are left as they are, but for small ones, which are in the manifest itself.
fn write_layers(writing: &mut Writing, layers: &[PathBuf], known: &[BlobRef]) -> Result<Vec<BlobRef>> {
    let (new, old) = layers.split_at(layers.len().saturating_sub(known.len()));
    let mut written = new.iter().map(|layer| pack_layer(writing, layer)).collect::<Result<Vec<_>>>()?;
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
    spec: &api::TemplateSpec,
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
    let path = format!("/proc/{pid}/smaps_rollup");
    let rollup = fs::read_to_string(&path).at("read", std::path::Path::new(&path))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kib.unwrap_or(0) << 10)
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX)
}

pub(super) fn to_api(checkpoint: &Checkpoint, manifest: &str) -> Result<api::Checkpoint> {
    const PAGE: u64 = memory::PAGE_BYTES as u64;
    let Counts { pause_us, pages, zero_pages, duplicate_pages, memory_bytes, layer_bytes } = checkpoint.counts;
    Ok(api::Checkpoint {
        name: checkpoint.spec.name.clone(),
        created_ms: checkpoint.created_ms,
        manifest: manifest.to_owned(),
        command: checkpoint.spec.command.clone(),
        image: checkpoint.spec.image.clone(),
        pause_us,
        memory_bytes: pages * PAGE,
        redundant_bytes: (zero_pages + duplicate_pages) * PAGE,
        stored_memory_bytes: memory_bytes,
        layer_bytes,
        volumes: checkpoint.volumes_to_api()?,
    })
}
