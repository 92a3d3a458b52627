//! One flight per chunk: whoever asks for a chunk that is being fetched waits for that.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::sync::OnceCell;

use super::ChunkError;
use crate::segment::ChunkRef;

type Outcome = Arc<OnceCell<Result<Bytes, ChunkError>>>;

#[derive(Default)]
pub(super) struct Flights {
    under_way: Mutex<HashMap<ChunkRef, Flight>>,
}

#[derive(Default)]
struct Flight {
    outcome: Outcome,
    seats: usize,
}

/// One that waits. The last to leave removes the flight, also when it is cancelled.
struct Seat<'a> {
    flights: &'a Flights,
    chunk: ChunkRef,
    outcome: Outcome,
}

impl Flights {
    /// The outcome of the flight for `chunk`: of `work`, if there is none under way. If the one that works is cancelled, another that
    /// waits takes over with its own `work`.
    pub(super) async fn join(
        &self,
        chunk: ChunkRef,
        work: impl Future<Output = Result<Bytes, ChunkError>>,
    ) -> Result<Bytes, ChunkError> {
        let seat = self.seat(chunk);
        seat.outcome.get_or_init(|| work).await.clone()
    }

    fn seat(&self, chunk: ChunkRef) -> Seat<'_> {
        let mut under_way = self.lock();
        let flight = under_way.entry(chunk).or_default();
        flight.seats += 1;
        Seat { flights: self, chunk, outcome: flight.outcome.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ChunkRef, Flight>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut under_way = self.flights.lock();
        let Some(flight) = under_way.get_mut(&self.chunk) else { return };
        if !Arc::ptr_eq(&flight.outcome, &self.outcome) {
            return;
        }
        flight.seats -= 1;
        // An outcome is for those that waited; who comes later asks the cache.
        if flight.seats == 0 || flight.outcome.initialized() {
            under_way.remove(&self.chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering::Relaxed},
        time::Duration,
    };

    use super::*;
    use crate::id::SegmentId;

    fn chunk() -> ChunkRef {
        ChunkRef { segment: SegmentId([1; 16]), offset: 0, length: 24, number: 0 }
    }

    #[tokio::test]
    async fn many_that_ask_at_once_cause_one_flight() {
        let (flights, flown) = (Flights::default(), AtomicU32::new(0));
        let ask = || {
            flights.join(chunk(), async {
                flown.fetch_add(1, Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
                Ok(Bytes::from_static(b"plain"))
            })
        };
        for answer in futures::future::join_all((0..100).map(|_| ask())).await {
            assert_eq!(answer.unwrap(), "plain");
        }
        assert_eq!((flown.load(Relaxed), flights.count()), (1, 0));
    }

    #[tokio::test]
    async fn a_failure_reaches_all_that_waited_and_is_not_kept() {
        let flights = Flights::default();
        let fail = || flights.join(chunk(), async { Err(ChunkError::Damaged { chunk: chunk() }) });
        let (first, second) = tokio::join!(fail(), fail());
        assert!(first.is_err() && second.is_err());
        let good = flights.join(chunk(), async { Ok(Bytes::new()) }).await;
        assert!(good.is_ok() && flights.count() == 0);
    }

    #[tokio::test]
    async fn a_cancelled_flight_is_taken_over_or_forgotten() {
        let flights = Flights::default();
        let never = flights.join(chunk(), std::future::pending());
        let waits = flights.join(chunk(), async { Ok(Bytes::from_static(b"second")) });
        let (_, answer) = tokio::join!(tokio::time::timeout(Duration::from_millis(20), never), waits);
        assert_eq!(answer.unwrap(), "second");
        let alone = flights.join(chunk(), std::future::pending());
        assert!(tokio::time::timeout(Duration::from_millis(20), alone).await.is_err());
        assert_eq!(flights.count(), 0);
    }
}
