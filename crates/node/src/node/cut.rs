//! Volumes in live forks and checkpoints: a copy gets volumes of its own, which begin as the original's were in the instant that its memory
//! is of.
//!
//! ```text
//! builder:    captured, and frozen in the same instant -> mappings written back, what is in each volume that it can write is settled -> thawed
//!                                                                                                      -> a snapshot of it is stored
//! copy:       fork of each state -> mounted -> goes on                             all copies started -> no snapshot
//! checkpoint: its manifest includes those of the snapshots                         it has its name    -> no snapshot
//! ```
//!
//! A volume that a copy has got stays when the copy is removed, as all volumes do: its files may be what somebody wanted.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use base::id::{SandboxId, SnapshotName, VolumeName};
use model::{CheckpointVolume, FailureKind, Mount};
use volumed::{Origin, Settled};

use super::{Node, files::HeldChanges, unseen::Unseen, volumes::failed};
use crate::error::{Context, Error, Result, chain};

/// How long a sandbox may stand still for its volumes.
const CUT_MAX: Duration = Duration::from_secs(10);

/// How long storing what is in them may take; it does not stand still meanwhile.
const STORED_MAX: Duration = Duration::from_secs(60);

/// The states of all volumes that a sandbox can write, of one instant. A volume that is mounted twice has one.
#[derive(Debug, Clone, Default)]
pub(super) struct Cut {
    pub(super) states: Vec<VolumeState>,
}

/// What a copy's own volume begins with.
#[derive(Debug, Clone)]
pub(super) struct VolumeState {
    pub(super) volume: VolumeName,
    /// Where it is mounted.
    pub(super) paths: Vec<String>,
    pub(super) origin: Origin,
}

impl Cut {
    /// Of a checkpoint, without what is mounted elsewhere in its place.
    pub(super) fn kept(volumes: &[CheckpointVolume], instead: &[Mount]) -> Self {
        let mut cut = Self::default();
        for CheckpointVolume { volume, path, state } in volumes {
            if !instead.iter().any(|mount| mount.path == *path) {
                cut.add(volume, path, || Origin::Kept(state.clone()));
            }
        }
        cut
    }

    /// What was taken for it.
    fn snapshots(&self) -> impl Iterator<Item = Unseen> {
        self.states.iter().filter_map(|VolumeState { volume, origin, .. }| match origin {
            Origin::Snapshot(snapshot) => Some(Unseen::snapshot(volume, snapshot)),
            Origin::Kept(_) => None,
        })
    }

    /// True if the volume had no state yet.
    fn add(&mut self, volume: &VolumeName, path: &str, origin: impl FnOnce() -> Origin) -> bool {
        let known = self.states.iter_mut().find(|known| known.volume == *volume);
        let is_new = known.is_none();
        match known {
            Some(known) => known.paths.push(path.to_owned()),
            None => {
                self.states.push(VolumeState { volume: volume.clone(), paths: vec![path.to_owned()], origin: origin() })
            }
        }
        is_new
    }
}

/// What of a sandbox's volumes its copies cannot share.
pub(super) fn written(mounts: &[Mount]) -> impl Iterator<Item = &Mount> {
    mounts.iter().filter(|mount| mount.is_writable())
}

/// What a capture has to do with them.
pub(super) fn needed(mounts: &[Mount]) -> keeper::protocol::Volumes {
    match written(mounts).next() {
        Some(_) => keeper::protocol::Volumes::Cut,
        None => keeper::protocol::Volumes::Unwritten,
    }
}

/// Volumes that copies share.
pub(super) fn shared(mounts: &[Mount]) -> Vec<Mount> {
    mounts.iter().filter(|mount| !mount.is_writable()).cloned().collect()
}

impl Node {
    /// Cuts the volumes of a sandbox that stands still, and has it go on, whatever came of it. Also: how long that took.
    /// Changes of its files are held until then.
    pub(super) async fn cut(
        self: &Arc<Self>,
        id: &SandboxId,
        mounts: &[Mount],
        held: HeldChanges,
    ) -> (Result<Cut>, Duration) {
        let began = Instant::now();
        let mut cut = Cut::default();
        let taking = tokio::time::timeout(CUT_MAX, self.take_snapshots(id, mounts, &mut cut)).await;
        let begun = taking.doing("fork the volumes in time").flatten();
        self.thaw(id).await;
        drop(held);
        let took = began.elapsed();
        (self.end_cut(cut, begun).await, took)
    }

    /// Waits until the snapshots of a cut are durable. A failure leaves none.
    async fn end_cut(self: &Arc<Self>, cut: Cut, begun: Result<Vec<Settled>>) -> Result<Cut> {
        let done = match begun {
            Ok(begun) => {
                tokio::time::timeout(STORED_MAX, stored(begun)).await.doing("store the volumes in time").flatten()
            }
            Err(error) => Err(error),
        };
        if done.is_err() {
            self.forget_failed(&cut);
        }
        done.map(|()| cut)
    }

    /// In the background: requests of which nobody waits for the answer any more end first.
    fn forget_failed(self: &Arc<Self>, cut: &Cut) {
        tokio::spawn(Arc::clone(self).remove_all_unseen(cut.snapshots().collect()));
    }

