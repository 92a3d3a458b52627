//! Turns: so many at a time, of one team and of all.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use base::id::TeamId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(super) struct Turns {
    of_team: usize,
    /// Of those that have turns, or wait for one.
    teams: Mutex<HashMap<TeamId, Arc<Semaphore>>>,
    all: Arc<Semaphore>,
}

/// It is the next one's when this is dropped.
pub(super) struct Turn {
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl Turns {
    pub(super) fn new(of_team: usize, of_all: usize) -> Self {
        Self { of_team, teams: Mutex::default(), all: Arc::new(Semaphore::new(of_all)) }
    }

    /// Waits until the team, and all together, may have one more.
    pub(super) async fn take(&self, team: &TeamId) -> Turn {
        let own = {
            let mut teams = self.teams.lock().unwrap_or_else(PoisonError::into_inner);
            teams.retain(|_, turns| Arc::strong_count(turns) > 1);
            Arc::clone(teams.entry(team.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.of_team))))
        };
        // They are never closed.
        let own = own.acquire_owned().await.ok();
        Turn { _permits: [own, Arc::clone(&self.all).acquire_owned().await.ok()] }
    }
}
