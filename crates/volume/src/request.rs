//! Requests that are asked again. When the process that serves a mount dies, the kernel asks its successor everything again that was not
//! answered, and of some of that the answer only was missing: it was done, and is in the log. Doing it again would be an error (a name
//! that exists, a name that is gone) that no program has caused. So the log has the kernel's number with each change, and the
//! successor knows what was done.

use std::{
    cell::Cell,
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{apply::Outcome, inode::Ino, limits::REQUESTS_KNOWN};

/// What each thread that has served a request works on; 0 between requests.
static ALL: Mutex<Vec<Arc<AtomicU64>>> = Mutex::new(Vec::new());

thread_local! {
    /// What this thread works on.
    static REQUEST: Arc<AtomicU64> = {
        let request = Arc::<AtomicU64>::default();
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of threads that have ended.
        all.retain(|other| Arc::strong_count(other) > 1);
        all.push(request.clone());
        request
    };

    /// Whether it has changed something.
    static CHANGED: Cell<bool> = const { Cell::new(false) };
}

/// Does `work`, whose changes are those of the kernel's request `number`, and which answers it. One request makes one change that
/// matters: the first.
///
/// A thread serves one request at a time, so the number goes with the thread rather than through each of the engine's functions.
pub fn serving<T>(number: u64, work: impl FnOnce() -> T) -> T {
    /// Also when the work panics.
    struct Ended;
    impl Drop for Ended {
        fn drop(&mut self) {
            REQUEST.with(|request| request.store(0, Ordering::SeqCst));
        }
    }
    CHANGED.set(false);
    REQUEST.with(|request| request.store(number, Ordering::SeqCst));
    let _ended = Ended;
    work()
}

/// Has a request `wait` before its first change. Until then it has done nothing that would have to be known, so nobody waits for its answer.
pub(crate) fn wait_before_changes(wait: impl FnOnce()) {
    let number = current();
    if number == 0 {
        return wait();
    }
    if !CHANGED.get() {
        REQUEST.with(|request| request.store(0, Ordering::SeqCst));
        wait();
        REQUEST.with(|request| request.store(number, Ordering::SeqCst));
    }
}

/// It changes something now.
pub(crate) fn changes() {
    CHANGED.set(true);
}

pub(crate) fn current() -> u64 {
    REQUEST.with(|request| request.load(Ordering::Relaxed))
}

/// Waits until every request that is being served now is answered; false if that takes longer than `patience`. What an answered request
/// has done need not be known any more.
pub(crate) fn all_answered(patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner).clone();
    all.into_iter().all(|request| {
        let now = request.load(Ordering::SeqCst);
        while now != 0 && request.load(Ordering::SeqCst) == now {
            if Instant::now() > until {
                return false;
            }
            thread::sleep(Duration::from_micros(50));
        }
        true
    })
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_request_is_waited_for_until_it_is_answered() {
        let ((began, begins), (end, ends)) = (channel(), channel::<()>());
        let thread = thread::spawn(move || {
            serving(7, || {
                began.send(current()).unwrap();
                ends.recv().unwrap();
            });
            current()
        });
        assert_eq!(begins.recv().unwrap(), 7);
        assert!(!all_answered(Duration::from_millis(5)));
        end.send(()).unwrap();
        assert!(all_answered(Duration::from_secs(60)));
        assert_eq!(thread.join().unwrap(), 0);
    }
}