    /// Makes what a sandbox has written, up to now or while it stands still, what other nodes find.
    pub(super) async fn commit_written(self: &Arc<Self>, id: &SandboxId, mounts: &[Mount]) -> Result<()> {
        // A snapshot is a commit. Its name is not needed.
        let cut = self.cut_at_rest(id, mounts).await?;
        self.forget_cut(&cut).await;
        Ok(())
    }

    /// Cuts the volumes of a sandbox that is not thawed for it: it stands still, or goes on, or is paused.
    pub(super) async fn cut_at_rest(self: &Arc<Self>, id: &SandboxId, mounts: &[Mount]) -> Result<Cut> {
        let mut cut = Cut::default();
        let begun = self.take_snapshots(id, mounts, &mut cut).await;
        self.end_cut(cut, begun).await
    }

    /// Settles what will be in the snapshots.
    async fn take_snapshots(&self, id: &SandboxId, mounts: &[Mount], cut: &mut Cut) -> Result<Vec<Settled>> {
        let mut begun = Vec::new();
        for mount in written(mounts) {
            let snapshot = SnapshotName::random();
            // Known before it is there: whatever becomes of the answer, it is removed.
            if !cut.add(&mount.volume, &mount.path, || Origin::Snapshot(snapshot.clone())) {
                continue;
            }
            self.note_unseen(&Unseen::snapshot(&mount.volume, &snapshot))?;
            self.write_back(&mount.volume).await?;
            let note = format!("for a fork, checkpoint or pause of {id}");
            let settled = self.mounts.client.settle_snapshot(&mount.volume, snapshot, note).await;
            begun.push(settled.map_err(failed("fork the volumes"))?);
        }
        Ok(begun)
    }

    /// Makes the volumes that only this copy has, and gives their mounts. After a failure some may be there: see
    /// [`Node::remove_own_volumes`]. When it runs, [`Node::show_own_volumes`].
    pub(super) async fn own_volumes(&self, copy: &SandboxId, cut: &Cut) -> Result<Vec<Mount>> {
        let mut mounts = Vec::new();
        for VolumeState { volume, paths, origin } in &cut.states {
            let name = volume.of_copy(copy);
            self.note_unseen(&Unseen::volume(&name))?;
            let is_kept = matches!(origin, Origin::Kept(_));
            let forked = self.mounts.client.fork(volume, origin.clone(), name.clone()).await;
            match forked.map_err(failed("fork the volumes")) {
                Err(Error::VolumeRefused(failure)) if is_kept && failure.kind == FailureKind::NotFound => {
                    return Err(Error::StateGone(failure));
                }
                forked => drop(forked?),
            }
            let mount =
                |path: &String| Mount { volume: name.clone(), path: path.clone(), read_only: false, snapshot: None };
            mounts.extend(paths.iter().map(mount));
        }
        Ok(mounts)
    }

    /// Removes the volumes of a copy that did not come to run.
    pub(super) async fn remove_own_volumes(self: &Arc<Self>, copy: &SandboxId, cut: &Cut) {
        for state in &cut.states {
            self.remove_unseen(Unseen::volume(&state.volume.of_copy(copy))).await;
        }
    }

    /// They stay from now on: the record of the copy has them.
    pub(super) fn show_own_volumes(&self, copy: &SandboxId, cut: &Cut) -> Result<()> {
        cut.states.iter().try_for_each(|state| self.forget_note(&Unseen::volume(&state.volume.of_copy(copy))))
    }

    /// Removes what a request has started whose client has gone, with the volumes that were made for it.
    pub async fn undo_starts(self: &Arc<Self>, sandboxes: &[model::Sandbox]) {
        tracing::info!(count = sandboxes.len(), "the client went away: removing what it started");
        let mut own = Vec::new();
        for sandbox in sandboxes {
            // Its name says so.
            let is_own = |mount: &&Mount| mount.is_writable() && mount.volume.as_str().ends_with(sandbox.id.as_str());
            let names: BTreeSet<_> = sandbox.volumes.iter().filter(is_own).map(|mount| &mount.volume).collect();
            own.extend(names.into_iter().map(Unseen::volume));
        }
        // A node that is killed now keeps what has its sandbox yet, and removes the rest when it is started again.
        if let Err(error) = own.iter().try_for_each(|unseen| self.note_unseen(unseen)) {
            tracing::warn!(error = chain(&error), "volumes of sandboxes that are removed could not be noted");
        }
        self.discard_all(sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect()).await;
        for unseen in own {
            self.remove_unseen(unseen).await;
        }
    }

    /// Every copy has its volumes, or the checkpoint has the states.
    pub(super) async fn forget_cut(self: &Arc<Self>, cut: &Cut) {
        for snapshot in cut.snapshots() {
            self.remove_unseen(snapshot).await;
        }
    }
}

/// Waits until the snapshots are durable.
async fn stored(begun: Vec<Settled>) -> Result<()> {
    for settled in begun {
        settled.stored().await.map_err(failed("fork the volumes"))?;
    }
    Ok(())
}
