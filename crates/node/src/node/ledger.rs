//! The state of the node behind one lock, the bells of those who work on it in the background, and the counts of what was done.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::metrics::Metrics;
use crate::{lineage::Lineage, state::State};

/// See the module.
pub(super) struct Ledger {
    state: Mutex<State>,
    lineage: Mutex<Lineage>,
    /// Counts changes of templates; waiters look again.
    pub(super) changes: watch::Sender<u64>,
    /// The pool may have room, or a start has ended.
    pub(super) pool_work: Notify,
    /// Limits are to be bound.
    pub(super) limits_work: Notify,
    /// Something could not be removed.
    pub(super) sweep_work: Notify,
    /// What was done so far.
    pub(super) metrics: Metrics,
}

impl Ledger {
    pub(super) fn new(state: State, lineage: Lineage) -> Self {
        Self {
            state: Mutex::new(state),
            lineage: Mutex::new(lineage),
            changes: watch::Sender::new(0),
            pool_work: Notify::new(),
            limits_work: Notify::new(),
            sweep_work: Notify::new(),
            metrics: Metrics::new(),
        }
    }

    /// The state, for a moment: never across an await.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it is held is a bug in a pure function; its data is then as good as any.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sandboxes that are gone, for a moment as well. The state may be taken meanwhile, not the other way round.
    pub(super) fn lineage(&self) -> MutexGuard<'_, Lineage> {
        self.lineage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A template has changed.
    pub(super) fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
        self.pool_work.notify_one();
    }
}
