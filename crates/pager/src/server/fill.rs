//! Filling in the background, for all processes of an image at once.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use super::{
    Server,
    image::{PageImage, backoff},
    lock,
    process::{Process, Trouble},
};
use crate::{
    board::Word,
    limits::PAGE_BYTES,
    pages::{Cluster, Layout},
};

/// As long as nobody knows what is touched first, nothing is filled unasked: what is faulted on meanwhile is what should be known.
pub const RECORDING: Duration = Duration::from_secs(2);

/// How long a process that was handed over, or has forked, is left to its first steps: filling would take processors from those, and each filled
/// page is one more that a fork has to copy an entry for.
const CALM: Duration = Duration::from_millis(250);

/// Who forks on and on is filled after this nevertheless.
const CALM_MAX: Duration = Duration::from_secs(2);

/// Between two looks for something to fill, when there is none.
const PAUSE: Duration = Duration::from_millis(10);

/// How long filling stands back while faults wait. Not for ever: they may wait for a store that is out.
const STAND_BACK: Duration = Duration::from_micros(500);

/// Debts that are too small to sleep for.
const DEBT_MIN: Duration = Duration::from_millis(1);

/// How far an image is filled.
#[derive(Debug)]
pub(super) struct Progress {
    /// All before this page was looked at in this round.
    sweep: u64,
    /// While the working set is recorded, or after a failure: not before.
    due: Option<Instant>,
    failures: u32,
    opened: Instant,
    /// Nobody hurries: not before.
    calm: Instant,
}

impl Progress {
    pub(super) fn new(is_recorded: bool) -> Self {
        let opened = Instant::now();
        let due = (!is_recorded).then(|| opened + RECORDING);
        Self { sweep: 0, due, failures: 0, opened, calm: opened + CALM }
    }

    /// One of its processes has forked.
    pub(super) fn forked(&mut self) {
        self.calm = (Instant::now() + CALM).min(self.opened + CALM_MAX);
    }

    /// The address of the next page to fetch, if one of `processes` lacks any.
    fn next(&mut self, image: &PageImage, processes: &[Arc<Process>], now: Instant) -> Option<u64> {
        let calm = now < self.calm && !image.record.is_hurried();
        if calm || self.due.is_some_and(|due| now < due) {
            return None;
        }
        let PageImage { layout, source, .. } = image;
        let rest = self.sweep..layout.pages();
        let Some(number) = processes.iter().filter_map(|process| process.missing.first(&rest)).min() else {
            self.sweep = 0;
            return None;
        };
        let address = layout.address(number);
        let brought = layout.numbers(&source.extent(address));
        self.sweep = brought.last().map_or(number, |(_, numbers)| numbers.end - 1).max(number) + 1;
        Some(address)
    }
}

/// A byte rate.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_per_second: u64,
    /// When what was spent is paid for.
    paid: Mutex<Instant>,
}

impl Budget {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), paid: Mutex::new(Instant::now()) }
    }

    fn spend(&self, bytes: u64) {
        let cost = Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second)) as u64);
        let mut paid = lock(&self.paid);
        *paid = (*paid).max(Instant::now()) + cost;
    }

    /// How long until what was spent is paid for.
    fn debt(&self) -> Duration {
        lock(&self.paid).saturating_duration_since(Instant::now())
    }
}

impl Server {
    /// `offset`: the threads begin with different images.
    pub(super) fn fill_loop(self: &Arc<Self>, offset: usize) {
        loop {
            let debt = self.budget.debt();
            if debt > DEBT_MIN {
                std::thread::sleep(debt.min(PAUSE));
                continue;
            }
            let images: Vec<Arc<PageImage>> = lock(&self.images).values().cloned().collect();
            let mut filled = false;
            for turn in 0..images.len() {
                filled |= self.fill_some(&images[(turn + offset) % images.len()]);
            }
            if !filled {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Fetches one cluster of an image and gives it to all that lack it. False: there is nothing to fetch.
    fn fill_some(self: &Arc<Self>, image: &Arc<PageImage>) -> bool {
        if image.lost.is_some() || image.processes() == 0 {
            return false;
        }
        let mut processes = self.processes(Some(image.record.index));
        processes.retain(|process| image.is_filled(process));
        let Some(place) = lock(&image.progress).next(image, &processes, Instant::now()) else { return false };
        if self.demand.waiting() > 0 {
            std::thread::sleep(STAND_BACK);
        }
        let extent = image.source.extent(place);
        if let Some(cluster) = image.standing(place, &extent) {
            self.fill_with(&cluster, &processes);
            return true;
        }
        let key = extent.start;
        {
            let mut fetching = lock(&image.fetching);
            if fetching.contains_key(&key) {
                return true;
            }
            fetching.insert(key, Vec::new());
        }
        let result = at_low_priority(|| self.fetch(image, place));
        let waiters = lock(&image.fetching).remove(&key).unwrap_or_default();
        match result {
            Ok(cluster) => {
                lock(&image.progress).failures = 0;
                self.fill_with(&cluster, &processes);
            }
            // Nobody is known to need it. Whoever does, asks for it, and is told.
            Err(_) => {
                self.board.add(Word::Retries, 1);
                let mut progress = lock(&image.progress);
                progress.failures += 1;
                progress.due = Some(Instant::now() + backoff(progress.failures));
            }
        }
        for wanted in waiters {
            self.demand.add(wanted);
        }
        true
    }

    fn fill_with(self: &Arc<Self>, cluster: &Cluster, processes: &[Arc<Process>]) {
        for process in processes {
            let copied = match self.fill_process(process, cluster) {
                Err(Trouble::Again) => {
                    self.pump(process);
                    self.fill_process(process, cluster)
                }
                other => other,
            };
            match copied {
                Ok(pages) => {
                    self.board.add(Word::FillPages, pages);
                    self.settle(process);
                    self.budget.spend(pages * PAGE_BYTES);
                }
                Err(Trouble::Gone) => self.retire(process),
                // It is tried again in the next round.
                Err(Trouble::Again | Trouble::Failed(_)) => {}
            }
        }
    }

    fn fill_process(&self, process: &Process, cluster: &Cluster) -> Result<u64, Trouble> {
        if !lacks(&process.image.layout, process, cluster) {
            return Ok(0);
        }
        let mut book = lock(&process.book);
        if book.doomed || process.is_over() {
            return Ok(0);
        }
        process.deliver(&mut book, cluster, &(0..u64::MAX))
    }
}

/// Fetches and decodes with a tenth of the weight of everything else. No lock is held meanwhile that a fault waits for; one that needs the same
/// cluster waits for it, so it is not less.
fn at_low_priority<T>(work: impl FnOnce() -> T) -> T {
    const NICE: i32 = 10;
    // Of this thread only. A pager is privileged; if it were not, filling would be slow and nothing else.
    let _ = rustix::process::setpriority_process(None, NICE);
    let done = work();
    let _ = rustix::process::setpriority_process(None, 0);
    done
}

fn lacks(layout: &Layout, process: &Process, cluster: &Cluster) -> bool {
    layout.numbers(&cluster.range()).iter().any(|(_, numbers)| process.missing.first(numbers).is_some())
}
