//! What the scheduler of lifetimes has done on the node, and how a server that starts finds its sandboxes.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use base::id::SandboxId;
use control::{ControlError, Observed, PauseMode, Refused, Runtime, Started, State};
use model::SandboxState;

use super::platform::Platform;

/// The node, for the scheduler.
pub(crate) struct OnNode(pub(crate) Arc<Platform>);

impl std::fmt::Debug for OnNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnNode")
    }
}

#[async_trait]
impl Runtime for OnNode {
    async fn kill(&self, id: &SandboxId) -> Result<(), Refused> {
        self.0.remove(id).await.map_err(|failed| Refused { reason: failed.body().message })
    }

    async fn pause(&self, id: &SandboxId, mode: PauseMode) -> Result<(), Refused> {
        self.0.pause(id, mode).await.map_err(|failed| Refused { reason: failed.body().message })
    }
}

impl Platform {
    /// Brings what is known of sandboxes in line with the node, which may have lost some, or paused some, meanwhile.
    pub(crate) async fn catch_up(self: &Arc<Self>) -> Result<(), ControlError> {
        self.control.appear().await?;
        self.sweep().await?;
        let on_node: HashMap<_, _> = self.node.sandboxes().into_iter().map(|found| (found.id, found.state)).collect();
        for known in self.control.sandboxes().of_this_server().await? {
            let observed = match (on_node.get(&known.id), known.state) {
                (Some(SandboxState::Paused), State::Paused(mode)) => Observed::Paused(mode),
                (Some(SandboxState::Paused), State::Running) => Observed::Paused(PauseMode::Full),
                (Some(SandboxState::Lost), _) => Observed::Gone,
                (Some(_), _) => Observed::Running,
                // Another node may have it.
                (None, State::Paused(mode)) => Observed::Paused(mode),
                // It is of before servers were noted, and another server may have it.
                (None, State::Running) if known.server.is_empty() && self.shares() => continue,
                (None, State::Running) => Observed::Gone,
            };
            if observed == Observed::Gone
                && let Err(failed) = self.remove(&known.id).await
            {
                tracing::warn!(sandbox = %known.id, error = failed.body().message, "what is left of a sandbox stays");
            }
            if self.control.observe(&known.id, observed).await? {
                tracing::info!(sandbox = %known.id, ?observed, "what was known of a sandbox is put right");
            }
        }
        Ok(())
    }

    /// Removes what an earlier process of this server started and did not confirm: no team has it. Requests that come
    /// again make their sandboxes anew.
    async fn sweep(self: &Arc<Self>) -> Result<(), ControlError> {
        let started = self.node.reserved().into_iter().map(|(id, batch)| Started { id, batch }).collect();
        let mut all_gone = true;
        for id in self.control.sandboxes().unconfirmed(started).await? {
            match self.remove(&id).await {
                Ok(()) => tracing::info!(sandbox = %id, "a start was broken off: its sandbox is removed"),
                Err(failed) => {
                    all_gone = false;
                    tracing::warn!(sandbox = %id, error = failed.body().message, "a sandbox that no team has stays");
                }
            }
        }
        // What stays is found again by its reservation.
        if all_gone { self.control.sandboxes().drop_own_reservations().await } else { Ok(()) }
    }

    /// Whether other servers may have sandboxes of the same database.
    pub(crate) fn shares(&self) -> bool {
        self.node.config().durable.database.is_some()
    }
}
