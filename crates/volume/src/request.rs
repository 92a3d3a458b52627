//! Requests that are asked again. When the process that serves a mount dies, the kernel asks its successor everything again that was not
//! answered, and of some of that the answer only was missing: it was done, and is in the log. Doing it again would be an error (a name
//! that exists, a name that is gone) that no program has caused. So the log has the kernel's number with each change, and the
//! successor knows what was done.

use std::{
    cell::Cell,
    collections::{HashMap, VecDeque},
};

use crate::{apply::Outcome, inode::Ino, limits::REQUESTS_KNOWN};

thread_local! {
    /// What this thread works on.
    static REQUEST: Cell<u64> = const { Cell::new(0) };
}

/// Does `work`, whose changes are those of the kernel's request `number`. One request makes one change that matters: the first.
///
/// A thread serves one request at a time, so the number goes with the thread rather than through each of the engine's functions.
pub fn serving<T>(number: u64, work: impl FnOnce() -> T) -> T {
    /// Also when the work panics.
    struct Ended;
    impl Drop for Ended {
        fn drop(&mut self) {
            REQUEST.set(0);
        }
    }
    REQUEST.set(number);
    let _ended = Ended;
    work()
}

pub(crate) fn current() -> u64 {
    REQUEST.get()
}

/// What a change that was done already had to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// The inode that was made or changed.
    pub ino: Option<Ino>,
    /// Bytes that were copied.
    pub bytes: u64,
}

/// The last requests that a log was replayed for.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    done: HashMap<u64, Done>,
    order: VecDeque<u64>,
}

impl Requests {
    pub(crate) fn add(&mut self, number: u64, Outcome { ino, bytes }: Outcome) {
        if number == 0 || self.done.contains_key(&number) {
            return;
        }
        self.done.insert(number, Done { ino, bytes });
        self.order.push_back(number);
        if self.order.len() > REQUESTS_KNOWN {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.done.remove(&oldest));
        }
    }

    pub(crate) fn get(&self, number: u64) -> Option<Done> {
        self.done.get(&number).copied()
    }
}
