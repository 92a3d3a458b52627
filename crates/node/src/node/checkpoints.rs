//! Checkpoints of running sandboxes: the source stops as long as for a fork, all else happens behind a zygote of that instant.
//!
//! ```text
//! keeper: still, upper directory copied, volumes cut (the only pause) -> zygote, and a description of the program
//! here:   the zygote's memory -> page image; changed layers -> archives; description -> segments; then manifest, then head
//! ```

mod base;
mod volumes;
mod write;

use std::{os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Instant};

use ::base::id::{SandboxId, TemplateName};
use checkpoint::{Checkpoint, Counts, Writing};
use keeper::protocol::{Base, Capture, Purpose, Source};
use model::{CheckpointOptions, CheckpointProgress, CheckpointStage, MemoryProgress};
use store::id::ManifestId;
use tokio::{runtime::Handle, sync::mpsc};

use self::write::write;
pub(super) use self::write::{CapturedFiles, write_files};
use super::{
    Node,
    build::Built,
    cut::{self, Cut},
    files_only::without_program,
    images::random_suffix,
    in_use::InUse,
    layers,
    metrics::CaptureFor,
};
use crate::{
    error::{Context, Error, Result, Storing},
    records::SandboxRecord,
    state::RestoredZygote,
};

/// Where a checkpoint, or a pause, tells how far it is.
#[derive(Clone)]
pub struct KeepProgress {
    began: Instant,
    listener: Arc<dyn Fn(CheckpointProgress) + Send + Sync>,
}

impl KeepProgress {
    /// For a client.
    pub fn to<E: Send + 'static>(
        listener: mpsc::UnboundedSender<E>,
        event: impl Fn(CheckpointProgress) -> E + Send + Sync + 'static,
    ) -> Self {
        let listener = Arc::new(move |progress| {
            // A client that hung up does not stop what is almost done.
            let _ = listener.send(event(progress));
        });
        Self { began: Instant::now(), listener }
    }

    /// For no client in particular.
    pub fn unheard() -> Self {
        Self { began: Instant::now(), listener: Arc::new(|_| {}) }
    }

    pub(super) fn stage(&self, stage: CheckpointStage) {
        self.tell(stage, None);
    }

    fn tell(&self, stage: CheckpointStage, memory: Option<MemoryProgress>) {
        (self.listener)(CheckpointProgress { stage, elapsed_ms: self.began.elapsed().as_millis() as u64, memory });
    }
}

/// What is to be kept, and how.
pub(super) struct Keeping<'a> {
    pub(super) record: &'a SandboxRecord,
    /// What of it.
    pub(super) keep: model::Keep,
    /// Of its template, under the name that the checkpoint gets.
    pub(super) spec: model::TemplateSpec,
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
    /// A file that holds the program's description.
    description: Option<OwnedFd>,
    /// Layers that only this node has, topmost first.
    layers: Vec<PathBuf>,
    pause_us: u64,
    cut: Cut,
}

impl Node {
    /// Takes a checkpoint of a running sandbox; durable when this returns.
    #[tracing::instrument(skip_all, fields(sandbox = %id))]
    pub async fn checkpoint(
        self: &Arc<Self>,
        id: &SandboxId,
        request: &CheckpointOptions,
        progress: &KeepProgress,
    ) -> Result<model::Checkpoint> {
        let record = self.state().running(id)?.clone();
        let spec = self.state().spec_of(&record)?;
        let name = match &request.name {
            Some(name) => name.clone(),
            None => made_up(&record.template)?,
        };
        let commit = self.commit_as(&name, request.replace).await?;
        let spec = model::TemplateSpec { name, ..spec };
        let keeping = Keeping { record: &record, keep: request.keep, spec, hold: false, commit };
        let taken = self.keep(keeping, progress).await?;
        self.supersede(&taken).await;
        Ok(self.as_seen_here(taken))
    }

    /// Gives a checkpoint this name when it is written. Fails if another has it that must not be replaced.
    pub(super) async fn commit_as(&self, name: &TemplateName, may_replace: bool) -> Result<Commit> {
        super::builder::check_name(name)?;
        let replaces = match Checkpoint::find(&self.durable, name).await? {
            Some(_) if !may_replace => return Err(Error::CheckpointExists(name.clone())),
            found => found.is_some(),
        };
        let (durable, runtime, head_name) = (self.durable.clone(), Handle::current(), checkpoint::name_of(name)?);
        Ok(Box::new(move |checkpoint, writing, parent| {
            let replaces = match replaces {
                // As it is by now: its working set may have been recorded meanwhile.
                true => Some(
                    runtime
                        .block_on(durable.heads.get(durable.store.realm(), &head_name))
                        .storing("look for the checkpoint")?,
                ),
                false => None,
            };
            let (manifest, _) = checkpoint.commit(writing, replaces.as_ref(), parent)?;
            Ok(manifest)
        }))
    }

