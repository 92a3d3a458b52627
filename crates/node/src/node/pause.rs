//! Pausing: a sandbox becomes a state in the store and a small record on the node.
//!
//! ```text
//! captured, and frozen in the same instant -> memory and files stored -> record "pausing" -> head  (from here on it is paused)
//!    -> small record and output aside -> processes and files of the sandbox removed -> head says that nobody holds it
//! ```
//!
//! Whatever ends it before the head is there leaves a sandbox that goes on; whatever ends it later, one that is paused. After a crash the
//! head is what tells: [`Node::settle`].

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use base::id::SandboxId;
use checkpoint::{Checkpoint, Mounted, Paused, lost_race};
use keeper::protocol::Thaw;
use model::{CheckpointStage, Mount, PauseReport, PausedSandbox, SandboxState};
use store::{heads::Head, verify::is_out_of_reach};
use tokio::runtime::Handle;

use super::{
    KeepProgress, Node,
    checkpoints::{Commit, Keeping},
    commands::Along,
    files,
    images::remove_quietly,
    lifecycle::Operation,
    load_records,
    logs::earlier_file,
    now_ms,
    output::carry_rest,
};
use crate::{
    config::{Config, RECORD, output_file},
    error::{Context, Error, Forked, Result, Storing, chain},
    records::{self, Durability, NOBODY, SandboxRecord},
};

/// How long one that is given up may take: it may be forked meanwhile.
const GIVING_UP_MAX: Duration = Duration::from_secs(10);
/// Until the next one is given up: btrfs commits meanwhile.
const GIVING_UP_REST: Duration = Duration::from_secs(2);

/// Most paused sandboxes whose changes are kept on this node.
const KEPT_MAX: usize = 256;

/// How long to rest before the store is asked again.
pub(super) const STORE_REST: Duration = Duration::from_secs(3);

impl Node {
    /// Pauses a running sandbox: durable, and without processes, when this returns.
    #[tracing::instrument(skip_all, fields(sandbox = %id))]
    ///
    /// With [`model::Keep::Files`] its processes end: what is resumed is the same machine, booted anew, with the same files.
    pub async fn pause(
        self: &Arc<Self>,
        id: &SandboxId,
        keep: model::Keep,
        progress: &KeepProgress,
    ) -> Result<PauseReport> {
        let (node, of, progress) = (Arc::clone(self), id.clone(), progress.clone());
        self.drive(id, Operation::Pause, async move { node.pause_alone(&of, keep, &progress).await }).await
    }

    async fn pause_alone(
        self: &Arc<Self>,
        id: &SandboxId,
        keep: model::Keep,
        progress: &KeepProgress,
    ) -> Result<PauseReport> {
        let began = Instant::now();
        let record = self.state().begin_pause(id, now_ms())?;
        // Before the capture: what was reported as written is in it, and nothing is half written.
        if let Err(error) = self.end_hands(id, files::SETTLE_MAX).await {
            self.go_on(id).await;
            return Err(error);
        }
        let named = Arc::new(AtomicBool::new(false));
        let stored = self.store_paused(&record, keep, &named, progress).await;
        if !named.load(Ordering::Acquire) {
            self.go_on(id).await;
            stored?;
            return Err(Error::NoSandbox(id.clone()));
        }
        progress.stage(CheckpointStage::Freeing);
        // Also after a failure: the answer of a commit may be lost, and only the head tells.
        let checkpoint = match (self.settle(&record).await, stored) {
            (Ok(Some(checkpoint)), _) => checkpoint,
            (Ok(None), Err(error)) => return Err(error),
            (Ok(None), Ok(())) => return Err(Error::GoneFromStore(id.clone())),
            (Err(error), _) => {
                self.settle_later(id);
                return Err(error);
            }
        };
        let stored = super::checkpoints::to_model(&checkpoint, "")?;
        Ok(PauseReport {
            sandbox: self.state().sandbox(id)?.to_model(),
            memory_bytes: stored.memory_bytes,
            stored_memory_bytes: stored.stored_memory_bytes,
            layer_bytes: stored.layer_bytes,
            total_us: began.elapsed().as_micros() as u64,
        })
    }

