//! What the scheduler of lifetimes has done on the node, and how a server that starts finds its sandboxes.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use base::id::SandboxId;
use control::{ControlError, Observed, PauseMode, Refused, Runtime, Started, State};
use model::SandboxState;

use super::platform::Platform;

/// How often it is looked for sandboxes that the node has paused.
const PAUSES_PAUSE: Duration = Duration::from_secs(1);

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
            match self.control.observe(&known.id, observed).await {
                Ok(true) => tracing::info!(sandbox = %known.id, ?observed, "what was known of a sandbox is put right"),
                // Another server has killed it meanwhile.
                Ok(false) | Err(ControlError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Notes what the node pauses by itself, again and again: `pando pause` by its socket, or a pause that was begun for a
    /// client and ended later than the request. Else a sandbox that stands still would count as one that runs.
    pub(crate) async fn note_pauses(&self) {
        let mut noted = HashSet::new();
        loop {
            let is_paused = |found: &model::Sandbox| found.state == SandboxState::Paused;
            let paused: HashSet<SandboxId> =
                self.node.sandboxes().into_iter().filter(is_paused).map(|found| found.id).collect();
            noted.retain(|id| paused.contains(id));
            for id in paused {
                if !noted.contains(&id) && self.note_pause(&id).await {
                    noted.insert(id);
                }
            }
            tokio::time::sleep(PAUSES_PAUSE).await;
        }
    }

    /// Notes that a sandbox is paused. False: it is not settled yet.
    async fn note_pause(&self, id: &SandboxId) -> bool {
        let observed = match self.control.sandboxes().find(id).await {
            // A request is about to note it.
            Ok(known) if known.doing.is_some() => return false,
            // One that runs on another server is still remembered here as it was paused.
            Ok(known) if known.state == State::Running && self.control.check_here(&known).is_ok() => {
                self.control.observe(id, Observed::Paused(PauseMode::Full)).await
            }
            Ok(_) | Err(ControlError::NotFound { .. }) => return true,
            Err(error) => Err(error),
        };
        match &observed {
            Ok(_) => tracing::info!(sandbox = %id, "the node has paused a sandbox"),
            Err(error) => tracing::warn!(sandbox = %id, error = node::chain(&error), "a pause is not noted yet"),
        }
        observed.is_ok()
    }

    /// Notes that a sandbox runs again, until the database takes it. Nothing may run that counts as paused: it has no end.
    pub(crate) fn note_resume_later(self: &Arc<Self>, id: SandboxId) {
        let platform = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PAUSES_PAUSE).await;
                let is_it = |found: &model::Sandbox| found.id == id && found.state == SandboxState::Running;
                if !platform.node.sandboxes().iter().any(is_it) {
                    return;
                }
                let gone = match platform.control.observe(&id, Observed::Running).await {
                    Ok(_) => return,
                    Err(ControlError::NotFound { .. }) => platform.remove(&id).await.is_ok(),
                    Err(_) => false,
                };
                if gone {
                    return;
                }
            }
        });
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
