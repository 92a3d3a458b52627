//! Work that blocks, on threads beside the runtime, and not too much of it.
//!
//! The store's own requests need such threads, too, and what waits for them must not have taken them all: each kind of work has a bound, together
//! far below what the runtime has. One kind does not wait for another: while writers wait for a store that is away, others read.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::{
    failure::{Failure, Result},
    limits::{CHANGES, FOLLOWS, READS, STEPS, WHOLES, WRITES},
};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// One step on a tree, that changes nothing.
    Step,
    /// A file that is sent to a client, which may be slow.
    Read,
    /// One that changes something; may wait until less is dirty.
    Change,
    /// A file that comes from a client, which may be slow; may wait, too.
    Write,
    /// Of a volume as a whole: opening, committing, closing.
    Whole,
    /// A look for what another node has committed: there may be as many as volumes, and each waits for the heads.
    Follow,
}

pub(crate) struct Work {
    steps: Arc<Semaphore>,
    changes: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
    wholes: Arc<Semaphore>,
    follows: Arc<Semaphore>,
}

impl Work {
    pub(crate) fn new() -> Self {
        let bounds = [STEPS, CHANGES, READS, WRITES, WHOLES, FOLLOWS].map(|most| Arc::new(Semaphore::new(most)));
        let [steps, changes, reads, writes, wholes, follows] = bounds;
        Self { steps, changes, reads, writes, wholes, follows }
    }

    /// Does `work`. If nobody waits for its end any more it is done all the same.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        kind: Kind,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let bound = match kind {
            Kind::Step => &self.steps,
            Kind::Change => &self.changes,
            Kind::Read => &self.reads,
            Kind::Write => &self.writes,
            Kind::Whole => &self.wholes,
            Kind::Follow => &self.follows,
        };
        let permit = bound.clone().acquire_owned().await.map_err(|_| Failure::Interrupted)?;
        let work = move || {
            let done = work();
            drop(permit);
            done
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| Failure::Interrupted)?
    }
}