    /// All paused sandboxes of the store, whichever node paused them.
    pub async fn paused_in_store(&self) -> Result<Vec<PausedSandbox>> {
        let mut readable = Vec::new();
        for (head, paused) in Paused::list(&self.durable).await? {
            match paused {
                Ok(paused) => readable.push(paused.to_model()),
                Err(error) => {
                    tracing::warn!(name = %head.name, error = chain(&error), "a paused sandbox is unreadable")
                }
            }
        }
        Ok(readable)
    }

    /// Captures and stores it, and names it; `named` says whether it has come to that.
    async fn store_paused(
        self: &Arc<Self>,
        record: &SandboxRecord,
        keep: model::Keep,
        named: &Arc<AtomicBool>,
        progress: &KeepProgress,
    ) -> Result<()> {
        if record.held.is_some() {
            // From the resume before: its head makes way for the new one.
            progress.stage(CheckpointStage::WaitingForMemory);
            self.release_filled(&record.id).await?;
        }
        if keep == model::Keep::Memory {
            self.refuse_others(record, self.along(record, 0).await?.as_ref())?;
        }
        let record = &self.keep_changes(record);
        let spec = self.state().spec_of(record)?;
        let dir = self.host.config.sandbox_dir(&record.id);
        let machine = sandbox::Machine::read(&self.host.changes.of(&record.id));
        let machine = if keep == model::Keep::Files { machine.rebooted() } else { machine };
        let (written, holder, named) = (record.clone(), self.host.id.clone(), Arc::clone(named));
        let commit: Commit = Box::new(move |checkpoint, writing, parent| {
            // A node that finds this record looks for the head.
            records::write(&dir.join(RECORD), &written, Durability::Machine)?;
            named.store(true, Ordering::Release);
            let SandboxRecord { id, parent: fork_of, created_ms, paused_ms, volumes, network, .. } = written;
            let paused = Paused {
                checkpoint: checkpoint.clone(),
                id,
                parent: fork_of,
                created_ms,
                paused_ms: paused_ms.unwrap_or_default(),
                machine,
                holder: Some(holder),
                volumes: volumes.into_iter().map(mounted).collect(),
                network,
            };
            Ok(paused.commit(writing, parent)?)
        });
        self.keep(Keeping { record, keep, spec, hold: true, commit }, progress).await.map(drop)
    }

    /// Where changes are snapshots, the one of a pause stays: the sandbox goes on with it if it is resumed here, with the inode numbers that its program
    /// knows. Elsewhere its files are unpacked from the store.
    fn keep_changes(&self, record: &SandboxRecord) -> SandboxRecord {
        let point = self.state().claim();
        let layer = self.host.changes.layer(&record.id, &point);
        let is_snapshot = self.host.changes.split(std::slice::from_ref(&layer)).0.is_some();
        let mut state = self.state();
        let kept = is_snapshot.then(|| state.keep_changes(&record.id, layer)).flatten();
        state.release(&point);
        kept.unwrap_or_else(|| record.clone())
    }

    /// Gives up, in the background, what is kept of the sandbox that was paused first, if more than `spared` have something. The store has it all.
    pub(super) fn give_up_kept(self: &Arc<Self>, spared: usize) {
        let Some(id) = self.state().kept_longest(spared) else { return };
        // One after the other: room comes back a moment later.
        let Ok(turn) = Arc::clone(&self.giving_up).try_lock_owned() else { return };
        let node = Arc::clone(self);
        tokio::spawn(async move {
            let (inner, of) = (Arc::clone(&node), id.clone());
            // Denied if it goes on meanwhile.
            let forget = node.drive(&id, Operation::Settle, async move { inner.forget_kept(&of).await });
            let _ = tokio::time::timeout(GIVING_UP_MAX, forget).await;
            tokio::time::sleep(GIVING_UP_REST).await;
            drop(turn);
        });
    }

