//! Resuming: the same sandbox goes on, here or on another node that reaches the store.
//!
//! ```text
//! head says that this node holds it -> layers, zygote restored (as for a checkpoint) -> sandbox made with its old id and machine ->
//! copy forked -> record -> runs ... all its memory is there -> no head
//! ```

use std::{fs, path::PathBuf, sync::Arc, time::Instant};

use base::id::SandboxId;
use checkpoint::{Checkpoint, Mounted, Paused, lost_race};
use model::{BuildTimings, Interpreter, Keep, Mount, ResumeOptions, Sandbox, SandboxState, Takeover};
use store::heads::Head;

use super::{
    Node,
    files_only::without_program,
    images::{random_suffix, remove_quietly},
    layers::Pinned,
    lifecycle::Operation,
    metrics::StartKind,
    pause::{STORE_REST, link_output},
    start::{CopyOf, InFlight, Running},
};
use crate::{
    config::RECORD,
    error::{Context, Error, Result, chain},
    records::{self, Durability, NOBODY, SandboxRecord, TemplateRecord},
    state::{FORK_LAYER, ZygoteRef},
};

/// What copies of a paused sandbox start from.
pub(super) struct Ready {
    /// Its layers and pages. No template of this node.
    pub(super) template: TemplateRecord,
    /// None if it has files only.
    pub(super) zygote: Option<ZygoteRef>,
}

impl Node {
    /// Has a paused sandbox go on.
    #[tracing::instrument(skip_all, fields(sandbox = %id))]
    pub async fn resume(self: &Arc<Self>, id: &SandboxId, how: ResumeOptions) -> Result<Sandbox> {
        let (node, of, began) = (Arc::clone(self), id.clone(), Instant::now());
        self.drive(id, Operation::Resume, async move { node.resume_alone(&of, how, began).await }).await
    }

    async fn resume_alone(self: &Arc<Self>, id: &SandboxId, how: ResumeOptions, began: Instant) -> Result<Sandbox> {
        let known = self.state().begin_resume(id);
        let resumed = self.take_and_resume(id, known, how, began).await;
        self.state().end_resume(id);
        self.ledger.metrics.started(StartKind::Resume, began.elapsed(), &resumed);
        if resumed.is_ok() {
            self.release_later(id.clone());
        }
        resumed
    }

    async fn take_and_resume(
        self: &Arc<Self>,
        id: &SandboxId,
        known: Option<SandboxRecord>,
        ResumeOptions { takeover, keep }: ResumeOptions,
        began: Instant,
    ) -> Result<Sandbox> {
        let Some((head, paused)) = Paused::find(&self.durable, id).await? else {
            self.forget_kept(id).await?;
            return Err(known.map_or(Error::NoSandbox(id.clone()), |_| Error::GoneFromStore(id.clone())));
        };
        match &paused.holder {
            Some(node) if *node != self.host.id && takeover == Takeover::Refused => {
                return Err(Error::HeldElsewhere { id: id.clone(), node: node.clone() });
            }
            Some(_) | None => {}
        }
        if known.as_ref().is_some_and(|known| known.paused_ms != Some(paused.paused_ms)) {
            // Another node has resumed and paused it since.
            self.forget_kept(id).await?;
        }
        let known = known.map(|known| self.state().sandbox(id).cloned().unwrap_or(known));
        let is_known = known.is_some();
        // What tells a node after a crash that the store's word is its own.
        let small = SandboxRecord { held: Some(paused.paused_ms), ..known.unwrap_or_else(|| small(&paused)) };
        let aside = self.host.config.paused_dir().join(id.as_str());
        fs::create_dir_all(&aside).at("create", &aside)?;
        self.write_aside(&small);
        let resumed = match self.hand_to(paused.clone(), Some(self.host.id.clone()), head).await {
            Ok(head) => self.go_on_here(&kept(paused, keep), &head, began).await,
            Err(error) if lost_race(&error) => Err(Error::ResumedElsewhere(id.clone())),
            Err(error) => Err(error),
        };
        match &resumed {
            Err(_) => {
                if let Err(error) = self.hand_back(id).await {
                    tracing::warn!(sandbox = %id, error = chain(&error), "until this node is started again no other one can resume it");
                } else if is_known {
                    self.write_aside(&SandboxRecord { held: None, ..small });
                } else {
                    remove_quietly(&aside).await;
                }
            }
            Ok(_) => remove_quietly(&aside).await,
        }
        resumed
    }

