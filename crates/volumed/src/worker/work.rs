//! Work that blocks, on threads beside the runtime, and not too much of it.
//!
//! The store's own requests need such threads, too, and what waits for them must not have taken them all: each kind of work has a bound, together
//! far below what the runtime has. One kind does not wait for another: while writers wait for a store that is away, others read. Within a kind one
//! volume does not wait for another ([`Turns`]): while 64 clients read one volume slowly, others read the next.

use std::sync::Arc;

use base::id::VolumeName;
use tokio::sync::Semaphore;

use super::turns::Turns;
use crate::{
    failure::{Failure, Result},
    limits::{CHANGES, FOLLOWS, READS, STEPS, WHOLES, WRITES},
};

/// What is done in one open volume. See the module.
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
}

pub(crate) struct Work {
    steps: Turns,
    changes: Turns,
    reads: Turns,
    writes: Turns,
    wholes: Arc<Semaphore>,
    follows: Arc<Semaphore>,
}

impl Work {
    pub(crate) fn new() -> Self {
        let [steps, changes, reads, writes] = [STEPS, CHANGES, READS, WRITES].map(Turns::new);
        let [wholes, follows] = [WHOLES, FOLLOWS].map(|most| Arc::new(Semaphore::new(most)));
        Self { steps, changes, reads, writes, wholes, follows }
    }

    /// Does `work` in `volume` when it has its turn. If nobody waits for its end any more it is done all the same.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        kind: Kind,
        volume: &VolumeName,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let turns = match kind {
            Kind::Step => &self.steps,
            Kind::Change => &self.changes,
            Kind::Read => &self.reads,
            Kind::Write => &self.writes,
        };
        let turn = turns.take(volume).await.ok_or(Failure::Interrupted)?;
        block(turn, work).await
    }

    /// Does what concerns a volume as a whole: opening, committing, closing.
    pub(crate) async fn run_whole<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        run_within(&self.wholes, work).await
    }

    /// Looks for what another node has committed: there may be as many as volumes, and each waits for the heads.
    pub(crate) async fn run_follow<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        run_within(&self.follows, work).await
    }
}

async fn run_within<T: Send + 'static>(
    bound: &Arc<Semaphore>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let permit = bound.clone().acquire_owned().await.map_err(|_| Failure::Interrupted)?;
    block(permit, work).await
}

/// Does `work` on a thread that may block. `permit` is held until its end.
async fn block<T: Send + 'static>(
    permit: impl Send + 'static,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let work = move || {
        let done = work();
        drop(permit);
        done
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| Failure::Interrupted)?
}
