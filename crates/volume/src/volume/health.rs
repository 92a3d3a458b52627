//! How commits go, or following them, for whoever has to know: people, and those who measure.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use rustix::io::Errno;

use super::Volume;
use crate::VolumeError;

/// How the commits of a volume have gone since it was opened.
#[derive(Debug, Clone)]
pub struct Health {
    /// When the store had everything: the last commit's end, or the opening. Of what follows another node: when it last had everything that
    /// the store has.
    pub committed: Instant,
    /// Commits that failed.
    pub failures: u64,
    /// Why the last one did, if it did.
    pub failure: Option<String>,
}

/// Health as it changes.
#[derive(Debug)]
pub(super) struct Watched {
    health: Mutex<Health>,
}

impl Default for Watched {
    fn default() -> Self {
        Self { health: Mutex::new(Health { committed: Instant::now(), failures: 0, failure: None }) }
    }
}

impl Watched {
    /// A commit, or an attempt to follow, has ended so.
    pub(super) fn note<T>(&self, commit: &Result<T, VolumeError>) {
        let mut health = self.lock();
        match commit {
            Ok(_) => (health.committed, health.failure) = (Instant::now(), None),
            Err(error) => {
                health.failures += 1;
                health.failure = Some(base::error::chain(error));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volume {
    /// How commits go. Does not wait for one that is under way.
    pub fn health(&self) -> Health {
        self.health.lock().clone()
    }

    /// Bytes that can be written now: what the quota leaves; while the store is away no more than writers may have ahead of it; none where nothing
    /// may be changed.
    pub fn bytes_available(&self) -> Result<u64, Errno> {
        let (usage, is_away) = (self.engine.usage()?, self.health.lock().failure.is_some());
        let free = usage.bytes_max.saturating_sub(usage.bytes);
        match (self.engine.is_read_only(), is_away) {
            (true, _) => Ok(0),
            (false, true) => {
                Ok(free.min(self.engine.memory().dirty_bytes_max.saturating_sub(self.engine.dirty_bytes()?)))
            }
            (false, false) => Ok(free),
        }
    }
}
