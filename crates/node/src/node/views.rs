//! What sandboxes see of their memory, kept up to date while they run.

use std::{collections::HashMap, sync::Arc, time::Duration};

use base::id::SandboxId;

use super::Node;
use crate::error::chain;

/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A change that is worth showing, in bytes.
const CHANGE_MIN: u64 = 1 << 20;

impl Node {
    /// Shows each sandbox what it has left. Never returns.
    pub(super) async fn show_memory(self: Arc<Self>) {
        let mut shown = HashMap::new();
        loop {
            tokio::time::sleep(LOOK).await;
            let node = Arc::clone(&self);
            // A panic is logged, and all is shown anew.
            shown = tokio::task::spawn_blocking(move || node.show_changed_memory(&shown)).await.unwrap_or_default();
        }
    }

    /// What is shown then, by sandbox.
    fn show_changed_memory(&self, shown: &HashMap<SandboxId, u64>) -> HashMap<SandboxId, u64> {
        let ids: Vec<SandboxId> = self.state().sandboxes().into_iter().map(|record| record.id).collect();
        ids.into_iter()
            .filter_map(|id| Some((id.clone(), self.show_memory_of(&id, shown.get(&id).copied())?)))
            .collect()
    }

    fn show_memory_of(&self, id: &SandboxId, shown: Option<u64>) -> Option<u64> {
        let group = self.host.cgroups.memory_of(id)?;
        let used = group.used_bytes()?;
        if let Some(shown) = shown.filter(|shown| shown.abs_diff(used) < CHANGE_MIN) {
            return Some(shown);
        }
        if let Err(error) = sandbox::show_memory(&self.host.changes.of(id), &group.share()?) {
            tracing::debug!(sandbox = %id, error = chain(&error), "it does not see what it uses");
        }
        Some(used)
    }
}
