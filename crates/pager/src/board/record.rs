//! The words that make up one record of the board.

use std::sync::atomic::{AtomicU64, Ordering};

use sys::share::Region;

/// The place of a record of `WORDS` words, and the word that shows it, which is elsewhere.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<const WORDS: usize> {
    region: Region,
    state: usize,
    start: usize,
}

impl<const WORDS: usize> Record<WORDS> {
    /// `state` and `start` are indexes into the words of `region`.
    pub(super) fn new(region: Region, state: usize, start: usize) -> Self {
        Self { region, state, start }
    }

    pub(super) fn words(self) -> &'static [AtomicU64] {
        &self.region.words()[self.start..self.start + WORDS]
    }

    pub(super) fn get(self, word: usize) -> u64 {
        self.words()[word].load(Ordering::Acquire)
    }

    pub(super) fn set(self, word: usize, value: u64) {
        self.words()[word].store(value, Ordering::Release);
    }

    pub(super) fn state(self) -> &'static AtomicU64 {
        &self.region.words()[self.state]
    }

    /// Makes its words zero, and gives their memory back.
    pub(super) fn clear(self) {
        if self.region.clear(self.start..self.start + WORDS).is_err() {
            self.words().iter().for_each(|word| word.store(0, Ordering::Release));
        }
    }
}
