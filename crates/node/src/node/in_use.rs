//! Zygotes of templates while something uses them: one whose template was built anew, or restored of a checkpoint that was replaced, is dropped
//! when the last start, fork or checkpoint is done with it.

use std::sync::{Arc, MutexGuard};

use base::id::{TemplateName, ZygoteId};

use super::Node;
use crate::state::{Readiness, State};

/// A use of a zygote, which ends when this is dropped.
pub(super) struct InUse {
    node: Arc<Node>,
    number: ZygoteId,
}

impl InUse {
    /// The zygote.
    pub(super) fn number(&self) -> ZygoteId {
        self.number
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if self.node.state().end_zygote_use(self.number) {
            let (node, number) = (Arc::clone(&self.node), self.number);
            tokio::spawn(async move { node.drop_zygote(number).await });
        }
    }
}

impl Node {
    /// Uses the zygote that a template has in this moment, if it has one.
    pub(super) fn use_parked(self: &Arc<Self>, state: &mut State, name: &TemplateName) -> Option<InUse> {
        let number = state.parked_zygote(name)?;
        Some(self.use_zygote(state, number))
    }

    /// Whether sandboxes can be started from the template now; if so, its zygote is in use.
    pub(super) fn readiness(self: &Arc<Self>, name: &TemplateName) -> crate::error::Result<(Readiness, Option<InUse>)> {
        let mut state: MutexGuard<'_, State> = self.state();
        let readiness = state.readiness(name)?;
        let in_use = match &readiness {
            Readiness::Ready(startable) => {
                startable.zygote.as_ref().map(|zygote| self.use_zygote(&mut state, zygote.number))
            }
            Readiness::Building | Readiness::Lost { .. } => None,
        };
        Ok((readiness, in_use))
    }

    fn use_zygote(self: &Arc<Self>, state: &mut State, number: ZygoteId) -> InUse {
        state.use_zygote(number);
        InUse { node: Arc::clone(self), number }
    }

    /// Drops a zygote that no template has any more, as soon as nothing uses it.
    pub(super) async fn retire_zygote(&self, number: ZygoteId) {
        let is_unused = self.state().retire_zygote(number);
        if is_unused {
            self.drop_zygote(number).await;
        }
    }
}
