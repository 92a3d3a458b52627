//! What the scheduler of lifetimes has done on the node, and how a server that starts finds its sandboxes.

use std::sync::Arc;

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
        self.0.remove(id).await.map_err(|failed| Refused { reason: failed.body().message })
    }

    async fn pause(&self, id: &SandboxId, mode: PauseMode) -> Result<(), Refused> {
        self.0.pause(id, mode).await.map_err(|failed| Refused { reason: failed.body().message })
    }
}

impl Platform {
    /// Brings what is known of sandboxes in line with the node, which may have lost some, or paused some, meanwhile.
    pub(crate) async fn catch_up(&self) -> Result<(), ControlError> {
        for known in self.control.sandboxes().all().await? {
            let state =
                self.node.sandboxes().into_iter().find(|sandbox| sandbox.id == known.id).map(|found| found.state);
            let observed = match (state, known.state) {
                (Some(SandboxState::Paused), State::Paused(mode)) => Observed::Paused(mode),
                (Some(SandboxState::Paused), State::Running) => Observed::Paused(PauseMode::Full),
                (Some(_), _) => Observed::Running,
                // Another node may have it.
                (None, State::Paused(mode)) => Observed::Paused(mode),
                (None, State::Running) => Observed::Gone,
            };
            if self.control.observe(&known.id, observed).await? {
                tracing::info!(sandbox = %known.id, ?observed, "what was known of a sandbox is put right");
            }
        }
        Ok(())
    }
}
