//! Removing sandboxes, wanted or half made, and the layers that nothing uses any more.

use std::{path::PathBuf, sync::Arc, time::Duration};

use base::id::SandboxId;
use keeper::protocol::DestroySandbox;
use model::SandboxState;
use tokio::task::JoinSet;

use super::{Node, images::remove_quietly, lifecycle::Operation};
use crate::{
    config::RECORD,
    error::{Context, Result, chain},
    state::{Blank, State},
};

/// How long to rest before what could not be removed is tried again.
const SWEEP_REST: Duration = Duration::from_secs(3);

/// How long a removal waits for the end of a pause or resume that is under way.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// What becomes of paused sandboxes when all are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfPaused {
    /// They stay.
    Kept,
    /// They are removed, too.
    Removed,
}

impl Node {
    /// Removes a sandbox that users know of.
    #[tracing::instrument(skip_all, fields(sandbox = %id))]
    pub async fn remove(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        let (node, of) = (Arc::clone(self), id.clone());
        self.drive_within(id, Operation::Remove, SETTLE_MAX, async move { node.remove_now(&of).await }).await
    }

    async fn remove_now(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        let known = self.state().sandbox(id).map(|record| record.state);
        match known {
            Ok(SandboxState::Paused) | Err(_) => self.remove_paused(id).await,
            Ok(_) => {
                self.discard(id.clone()).await;
                Ok(())
            }
        }
    }

    /// Removes all of them, side by side; those that are paused, or are being paused, only if they are not to be kept.
    pub async fn remove_all(self: &Arc<Self>, paused: OfPaused) -> Vec<SandboxId> {
        let goes = |state| match state {
            SandboxState::Paused | SandboxState::Pausing => paused == OfPaused::Removed,
            SandboxState::Running | SandboxState::Exited(_) | SandboxState::Lost => true,
        };
        let all = self.state().sandboxes();
        let ids: Vec<_> = all.into_iter().filter(|record| goes(record.state)).map(|record| record.id).collect();
        let mut removals = JoinSet::new();
        for id in ids {
            let node = Arc::clone(self);
            removals.spawn(async move { (node.remove(&id).await, id) });
        }
        let mut removed = Vec::new();
        while let Some(removal) = removals.join_next().await {
            match removal {
                Ok((Ok(()), id)) => removed.push(id),
                Ok((Err(error), id)) => tracing::warn!(sandbox = %id, error = chain(&error), "it is not removed"),
                Err(error) => tracing::error!(%error, "a removal broke off"),
            }
        }
        removed.sort_unstable();
        removed
    }

    pub(super) fn ids_here(&self) -> Vec<SandboxId> {
        self.state().sandboxes_here().into_iter().map(|record| record.id).collect()
    }

    pub(super) async fn discard_all(self: &Arc<Self>, ids: Vec<SandboxId>) {
        let mut removals = JoinSet::new();
        for id in ids {
            let node = Arc::clone(self);
            removals.spawn(async move { node.discard(id).await });
        }
        while removals.join_next().await.is_some() {}
    }

    pub(super) async fn discard_blanks(self: &Arc<Self>, blanks: Vec<Blank>) {
        self.discard_all(blanks.into_iter().map(|blank| blank.id).collect()).await;
    }

    /// Ends and removes a sandbox in whatever state it is. When this returns, nothing of it is left, or the log says why and
    /// it is tried again.
    pub(super) async fn discard(self: &Arc<Self>, id: SandboxId) {
        self.learn(&id).await;
        self.drop_hands(&id).await;
        let held = self.state().sandbox(&id).ok().and_then(|record| record.held);
        if held.is_some()
            && let Err(error) = self.remove_head(&id, held).await
        {
            tracing::warn!(sandbox = %id, error = chain(&error), "what the store has of it stays there");
        }
        // The record goes first: a crash in between leaves something unclaimed, which the sweep finds.
        let dir = self.host.config.sandbox_dir(&id);
        let _ = std::fs::remove_file(dir.join(RECORD));
        let unused = self.part_with(&id);
        self.end(&id).await;
        self.remove_layers(unused).await;
    }

