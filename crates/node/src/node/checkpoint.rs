//! Checkpoints of running sandboxes: the source stops as long as for a fork, all else happens behind a zygote of that instant.
//!
//! ```text
//! keeper: still, upper directory copied (the only pause) -> zygote, and a description of the program
//! here:   the zygote's memory -> page image; changed layers -> archives; description -> segments; then manifest, then head
//! ```

use std::{fs, path::PathBuf, sync::Arc, time::Instant};

use api::{CheckpointEvent, CheckpointRequest, CheckpointStage};
use base::id::{SandboxId, TemplateName};
use process::ProgramState;
use store::heads::Head;
use tokio::{runtime::Handle, sync::mpsc};

use super::{
    Node,
    images::{random_suffix, remove_quietly},
    now_ms,
};
use crate::{
    durable::{Checkpoint, Counts, Durable, Storing, Writing, pack_layer, realm, write_bytes},
    error::{Context, Error, Result},
    keeper::message::BuildZygote,
    records::{SandboxRecord, TemplateRecord},
    state::FORK_LAYER,
};

/// Name of the description of the program in the directory of the capture.
const STATE: &str = "state";

/// Where a checkpoint tells how far it is.
#[derive(Debug, Clone)]
pub(crate) struct CheckpointProgress {
    began: Instant,
    listener: mpsc::UnboundedSender<CheckpointEvent>,
}

impl CheckpointProgress {
    /// For a client.
    pub(crate) fn to(listener: mpsc::UnboundedSender<CheckpointEvent>) -> Self {
        Self { began: Instant::now(), listener }
    }

    fn stage(&self, stage: CheckpointStage) {
        let elapsed_ms = self.began.elapsed().as_millis() as u64;
        // A client that hung up does not stop what is almost done.
        let _ = self.listener.send(CheckpointEvent::Stage { stage, elapsed_ms });
    }
}

/// What a capture has left for the writer.
struct Captured {
    zygote_pid: i32,
    state: PathBuf,
    /// Layers that only this node has, topmost first.
    layers: Vec<PathBuf>,
    pause_us: u64,
}

impl Node {
    /// Takes a checkpoint of a running sandbox; durable when this returns.
    pub(crate) async fn checkpoint(
        self: &Arc<Self>,
        id: &SandboxId,
        request: &CheckpointRequest,
        progress: &CheckpointProgress,
    ) -> Result<api::Checkpoint> {
        let (record, template) = {
            let state = self.state();
            let record = state.running(id)?.clone();
            let template = state.template_record(&record.template).cloned();
            let template = template.ok_or_else(|| Error::NoTemplate(record.template.clone()))?;
            (record, template)
        };
        let name = match &request.name {
            Some(name) => name.clone(),
            None => made_up(&record.template)?,
        };
        let replaces = match Checkpoint::find(&self.durable, &name).await? {
            Some(_) if !request.replace => return Err(Error::CheckpointExists(name)),
            found => found.map(|(head, _)| head),
        };
        let point = self.state().claim();
        let directory = self.config.sandbox_dir(&point);
        let taken = self.take(&record, &template, (name, replaces), &directory, progress).await;
        remove_quietly(&directory).await;
        self.state().release(&point);
        taken
    }

    async fn take(
        self: &Arc<Self>,
        record: &SandboxRecord,
        template: &TemplateRecord,
        (name, replaces): (TemplateName, Option<Head>),
        directory: &std::path::Path,
        progress: &CheckpointProgress,
    ) -> Result<api::Checkpoint> {
        if let Some(pages) = &record.pages {
            progress.stage(CheckpointStage::WaitingForMemory);
            self.wait_filled(pages).await?;
        }
        progress.stage(CheckpointStage::Capturing);
        fs::create_dir_all(directory).at("create", directory)?;
        let (base, zygote) = {
            let mut state = self.state();
            (state.parked_zygote(&record.template), state.number())
        };
        let layer = directory.join(FORK_LAYER);
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
            huge_pages: false,
        };
        self.state().hold(&record.layers);
        let built = self.request_zygote(job, format!("sandbox {}", record.id), None).await;
        let written = match built {
            Ok((built, timings)) => {
                let captured = Captured {
                    zygote_pid: built.engine.pid,
                    state: directory.join(STATE),
                    layers: std::iter::once(layer).chain(self.own_layers(&record.layers)).collect(),
                    pause_us: timings.pause_us,
                };
                let spec = api::TemplateSpec { name, ..template.spec.clone() };
                let (durable, progress, runtime) = (self.durable.clone(), progress.clone(), Handle::current());
                let write = move || write(&durable, &runtime, &captured, spec, replaces.as_ref(), &progress);
                tokio::task::spawn_blocking(write).await.doing("write the checkpoint").flatten()
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
                Ok(checkpoint) => readable.push(to_api(&checkpoint, &head.manifest.to_string())),
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
        Ok(to_api(&checkpoint, &head.manifest.to_string()))
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
    replaces: Option<&Head>,
    progress: &CheckpointProgress,
) -> Result<api::Checkpoint> {
    let encoded = fs::read(&captured.state).at("read", &captured.state)?;
    let state = ProgramState::decode(&encoded).storing("read the description of the program")?;
    let mut writing = Writing::begin(durable, runtime, &format!("checkpoint {}", spec.name))?;
    progress.stage(CheckpointStage::StoringMemory);
    let (dump, root) = write_memory(&mut writing, captured.zygote_pid, &state)?;
    let state = write_bytes(&mut writing, &encoded)?;
    progress.stage(CheckpointStage::StoringFiles);
    let layers: Result<Vec<_>> = captured.layers.iter().map(|layer| pack_layer(&mut writing, layer)).collect();
    let layers = layers?;
    progress.stage(CheckpointStage::Committing);
    let counts = Counts {
        pause_us: captured.pause_us,
        pages: dump.zero_pages + dump.data_pages + dump.duplicate_pages + dump.parent_pages,
        zero_pages: dump.zero_pages,
        duplicate_pages: dump.duplicate_pages,
        memory_bytes: dump.chunk_bytes,
        layer_bytes: layers.iter().map(|layer| layer.bytes).sum(),
    };
    let checkpoint = Checkpoint { spec, created_ms: now_ms(), state, memory: root, layers, counts, hot: None };
    let (manifest, _) = checkpoint.commit(writing, replaces)?;
    Ok(to_api(&checkpoint, &manifest.to_string()))
}

/// The memory of a parked zygote, which stands still.
fn write_memory(
    writing: &mut Writing,
    zygote: i32,
    state: &ProgramState,
) -> Result<(memory::Totals, crate::durable::BlobRef)> {
    let ranges: Vec<_> = state.memory_ranges();
    let pages = memory::ProcessPages::open(zygote).storing("open the program's memory")?;
    let ranges = ranges.into_iter().map(|(start, end)| sys::remote::Range { start, end });
    let scan = memory::scan::Scan::new(zygote, ranges).storing("look at the program's memory")?;
    let options = memory::Options { packing: memory::codec::Packing::SMALL, threads: threads() };
    let dump = memory::dump(&pages, scan, writing, options).storing("store the program's memory")?;
    let root = write_bytes(writing, &dump.root)?;
    Ok((dump.totals, root))
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub(super) fn to_api(checkpoint: &Checkpoint, manifest: &str) -> api::Checkpoint {
    const PAGE: u64 = memory::PAGE_BYTES as u64;
    let Counts { pause_us, pages, zero_pages, duplicate_pages, memory_bytes, layer_bytes } = checkpoint.counts;
    api::Checkpoint {
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
    }
}