    /// Nothing is kept here of what a paused sandbox has changed, from here on.
    pub(super) async fn forget_kept(&self, id: &SandboxId) -> Result<()> {
        let Some((record, unused)) = self.state().give_up_kept(id) else { return Ok(()) };
        self.write_aside(&record);
        self.remove_layers(unused).await;
        Ok(())
    }

    /// What is not captured would be lost by the pause, not kept.
    pub(super) fn refuse_others(&self, record: &SandboxRecord, along: Option<&Along>) -> Result<()> {
        let refusals = self.others(record, along)?;
        if refusals.is_empty() {
            return Ok(());
        }
        Err(Error::CannotFork { what: Forked::Sandbox(record.id.clone()), refusals })
    }

    /// Completes a pause whose head is there, and lets the sandbox go on if none is. Fails if the store does not say.
    async fn settle(self: &Arc<Self>, record: &SandboxRecord) -> Result<Option<Checkpoint>> {
        let found = Paused::find(&self.durable, &record.id).await?;
        let Some((head, paused)) = found.filter(|(_, paused)| Some(paused.paused_ms) == record.paused_ms) else {
            self.go_on(&record.id).await;
            return Ok(None);
        };
        let goes_on = paused.checkpoint.program.is_some();
        if let Err(error) = self.finish_pause(record, goes_on).await {
            // It cannot be kept here: better that it runs.
            self.remove_this_head(&head).await?;
            self.go_on(&record.id).await;
            return Err(error);
        }
        Ok(Some(paused.checkpoint))
    }

    /// Waits until it is known whether a sandbox is paused, if its pause was interrupted. It stands still meanwhile.
    pub(super) async fn settle_pause(self: &Arc<Self>, id: &SandboxId) {
        loop {
            let record = self.state().sandbox(id).ok().filter(|record| record.state == SandboxState::Pausing).cloned();
            let Some(record) = record else { return };
            if let Err(error) = self.settle(&record).await {
                let error = chain(&error);
                tracing::warn!(sandbox = %id, error, "whether it is paused is not known; it stands still");
                tokio::time::sleep(STORE_REST).await;
            }
        }
    }

    /// In the background: the driver settles a pause before it does anything else.
    fn settle_later(self: &Arc<Self>, id: &SandboxId) {
        let (node, id) = (Arc::clone(self), id.clone());
        tokio::spawn(async move {
            // Denied if it is settled by then.
            let _ = node.drive(&id, Operation::Settle, async { Ok(()) }).await;
        });
    }

    /// Everything after the head; `goes_on` if its processes do after a resume. A failure leaves the sandbox frozen, with all that it has.
    async fn finish_pause(self: &Arc<Self>, record: &SandboxRecord, goes_on: bool) -> Result<()> {
        let id = &record.id;
        let kept = self.state().sandbox(id)?.kept.clone();
        let kept = kept.filter(|layer| layer.is_dir());
        // Those of its image are needed in any case.
        let store = self.host.config.image_store();
        let stays = |layer: &&PathBuf| kept.is_some() || layer.starts_with(&store);
        let small = SandboxRecord {
            layers: record.layers.iter().filter(stays).cloned().collect(),
            kept,
            pages: None,
            arena: None,
            main: NOBODY,
            state: SandboxState::Paused,
            held: record.paused_ms,
            ..record.clone()
        };
        self.set_aside(&small)?;
        let _ = fs::remove_file(self.host.config.sandbox_dir(id).join(RECORD));
        if goes_on {
            // Before its processes end: so do its commands, and no client is told that they have ended.
            self.forget_commands(id).await;
        }
        self.end(id).await;
        let small = match self.hand_back(id).await {
            Ok(()) => SandboxRecord { held: None, ..small },
            Err(error) => {
                tracing::warn!(sandbox = %id, error = chain(&error), "until this node is started again no other one can resume it");
                small
            }
        };
        self.write_aside(&small);
        let unused = self.state().paused(small);
        self.remove_layers(unused).await;
        self.give_up_kept(KEPT_MAX);
        // If its processes were not to be ended in time: nothing claims them any more.
        self.ledger.sweep_work.notify_one();
        Ok(())
    }

