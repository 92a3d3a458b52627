//! Holds writers back while too much is in memory and in the log only, and wakes whoever commits.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    /// Bytes that are in memory and in the log only.
    dirty_bytes: u64,
    /// Nobody waits where nobody commits.
    committing: bool,
    /// Writers wait, or somebody wants the committer to end.
    wanted: bool,
}

impl Pressure {
    /// Waits while there are more than `bytes_max` dirty bytes and somebody commits.
    pub(crate) fn wait(&self, bytes_max: u64) {
        let mut held = self.lock();
        while held.committing && held.dirty_bytes > bytes_max {
            held.wanted = true;
            self.changed.notify_all();
            held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Tells how many dirty bytes there are now.
    pub(crate) fn set(&self, dirty_bytes: u64) {
        self.lock().dirty_bytes = dirty_bytes;
        self.changed.notify_all();
    }

    /// Somebody commits from now on, or nobody does.
    pub(crate) fn set_committing(&self, committing: bool) {
        let mut held = self.lock();
        held.committing = committing;
        held.wanted = false;
        self.changed.notify_all();
    }

    /// For the committer: waits for `pause` or until it is wanted; false if it shall end.
    pub(crate) fn sleep(&self, pause: Duration) -> bool {
        let idle = |held: &mut Held| held.committing && !held.wanted;
        let slept = self.changed.wait_timeout_while(self.lock(), pause, idle);
        let (mut held, _) = slept.unwrap_or_else(PoisonError::into_inner);
        held.wanted = false;
        held.committing
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