    /// Restores a zygote of it, and starts the one copy.
    async fn go_on_here(self: &Arc<Self>, paused: &Paused, head: &Head, began: Instant) -> Result<Sandbox> {
        self.check_room().await?;
        let in_flight = InFlight::new(self);
        let (Ready { template, zygote }, pinned) = self.restore_pinned(paused, head, began).await?;
        let number = zygote.as_ref().map(|zygote| zygote.number);
        let resumed = self.start_again(paused, &template, zygote, began).await;
        if resumed.is_ok() {
            self.trust(&paused.id).await;
        }
        if resumed.is_err() {
            self.end(&paused.id).await;
        }
        if let Some(number) = number {
            self.drop_zygote(number).await;
        }
        pinned.unpin().await;
        drop(in_flight);
        resumed
    }

    /// Has ready what copies of a paused sandbox start from. Its layers stay as long as they are pinned.
    pub(super) async fn restore_pinned(
        self: &Arc<Self>,
        paused: &Paused,
        head: &Head,
        began: Instant,
    ) -> Result<(Ready, Pinned)> {
        let kept = self.state().pin_kept(&paused.id, paused.paused_ms);
        if let Some(layers) = kept {
            let pinned = self.pinned(layers.clone());
            if layers.iter().all(|layer| layer.is_dir()) {
                return match self.restore_paused(paused, head, &[], layers, began).await {
                    Ok(ready) => Ok((ready, pinned)),
                    Err(error) => {
                        pinned.unpin().await;
                        Err(error)
                    }
                };
            }
            pinned.unpin().await;
        }
        let (image_layers, _guard) = self.prepare_image(paused.spec()).await?;
        let points: Vec<SandboxId> = paused.checkpoint.layers.iter().map(|_| self.state().claim()).collect();
        let own: Vec<PathBuf> =
            points.iter().map(|point| self.host.config.sandbox_dir(point).join(FORK_LAYER)).collect();
        // As with a fork's, each directory lives as long as its layer is used.
        let pinned = self.pin(own.iter().cloned().chain(image_layers.iter().cloned()).collect());
        points.iter().for_each(|point| self.state().release(point));
        match self.restore_paused(paused, head, &own, image_layers, began).await {
            Ok(ready) => Ok((ready, pinned)),
            Err(error) => {
                pinned.unpin().await;
                Err(error)
            }
        }
    }

    /// `own`: where its layers are to be unpacked, topmost first; none: they are the first of the others.
    async fn restore_paused(
        self: &Arc<Self>,
        paused: &Paused,
        head: &Head,
        own: &[PathBuf],
        below: Vec<PathBuf>,
        began: Instant,
    ) -> Result<Ready> {
        for directory in own.iter().filter_map(|layer| layer.parent()) {
            fs::create_dir_all(directory).at("create", directory)?;
        }
        let all = [own, &below].concat();
        let (layer, lower) = all.split_first().ok_or(std::io::ErrorKind::InvalidData).doing("find its layers")?;
        let template = TemplateRecord {
            spec: paused.spec().clone(),
            created_ms: paused.created_ms,
            image_layers: lower.to_vec(),
            layer: layer.clone(),
            timings: BuildTimings::default(),
            is_built: false,
            pages: paused.checkpoint.program.as_ref().map(|_| format!("{}-{}", paused.id, random_suffix())),
            checkpoint: Some(head.manifest.to_string()),
            volumes: Vec::new(),
        };
        let layers = if own.is_empty() { &[][..] } else { &paused.checkpoint.layers };
        let zygote = match &paused.checkpoint.program {
            Some(program) => {
                let hot = self.read_hot(program);
                let fetched = self.fetch(program, layers, own).await?;
                Some(self.restore_zygote(&template, fetched, hot, began).await?)
            }
            None => self.unpack(layers, own).await.map(|()| None)?,
        };
        Ok(Ready { template, zygote })
    }

    /// Makes the sandbox with its old id, and starts its program in it, if it has one.
    async fn start_again(
        self: &Arc<Self>,
        paused: &Paused,
        template: &TemplateRecord,
        zygote: Option<ZygoteRef>,
        began: Instant,
    ) -> Result<Sandbox> {
        let (id, limits, layers) = (&paused.id, &paused.spec().limits, template.layers());
        self.state().claim_as(id);
        let dir = self.host.config.sandbox_dir(id);
        fs::create_dir_all(&dir).at("create", &dir)?;
        link_output(&self.host.config.paused_dir().join(id.as_str()), &dir)?;
        let blank = self.try_create(id, &layers, limits, Some(paused.machine.clone())).await?;
        self.attach_volumes(id, &small(paused).volumes).await?;
        self.apply_network(id, &paused.network).await?;
        let interpreter = Interpreter::InProcess;
        let copies = zygote.map(|zygote| CopyOf::new(zygote, interpreter));
        let running = match &copies {
            Some(copies) => Some(self.fork_into(copies, &blank).await?),
            None => None,
        };
        let (program, commands) =
            running.map_or((None, None), |Running { program, commands, .. }| (program, Some(commands)));
        let (main, ended) = program.unzip();
        // If it was paused on this node.
        let fork_points = self.state().sandbox(id).map(|paused| paused.fork_points.clone()).unwrap_or_default();
        let record = SandboxRecord {
            layers: self.host.changes.split(&layers).1.to_vec(),
            pages: template.pages.clone(),
            init: blank.init,
            main: main.unwrap_or(NOBODY),
            arena: copies.map(|of| of.engine.arena),
            start_us: began.elapsed().as_micros() as u64,
            state: SandboxState::Running,
            paused_ms: None,
            held: Some(paused.paused_ms),
            fork_points,
            ..small(paused)
        };
        blank.record.finish(&record)?;
        let sandbox = record.to_model();
        self.state().started(record);
        match ended {
            Some(ended) => self.monitor(id.clone(), ended),
            None => self.watch_idle(id),
        }
        if let Some((streams, spawned)) = commands {
            self.hold_forked(id, streams, spawned).await?;
        }
        Ok(sandbox)
    }