    /// The pause has failed: what runs goes on, with the record that says so.
    async fn go_on(self: &Arc<Self>, id: &SandboxId) {
        let kept = self.state().sandbox(id).ok().and_then(|record| record.kept.clone());
        let Some(record) = self.state().abandon_pause(id) else { return };
        self.remove_layers(kept.into_iter().collect()).await;
        let path = self.host.config.sandbox_dir(id).join(RECORD);
        if let Err(error) = records::write(&path, &record, Durability::Process) {
            tracing::warn!(sandbox = %id, error = chain(&error), "its record may say that it is being paused");
        }
        self.thaw(id).await;
    }

    /// Has a sandbox go on that was frozen with its capture. If the keeper is gone, the next one does so that adopts it.
    pub(super) async fn thaw(&self, id: &SandboxId) {
        let thawed = self.keepers.call(Thaw { sandbox: id.clone() }, []).await;
        if let Err(error) = thawed {
            tracing::error!(sandbox = %id, error = chain(&error), "it may stand still");
        }
    }

    /// Keeps a small record, and the output if there is any.
    fn set_aside(&self, small: &SandboxRecord) -> Result<()> {
        let aside = self.host.config.paused_dir().join(small.id.as_str());
        fs::create_dir_all(&aside).at("create", &aside)?;
        let dir = self.host.config.sandbox_dir(&small.id);
        // It stands still, its pid 1 as well.
        carry_rest(small.init, &output_file(&dir))?;
        link_output(&dir, &aside)?;
        // Last: without it the directory does not count.
        records::write(&aside.join(RECORD), small, Durability::Machine)
    }

    pub(super) fn write_aside(&self, small: &SandboxRecord) {
        let path = self.host.config.paused_dir().join(small.id.as_str()).join(RECORD);
        if let Err(error) = records::write(&path, small, Durability::Machine) {
            tracing::warn!(sandbox = %small.id, error = chain(&error), "its record is out of date");
        }
    }

    /// Tells the store that this node does not hold the paused sandbox any more.
    pub(super) async fn hand_back(&self, id: &SandboxId) -> Result<()> {
        let Some((head, paused)) = Paused::find(&self.durable, id).await? else { return Ok(()) };
        if paused.holder.as_ref() != Some(&self.host.id) {
            return Ok(());
        }
        self.hand_to(paused, None, head).await.map(drop)
    }

    /// Writes down who holds it.
    pub(super) async fn hand_to(&self, paused: Paused, holder: Option<String>, head: Head) -> Result<Head> {
        let (durable, runtime) = (self.durable.clone(), Handle::current());
        let hand = move || Ok(paused.hand_to(holder, &head, &durable, &runtime)?);
        tokio::task::spawn_blocking(hand).await.doing("write down who holds the sandbox").flatten()
    }

    /// Removes the head of a sandbox that this node holds, or nobody; only that of one pause, if it is named. Gives what it found.
    pub(super) async fn remove_head(&self, id: &SandboxId, paused_ms: Option<u64>) -> Result<Option<Paused>> {
        let Some((head, paused)) = Paused::find(&self.durable, id).await? else { return Ok(None) };
        if paused_ms.is_some_and(|of| of != paused.paused_ms) {
            return Ok(None);
        }
        if paused.holder.as_ref().is_none_or(|holder| *holder == self.host.id) {
            self.remove_this_head(&head).await?;
        }
        Ok(Some(paused))
    }

    /// Removes the head of a sandbox whose manifest is damaged or gone. Else `error` stays what it is.
    async fn remove_unreadable(&self, id: &SandboxId, error: Error) -> Result<()> {
        match Paused::find_head(&self.durable, id).await? {
            Some((head, Err(damage))) if !is_out_of_reach(&damage) => {
                tracing::warn!(sandbox = %id, error = chain(&damage), "a paused sandbox that cannot be read is removed");
                self.remove_this_head(&head).await
            }
            _ => Err(error),
        }
    }

