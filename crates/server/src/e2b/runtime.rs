//! What the scheduler of lifetimes has done on the node, and how a server that starts finds its sandboxes.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use base::id::SandboxId;
use control::{ControlError, Observed, PauseMode, Refused, Runtime, State};
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
        if self.0.shares() && self.0.node.sandboxes().iter().all(|found| found.id != *id) {
            return Err(Refused { reason: "it is not on this node: another server has it".to_owned() });
        }
        self.0.remove(id).await.map_err(|failed| Refused { reason: failed.body().message })
    }

    async fn pause(&self, id: &SandboxId, mode: PauseMode) -> Result<(), Refused> {
        self.0.pause(id, mode).await.map_err(|failed| Refused { reason: failed.body().message })
    }
}

impl Platform {
    /// Brings what is known of sandboxes in line with the node, which may have lost some, or paused some, meanwhile.
    pub(crate) async fn catch_up(self: &Arc<Self>) -> Result<(), ControlError> {
        let on_node: HashMap<_, _> = self.node.sandboxes().into_iter().map(|found| (found.id, found.state)).collect();
        for known in self.control.sandboxes().all().await? {
            let observed = match (on_node.get(&known.id), known.state) {
                (Some(SandboxState::Paused), State::Paused(mode)) => Observed::Paused(mode),
                (Some(SandboxState::Paused), State::Running) => Observed::Paused(PauseMode::Full),
                (Some(SandboxState::Lost), _) => Observed::Gone,
                (Some(_), _) => Observed::Running,
                // Another node may have it.
                (None, State::Paused(mode)) => Observed::Paused(mode),
                (None, State::Running) if self.shares() => continue,
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

    /// Whether other servers may have sandboxes of the same database.
    fn shares(&self) -> bool {
        self.node.config().durable.database.is_some()
    }
}