    /// In the background: as soon as the sandbox has all its memory, the store's head of it is removed. What it names is garbage then.
    pub(super) fn release_later(self: &Arc<Self>, id: SandboxId) {
        let node = Arc::clone(self);
        tokio::spawn(async move {
            while let Err(error) = node.release_filled(&id).await {
                tracing::warn!(sandbox = %id, error = chain(&error), "what the store has of it stays for now");
                tokio::time::sleep(STORE_REST).await;
            }
        });
    }

    /// Waits until a resumed sandbox has all its memory, and removes the head.
    pub(super) async fn release_filled(&self, id: &SandboxId) -> Result<()> {
        let record = self.state().sandbox(id).cloned();
        let Ok(SandboxRecord { held: Some(held), pages, .. }) = record else { return Ok(()) };
        if let Some(pages) = pages {
            self.pager.wait_filled(&pages).await?;
        }
        // It may have been removed, or paused again, meanwhile; then the head is none of ours.
        if !self.state().sandbox(id).is_ok_and(|record| record.held == Some(held)) {
            return Ok(());
        }
        self.remove_head(id, Some(held)).await?;
        let Some(record) = self.state().let_go(id) else { return Ok(()) };
        let path = self.host.config.sandbox_dir(id).join(RECORD);
        if record.state != SandboxState::Paused && path.exists() {
            records::write(&path, &record, Durability::Process)?;
        }
        Ok(())
    }

    /// In the background: an earlier node was killed while it had the paused sandbox in hand. What is asked for meanwhile waits for its turn.
    pub(super) fn hand_back_soon(self: &Arc<Self>, id: SandboxId) {
        let node = Arc::clone(self);
        tokio::spawn(async move {
            let (inner, of) = (Arc::clone(&node), id.clone());
            let handed = node.drive(&id, Operation::Settle, async move {
                inner.hand_back(&of).await?;
                let record = inner.state().let_go(&of);
                record.iter().for_each(|record| inner.write_aside(record));
                Ok(())
            });
            if let Err(error) = handed.await {
                tracing::warn!(sandbox = %id, error = chain(&error), "only this node can resume it for now");
            }
        });
    }
}

/// What of a paused sandbox is resumed. Without its memory it is the same machine, booted anew.
pub(super) fn kept(paused: Paused, keep: Keep) -> Paused {
    match keep {
        Keep::Memory => paused,
        Keep::Files => {
            let Paused { checkpoint, machine, .. } = paused;
            let checkpoint = Checkpoint { program: None, spec: without_program(checkpoint.spec), ..checkpoint };
            Paused { checkpoint, machine: machine.rebooted(), ..paused }
        }
    }
}

/// What a node has of a paused sandbox.
fn small(paused: &Paused) -> SandboxRecord {
    SandboxRecord {
        id: paused.id.clone(),
        template: paused.template().clone(),
        parent: paused.parent.clone(),
        layers: Vec::new(),
        pages: None,
        limits: paused.spec().limits.clone(),
        init: NOBODY,
        main: NOBODY,
        arena: None,
        created_ms: paused.created_ms,
        start_us: 0,
        state: SandboxState::Paused,
        spec: Some(paused.spec().clone()),
        paused_ms: Some(paused.paused_ms),
        held: None,
        reason: None,
        volumes: paused.volumes.iter().map(mount).collect(),
        reservation: None,
        network: paused.network.clone(),
        kept: None,
        fork_points: Vec::new(),
    }
}

pub(super) fn mount(mounted: &Mounted) -> Mount {
    let Mounted { volume, path, snapshot, read_only } = mounted.clone();
    Mount { volume, path, read_only, snapshot }
}
