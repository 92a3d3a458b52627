//! How far a download is, told now and then.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How often it is told at most.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Is told how many bytes are there, of how many.
pub type Tell = dyn Fn(u64, u64) + Send + Sync;

pub(crate) struct Meter<'a> {
    done: AtomicU64,
    all: u64,
    told: Mutex<Option<Instant>>,
    tell: &'a Tell,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(all: u64, tell: &'a Tell) -> Self {
        Self { done: AtomicU64::new(0), all, told: Mutex::default(), tell }
    }

    pub(crate) fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if done >= self.all || told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            *told = Some(Instant::now());
            (self.tell)(done, self.all);
        }
    }

    pub(crate) fn subtract(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Ordering::Relaxed);
    }
}
