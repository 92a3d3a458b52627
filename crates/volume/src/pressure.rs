//! Wakes whoever commits when much is in memory and in the log only, and holds writers back when it is too much.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::limits::COMMIT_SHARE;

/// See the module.
#[derive(Debug)]
pub(crate) struct Pressure {
    bytes_max: u64,
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    /// Bytes that are in memory and in the log only.
    dirty_bytes: u64,
    /// Nobody waits where nobody commits.
    committing: bool,
    /// There is enough for a commit before its time.
    wanted: bool,
}

/// What the committer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// The time, or enough that is dirty.
    Work,
    /// The time: the last commit has failed, and that there is enough is known.
    Backoff,
}

impl Pressure {
    /// Writers wait above so many dirty bytes.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, held: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits while too much is dirty and somebody commits.
    pub(crate) fn wait(&self) {
        let too_much = |held: &mut Held| held.committing && held.dirty_bytes > self.bytes_max;
        // The guard is all that there is to see of a wait.
        drop(self.changed.wait_while(self.lock(), too_much));
    }

    /// Whether it is time to [`Pressure::set`].
    pub(crate) fn concerns(&self, dirty_bytes: u64) -> bool {
        dirty_bytes > self.bytes_max / COMMIT_SHARE
    }

    /// Tells how many dirty bytes there are now.
    pub(crate) fn set(&self, dirty_bytes: u64) {
        let mut held = self.lock();
        held.dirty_bytes = dirty_bytes;
        held.wanted = self.concerns(dirty_bytes);
        self.changed.notify_all();
    }

    /// Somebody commits from now on, or nobody does.
    pub(crate) fn set_committing(&self, committing: bool) {
        self.lock().committing = committing;
        self.changed.notify_all();
    }

    /// For the committer: waits for `time` at most; false if it shall end.
    pub(crate) fn sleep(&self, time: Duration, pause: Pause) -> bool {
        let idle = |held: &mut Held| held.committing && (pause == Pause::Backoff || !held.wanted);
        let slept = self.changed.wait_timeout_while(self.lock(), time, idle);
        let (mut held, _) = slept.unwrap_or_else(PoisonError::into_inner);
        held.wanted = false;
        held.committing
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