    async fn remove_this_head(&self, head: &Head) -> Result<()> {
        let removed = self.durable.heads.remove(head).await.storing("remove what the store has of it");
        removed.or_else(|error| if lost_race(&error) { Ok(()) } else { Err(error) })
    }

    /// Removes a paused sandbox, of this node or only of the store.
    pub(super) async fn remove_paused(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        let known = self.state().sandbox(id).is_ok();
        let found = match self.remove_head(id, None).await {
            // Its data is damaged, and this node need not know more to remove it. Not so while the store is only out of reach.
            Err(error) if known && !is_out_of_reach(&error) => {
                self.remove_unreadable(id, error).await.map(|()| None)?
            }
            found => found?,
        };
        if !known {
            let holder = found.ok_or_else(|| Error::NoSandbox(id.clone()))?.holder;
            return match holder.filter(|holder| *holder != self.host.id) {
                Some(node) => Err(Error::HeldElsewhere { id: id.clone(), node }),
                None => Ok(()),
            };
        }
        // What is remembered here of a sandbox that another node has resumed goes all the same.
        remove_quietly(&self.host.config.paused_dir().join(id.as_str())).await;
        let unused = self.part_with(id);
        self.remove_layers(unused).await;
        Ok(())
    }

    /// Takes up what an earlier node was in the middle of.
    pub(super) fn take_up_pauses(self: &Arc<Self>) {
        // Not in the head of the loop: there the lock would live as long as the loop.
        let records = self.state().sandboxes();
        for record in records {
            match record.state {
                SandboxState::Pausing => self.settle_later(&record.id),
                SandboxState::Paused if record.held.is_some() => self.hand_back_soon(record.id),
                SandboxState::Paused => {}
                SandboxState::Running | SandboxState::Exited(_) | SandboxState::Lost => {
                    if record.held.is_some() {
                        self.release_later(record.id);
                    }
                }
            }
        }
    }
}

fn mounted(Mount { volume, path, read_only, snapshot }: Mount) -> Mounted {
    Mounted { volume, path, snapshot, read_only }
}

/// Makes the output files in `from` files of `to` as well. What `to` has already stays.
pub(super) fn link_output(from: &Path, to: &Path) -> Result<()> {
    let output = output_file(from);
    for file in [earlier_file(&output), output] {
        let Some(name) = file.file_name() else { continue };
        match fs::hard_link(&file, to.join(name)) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => {}
            linked => linked.at("link", &file)?,
        }
    }
    Ok(())
}

/// The sandboxes that an earlier node has recorded. Where it was killed between two records of one, the one of a sandbox that is not being
/// paused any more counts; the other is removed.
pub(super) fn load(config: &Config) -> Vec<SandboxRecord> {
    let mut here: Vec<SandboxRecord> = load_records(&config.sandboxes_dir());
    let paused: Vec<SandboxRecord> = load_records(&config.paused_dir());
    let is_paused = |id: &SandboxId| paused.iter().any(|record| record.id == *id);
    here.retain(|record| record.state != SandboxState::Pausing || !is_paused(&record.id));
    let asides = fs::read_dir(config.paused_dir()).into_iter().flatten().flatten();
    for aside in asides {
        let id = aside.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok());
        let counts = id.is_some_and(|id| is_paused(&id) && here.iter().all(|record| record.id != id));
        // A damaged record is left out, and what it is about can still be resumed from the store.
        if !counts && let Err(error) = fs::remove_dir_all(aside.path()) {
            tracing::warn!(%error, path = %aside.path().display(), "a leftover stays");
        }
    }
    here.extend(paused.into_iter().filter(|record| here.iter().all(|other| other.id != record.id)).collect::<Vec<_>>());
    here
}
