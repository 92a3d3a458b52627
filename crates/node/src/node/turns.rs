//! Turns of requests for one copy: few starts of one zygote at a time.

use std::{
    collections::HashMap,
    num::NonZero,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    thread::available_parallelism,
    time::Duration,
};

use base::id::ZygoteId;
use tokio::{sync::Semaphore, time::timeout};

/// Requests for one copy that are served at a time, for each processor. Were all of many to share the processors, all would end late together;
/// one after the other half of them end in two thirds of the time that all take. More than one for each, as starts wait for the keeper and the
/// zygote, too: of 50 at once on two processors the last one ended later with 1.5 each, and the middle one a quarter later with 25 each.
const STARTS_PER_CPU: usize = 6;

/// How long a start keeps its turn: one that takes longer waits for something else than a processor, and others need not wait for that.
const TURN_MAX: Duration = Duration::from_millis(100);

/// Who has a turn, of each zygote: one that stands still keeps starts of no other one waiting.
#[derive(Debug, Default)]
pub(super) struct Turns {
    by_zygote: Mutex<HashMap<ZygoteId, Arc<Semaphore>>>,
}

impl Turns {
    /// Does this when it is its turn. The turn ends after [`TURN_MAX`] in any case, so that N starts that are stuck delay others of the same
    /// zygote by that time for each [`STARTS_PER_CPU`] of them and processor.
    pub(super) async fn take<T>(&self, zygote: ZygoteId, start: impl Future<Output = T>) -> T {
        let mut start = pin!(start);
        let turns = self.of(zygote);
        // It fails only when it is closed, which nobody does.
        if let Ok(_turn) = turns.acquire().await
            && let Ok(started) = timeout(TURN_MAX, &mut start).await
        {
            return started;
        }
        start.await
    }

    fn of(&self, zygote: ZygoteId) -> Arc<Semaphore> {
        let mut turns = self.by_zygote.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turns| Arc::strong_count(turns) > 1);
        let at_once = STARTS_PER_CPU * available_parallelism().map_or(1, NonZero::get);
        turns.entry(zygote).or_insert_with(|| Arc::new(Semaphore::new(at_once))).clone()
    }
}