    /// What this node has restored of an earlier checkpoint of that name starts nothing any more. Its sandboxes go on.
    pub(super) async fn supersede(self: &Arc<Self>, newer: &model::Checkpoint) {
        let (zygote, blanks) = self.state().replaced(&newer.name, &newer.manifest);
        if let Some(zygote) = zygote {
            tracing::info!(name = %newer.name, "the checkpoint was replaced: the next start restores what it is now");
            self.retire_zygote(zygote.number).await;
            self.ledger.changed();
        }
        self.discard_blanks(blanks).await;
    }

    /// Captures a sandbox and writes it into the store.
    pub(super) async fn keep(
        self: &Arc<Self>,
        keeping: Keeping<'_>,
        progress: &KeepProgress,
    ) -> Result<model::Checkpoint> {
        let point = self.state().claim();
        let kept = keeping.record.kept.clone();
        let layer = kept.clone().unwrap_or_else(|| self.host.changes.layer(&keeping.record.id, &point));
        let taken = match self.has_files_only(keeping.record, keeping.keep).await? {
            true => self.take_files(keeping, layer.clone(), progress).await,
            false => self.take(keeping, layer.clone(), progress).await,
        };
        if kept.is_none() {
            self.remove_layers(vec![layer]).await;
        }
        self.state().release(&point);
        taken
    }

    async fn take(
        self: &Arc<Self>,
        Keeping { record, keep: _, spec, hold, commit }: Keeping<'_>,
        layer: PathBuf,
        progress: &KeepProgress,
    ) -> Result<model::Checkpoint> {
        layers::check(record)?;
        if let Some(pages) = &record.pages {
            progress.stage(CheckpointStage::WaitingForMemory);
            self.pager.wait_filled(pages).await?;
        }
        progress.stage(CheckpointStage::Capturing);
        // So that little is left to be written while it stands still.
        self.commit_written(&record.id, &record.volumes).await?;
        let (base, restored, zygote) = {
            let mut state = self.state();
            let base = self.use_parked(&mut state, &record.template);
            let restored = state.restored_zygote(&record.template);
            (base, restored, state.new_zygote())
        };
        // What is resumed has all the volumes that it had.
        let kept: Vec<&String> =
            record.volumes.iter().filter(|mount| hold || mount.is_writable()).map(|mount| &mount.path).collect();
        let mut job = Capture {
            zygote,
            // Found when nothing is begun in it any more.
            source: Source {
                sandbox: record.id.clone(),
                main: record.main,
                commands: Vec::new(),
                without_program: false,
                streams: Vec::new(),
                earlier_arena: record.arena,
                // Other copies may have other volumes there.
                mount_points: if hold {
                    Vec::new()
                } else {
                    spec.mount_points.iter().filter(|path| !kept.contains(path)).map(PathBuf::from).collect()
                },
                volumes: kept.iter().map(PathBuf::from).collect(),
            },
            base: Base { zygote: base.as_ref().map(InUse::number), layers: record.layers.clone() },
            layer: layer.clone(),
            purpose: if hold { Purpose::Pause } else { Purpose::Keep(cut::needed(&record.volumes)) },
        };
        let pinned = self.pin(record.layers.clone());
        let built = match hold {
            true => match self.take_along(&mut job.source, record).await {
                Ok(()) => self.capture_to_pause(job, record).await,
                Err(error) => Err(error),
            },
            false => self.capture_and_cut(job, record).await,
        };
        let purpose = if hold { CaptureFor::Pause } else { CaptureFor::Checkpoint };
        self.ledger.metrics.captured(purpose, built.as_ref().map(|(built, _)| built.timings.pause_us));
        let written = match built {
            Ok((Built { zygote: built, timings, description }, cut)) => {
                let captured = Captured {
                    zygote_pid: built.engine.pid,
                    restored,
                    description,
                    layers: std::iter::once(layer).chain(self.own_layers(&record.layers)).collect(),
                    pause_us: timings.pause_us,
                    cut: cut.clone(),
                };
                let (durable, progress, runtime) = (self.durable.clone(), progress.clone(), Handle::current());
                let write = move || write(&durable, &runtime, captured, spec, commit, &progress);
                let written = tokio::task::spawn_blocking(write).await.doing("write the checkpoint").flatten();
                self.forget_cut(&cut).await;
                written
            }
            Err(error) => Err(error),
        };
        drop(base);
        self.drop_zygote(zygote).await;
        pinned.unpin().await;
        written
    }

