//! What the fetch threads have to do: fair between processes.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{image::backoff, lock, process::Process};
use crate::limits::FETCH_THREADS;

/// How long the kernel may take to change mappings, usually.
const LATER: Duration = Duration::from_micros(100);

/// A process waits for the page at an address.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) process: Arc<Process>,
    /// Where the process touched it.
    pub(super) address: u64,
    /// When the fault was read.
    pub(super) since: Instant,
    due: Instant,
    tries: u32,
}

impl Wanted {
    pub(super) fn new(process: &Arc<Process>, address: u64, since: Instant) -> Self {
        Self { process: Arc::clone(process), address, since, due: since, tries: 0 }
    }

    /// Not now, but soon.
    pub(super) fn later(self) -> Self {
        Self { due: Instant::now() + LATER, ..self }
    }

    /// After a failure: later each time.
    pub(super) fn after_failure(self) -> Self {
        let tries = self.tries + 1;
        Self { due: Instant::now() + backoff(tries), tries, ..self }
    }
}

/// Work for a thread that may wait.
#[derive(Debug)]
pub(super) enum Job {
    /// Open this image.
    Open(usize),
    /// Kill this process.
    Kill(Arc<Process>),
    /// Answer a fault.
    Answer(Wanted),
}

#[derive(Debug, Default)]
struct Queues {
    opens: VecDeque<usize>,
    dooms: VecDeque<Arc<Process>>,
    /// By process: each has its turn.
    faults: BTreeMap<usize, VecDeque<Wanted>>,
    /// The process that had its turn last.
    last: usize,
    /// By process: threads that work for it.
    busy: HashMap<usize, usize>,
}

/// The queues, and who waits for them.
#[derive(Debug, Default)]
pub(super) struct Demand {
    queues: Mutex<Queues>,
    changed: Condvar,
    /// Faults in the queues.
    waiting: AtomicUsize,
}

impl Queues {
    /// The next fault that is due, of the next process in turn; or when there will be one.
    fn next(&mut self, now: Instant) -> Result<Wanted, Option<Instant>> {
        let after = self.faults.range(self.last + 1..).chain(self.faults.range(..=self.last));
        let mut soonest: Option<Instant> = None;
        let mut found = None;
        for (index, queue) in after {
            if self.busy.get(index).is_some_and(|busy| *busy >= FETCH_THREADS / 2) {
                continue;
            }
            // Those that were put off stand between others that were not.
            let Some((place, wanted)) = queue.iter().enumerate().min_by_key(|(_, wanted)| wanted.due) else { continue };
            if wanted.due <= now {
                found = Some((*index, place));
                break;
            }
            soonest = Some(soonest.map_or(wanted.due, |soonest| soonest.min(wanted.due)));
        }
        let (index, place) = found.ok_or(soonest)?;
        let queue = self.faults.get_mut(&index).ok_or(None)?;
        let wanted = queue.remove(place).ok_or(None)?;
        if queue.is_empty() {
            self.faults.remove(&index);
        }
        self.last = index;
        *self.busy.entry(index).or_default() += 1;
        Ok(wanted)
    }

    fn take(&mut self, now: Instant) -> Result<Job, Option<Instant>> {
        if let Some(process) = self.dooms.pop_front() {
            return Ok(Job::Kill(process));
        }
        self.next(now).map(Job::Answer).or_else(|soonest| self.opens.pop_front().map(Job::Open).ok_or(soonest))
    }
}

impl Demand {
    fn change(&self, change: impl FnOnce(&mut Queues)) {
        change(&mut lock(&self.queues));
        self.changed.notify_one();
    }

    pub(super) fn add(&self, wanted: Wanted) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.change(|queues| queues.faults.entry(wanted.process.record.index).or_default().push_back(wanted));
    }

    pub(super) fn open(&self, image: usize) {
        self.change(|queues| {
            if !queues.opens.contains(&image) {
                queues.opens.push_back(image);
            }
        });
    }

    pub(super) fn doom(&self, process: Arc<Process>) {
        self.change(|queues| queues.dooms.push_back(process));
    }

    /// How many faults wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The next job; waits for one.
    pub(super) fn take(&self) -> Job {
        let mut queues = lock(&self.queues);
        loop {
            let now = Instant::now();
            queues = match queues.take(now) {
                Ok(job) => {
                    if matches!(job, Job::Answer(_)) {
                        self.waiting.fetch_sub(1, Ordering::Relaxed);
                    }
                    return job;
                }
                Err(None) => self.changed.wait(queues).unwrap_or_else(PoisonError::into_inner),
                Err(Some(due)) => {
                    self.changed.wait_timeout(queues, due - now).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// A thread has done what it took for this process.
    pub(super) fn done(&self, process: usize) {
        self.change(|queues| {
            if let Some(busy) = queues.busy.get_mut(&process) {
                *busy -= 1;
                if *busy == 0 {
                    queues.busy.remove(&process);
                }
            }
        });
    }
}
