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

/// What each thread that has served a request works on.
static ALL: Mutex<Vec<Arc<Serving>>> = Mutex::new(Vec::new());

/// What a thread works on.
#[derive(Debug, Default)]
struct Serving {
    /// Of which volume: see [`Engine::serving`](crate::Engine::serving). As long as no request is served it says nothing.
    volume: AtomicU64,
    /// The request; 0 between requests.
    request: AtomicU64,
}

thread_local! {
    /// What this thread works on.
    static REQUEST: Arc<Serving> = {
        let request = Arc::<Serving>::default();
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of threads that have ended.
        all.retain(|other| Arc::strong_count(other) > 1);
        all.push(request.clone());
        request
    };

    /// Whether it has changed something.
    static CHANGED: Cell<bool> = const { Cell::new(false) };
}

/// Does `work`, whose changes are those of the kernel's request `number` to `volume`, and which answers it. One request makes one change that
/// matters: the first.
///
/// A thread serves one request at a time, so the number goes with the thread rather than through each of the engine's functions.
pub(crate) fn serving<T>(volume: u64, number: u64, work: impl FnOnce() -> T) -> T {
    /// Also when the work panics.
    struct Ended;
    impl Drop for Ended {
        fn drop(&mut self) {
            REQUEST.with(|serving| serving.request.store(0, Ordering::SeqCst));
        }
    }
    CHANGED.set(false);
    REQUEST.with(|serving| {
        serving.volume.store(volume, Ordering::SeqCst);
        serving.request.store(number, Ordering::SeqCst);
    });
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
        REQUEST.with(|serving| serving.request.store(0, Ordering::SeqCst));
        wait();
        REQUEST.with(|serving| serving.request.store(number, Ordering::SeqCst));
    }
}

/// It changes something now.
pub(crate) fn changes() {
    CHANGED.set(true);
}

pub(crate) fn current() -> u64 {
    REQUEST.with(|serving| serving.request.load(Ordering::Relaxed))
}

/// Waits until every request to `volume` that is being served now is answered; false if that takes longer than `patience`. What an answered request
/// has done need not be known any more. Requests to other volumes may take as long as they like.
pub(crate) fn all_answered(volume: u64, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner).clone();
    all.into_iter().all(|serving| {
        let now = serving.request.load(Ordering::SeqCst);
        let unanswered =
            || serving.request.load(Ordering::SeqCst) == now && serving.volume.load(Ordering::SeqCst) == volume;
        while now != 0 && unanswered() {
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
    fn a_volume_waits_for_its_own_requests_until_they_are_answered() {
        let ((began, begins), (end, ends)) = (channel(), channel::<()>());
        let thread = thread::spawn(move || {
            serving(1, 7, || {
                began.send(current()).unwrap();
                ends.recv().unwrap();
            });
            current()
        });
        assert_eq!(begins.recv().unwrap(), 7);
        assert!(!all_answered(1, Duration::from_millis(5)));
        assert!(all_answered(2, Duration::ZERO));
        end.send(()).unwrap();
        assert!(all_answered(1, Duration::from_secs(60)));
        assert_eq!(thread.join().unwrap(), 0);
    }
}