    /// As [`Node::take`], without memory.
    async fn take_files(
        self: &Arc<Self>,
        Keeping { record, keep, spec, hold, commit }: Keeping<'_>,
        layer: PathBuf,
        progress: &KeepProgress,
    ) -> Result<model::Checkpoint> {
        layers::check(record)?;
        progress.stage(CheckpointStage::Capturing);
        // So that little is left to be written while it stands still.
        self.commit_written(&record.id, &record.volumes).await?;
        let pinned = self.pin(record.layers.clone());
        let captured = match hold {
            true => self.take_to_pause(record, keep, &layer).await,
            false => self.capture_files(record, keep, &layer).await,
        };
        let purpose = if hold { CaptureFor::Pause } else { CaptureFor::Checkpoint };
        let pause_us = captured.as_ref().map(|files| files.pause.as_micros() as u64);
        self.ledger.metrics.captured(purpose, pause_us);
        let written = match captured {
            Ok(files) => {
                let cut = files.cut.clone();
                let layers = std::iter::once(layer).chain(self.own_layers(&record.layers)).collect();
                let captured = CapturedFiles { layers, files, spec: without_program(spec) };
                let (durable, progress, runtime) = (self.durable.clone(), progress.clone(), Handle::current());
                let write = move || write_files(&durable, &runtime, captured, commit, &progress);
                let written = tokio::task::spawn_blocking(write).await.doing("write the checkpoint").flatten();
                self.forget_cut(&cut).await;
                written
            }
            Err(error) => Err(error),
        };
        pinned.unpin().await;
        written
    }

    /// Layers that this node has made; the others are an image's, which every node has of its own.
    pub(super) fn own_layers(&self, layers: &[PathBuf]) -> Vec<PathBuf> {
        let config = &self.host.config;
        let own = [config.templates_dir(), config.sandboxes_dir(), config.builds_dir()];
        layers.iter().filter(|layer| own.iter().any(|own| layer.starts_with(own))).cloned().collect()
    }

    /// All checkpoints of the store.
    pub async fn checkpoints(&self) -> Result<Vec<model::Checkpoint>> {
        let found = Checkpoint::list(&self.durable).await?;
        let mut readable = Vec::new();
        for (head, checkpoint) in found {
            match checkpoint {
                Ok(checkpoint) => {
                    readable.push(self.as_seen_here(to_model(&checkpoint, &head.manifest.to_string())?));
                }
                Err(error) => {
                    tracing::warn!(name = %head.name, error = crate::chain(&error), "a checkpoint is unreadable")
                }
            }
        }
        Ok(readable)
    }

    /// One of them.
    pub async fn find_checkpoint(&self, name: &TemplateName) -> Result<model::Checkpoint> {
        let found = Checkpoint::find(&self.durable, name).await?;
        let (head, checkpoint) = found.ok_or_else(|| Error::NoCheckpoint(name.clone()))?;
        to_model(&checkpoint, &head.manifest.to_string()).map(|found| self.as_seen_here(found))
    }

    /// With what this node has to say about it.
    pub(super) fn as_seen_here(&self, checkpoint: model::Checkpoint) -> model::Checkpoint {
        let hidden = self.state().hides_checkpoint(&checkpoint.name, checkpoint.created_ms);
        model::Checkpoint { hidden, ..checkpoint }
    }

    /// Removes its name; what only it used is garbage then.
    #[tracing::instrument(skip_all, fields(checkpoint = %name))]
    pub async fn remove_checkpoint(&self, name: &TemplateName) -> Result<()> {
        // By name: copies that run record their working set meanwhile, which moves the head.
        match self.durable.heads.remove_name(self.durable.store.realm(), &checkpoint::name_of(name)?).await {
            Err(store::heads::HeadsError::NotFound { .. }) => Err(Error::NoCheckpoint(name.clone())),
            removed => removed.storing("remove the checkpoint"),
        }
    }
}

fn made_up(template: &TemplateName) -> Result<TemplateName> {
    let name = format!("{template}-{}", random_suffix());
    name.parse().map_err(|_| Error::Invalid {
        message: format!("{name} is too long for a name"),
        hint: Some("give the checkpoint a name with --name".to_owned()),
    })
}

pub(super) fn to_model(checkpoint: &Checkpoint, manifest: &str) -> Result<model::Checkpoint> {
    const PAGE: u64 = memory::PAGE_BYTES as u64;
    let Counts { pause_us, pages, zero_pages, duplicate_pages, memory_bytes, layer_bytes } = checkpoint.counts;
    Ok(model::Checkpoint {
        name: checkpoint.spec.name.clone(),
        created_ms: checkpoint.created_ms,
        manifest: manifest.to_owned(),
        keep: if checkpoint.program.is_some() { model::Keep::Memory } else { model::Keep::Files },
        command: checkpoint.spec.command.clone(),
        image: checkpoint.spec.image.clone(),
        pause_us,
        memory_bytes: pages * PAGE,
        redundant_bytes: (zero_pages + duplicate_pages) * PAGE,
        stored_memory_bytes: memory_bytes,
        layer_bytes,
        volumes: checkpoint.kept_volumes()?,
        hidden: false,
    })
}