    /// Ends the processes of a sandbox and removes its files. What is left is swept later: nothing may claim it then.
    pub(super) async fn end(self: &Arc<Self>, id: &SandboxId) {
        let removed = self.keepers.call(DestroySandbox { sandbox: id.clone() }, []).await;
        self.disconnect(id).await;
        self.forget_commands(id).await;
        let cleared = self.clear_away(id.clone(), removed.is_ok()).await;
        if cleared.is_ok() {
            self.detach_volumes(id).await;
        }
        self.state().release(id);
        if let Err(error) = cleared {
            tracing::error!(sandbox = %id, error = chain(&error), "a sandbox could not be removed; it is tried again");
            self.ledger.sweep_work.notify_one();
        }
    }

    /// Removes the files of a sandbox, and all the rest of it if the keeper did not: it may be new and not know the
    /// sandbox, or have failed half way. On a thread of its own: the files may be many.
    async fn clear_away(self: &Arc<Self>, id: SandboxId, ended: bool) -> Result<()> {
        let node = Arc::clone(self);
        let clear = move || {
            let places = node.host.changes.places();
            if ended {
                sandbox::remove_files(&places, &id)
            } else {
                sandbox::remove_remains(&node.host.cgroups, &places, &id)
            }
        };
        Ok(tokio::task::spawn_blocking(clear).await.doing("remove the sandbox")??)
    }

    /// Sweeps again what could not be removed. Never returns.
    pub(super) async fn sweep_leftovers(self: Arc<Self>) {
        loop {
            self.ledger.sweep_work.notified().await;
            loop {
                tokio::time::sleep(SWEEP_REST).await;
                let swept = match self.sweep().await {
                    Ok(()) => self.detach_strangers().await,
                    Err(error) => Err(error),
                };
                match swept {
                    Ok(()) => break,
                    Err(error) => tracing::error!(error = chain(&error), "leftovers stay; they are tried again"),
                }
            }
        }
    }

    /// Removes what is not claimed.
    pub(super) async fn sweep(self: &Arc<Self>) -> Result<()> {
        self.sweep_unless(State::keeps).await
    }

    /// Removes every sandbox that the state does not keep.
    pub(super) async fn sweep_unless(self: &Arc<Self>, keeps: fn(&State, &SandboxId) -> bool) -> Result<()> {
        let node = Arc::clone(self);
        let swept = tokio::task::spawn_blocking(move || {
            sandbox::sweep(&node.host.cgroups, &node.host.changes.places(), &|id| keeps(&node.state(), id))
        });
        let swept = swept.await.doing("sweep")??;
        if !swept.is_empty() {
            tracing::warn!(count = swept.len(), "removed leftovers of sandboxes that no record claims");
        }
        Ok(())
    }

    /// Removes layers of ours that the state says are unused; images that the user gave are not removed.
    pub(super) async fn remove_layers(&self, layers: Vec<PathBuf>) {
        let config = &self.host.config;
        let points = [config.sandboxes_dir(), config.changes_dir()];
        let roots = [&points[..], &[config.templates_dir(), config.images_dir()]].concat();
        for layer in layers.into_iter().filter(|layer| roots.iter().any(|root| layer.starts_with(root))) {
            // A fork point is nothing but its layer; a template's directory goes with the template.
            let directory = match layer.parent() {
                Some(parent) if points.iter().any(|points| layer.starts_with(points)) => parent,
                Some(_) | None => &layer,
            };
            // Two sandboxes that stood on it may have gone at once: then the other one's removal was faster.
            remove_quietly(directory).await;
            if let Some(template) =
                directory.parent().filter(|_| directory.starts_with(self.host.config.templates_dir()))
            {
                // Of one that was removed while something stood on its layers, they were all that was left.
                let _ = std::fs::remove_dir(template);
            }
            self.state().layer_removed(&layer);
        }
    }
}
