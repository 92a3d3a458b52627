//! Which pages of a process have not got their content yet: one bit per registered page, in memory that may be shared.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

/// The bits of one process. Changed by one thread at a time (the process's lock); read by any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Missing<'a> {
    words: &'a [AtomicU64],
}

/// The bits of `range` that lie in word `index`.
fn mask(index: usize, range: &Range<u64>) -> u64 {
    let base = index as u64 * 64;
    let from = range.start.saturating_sub(base).min(64);
    let to = range.end.saturating_sub(base).min(64);
    let below = |bit: u64| if bit == 64 { u64::MAX } else { (1 << bit) - 1 };
    below(to) & !below(from)
}

impl<'a> Missing<'a> {
    /// Over `words`, which have a bit for each page.
    pub(crate) fn new(words: &'a [AtomicU64]) -> Self {
        Self { words }
    }

    fn words_of(range: &Range<u64>) -> Range<usize> {
        (range.start / 64) as usize..range.end.div_ceil(64) as usize
    }

    /// Whether page `number` is missing.
    pub(crate) fn has(self, number: u64) -> bool {
        self.words[(number / 64) as usize].load(Ordering::Acquire) >> (number % 64) & 1 == 1
    }

    /// Marks pages as missing.
    pub(crate) fn set(self, range: &Range<u64>) {
        for index in Self::words_of(range) {
            self.words[index].fetch_or(mask(index, range), Ordering::AcqRel);
        }
    }

    /// Marks pages as not missing (any more); returns how many were.
    pub(crate) fn clear(self, range: &Range<u64>) -> u64 {
        let cleared = Self::words_of(range).map(|index| {
            let mask = mask(index, range);
            u64::from((self.words[index].fetch_and(!mask, Ordering::AcqRel) & mask).count_ones())
        });
        cleared.sum()
    }

    /// How many pages are missing.
    pub(crate) fn count(self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }

    /// The first missing page of `range`.
    pub(crate) fn first(self, range: &Range<u64>) -> Option<u64> {
        Self::words_of(range).find_map(|index| {
            let bits = self.words[index].load(Ordering::Acquire) & mask(index, range);
            (bits != 0).then(|| index as u64 * 64 + u64::from(bits.trailing_zeros()))
        })
    }

    /// The first run of missing pages in `range`.
    pub(crate) fn first_run(self, range: &Range<u64>) -> Option<Range<u64>> {
        let start = self.first(range)?;
        let end = (start..range.end).find(|number| !self.has(*number)).unwrap_or(range.end);
        Some(start..end)
    }

    /// Makes these bits what `other`'s are.
    pub(crate) fn copy_from(self, other: Missing<'_>) {
        for (to, from) in self.words.iter().zip(other.words) {
            to.store(from.load(Ordering::Acquire), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bits_are_what_a_vector_of_flags_says(steps in proptest::collection::vec((any::<bool>(), 0u64..200, 0u64..200), 1..20)) {
            let words: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
            let bits = Missing::new(&words);
            let mut model = vec![false; 256];
            for (set, a, b) in steps {
                let range = a.min(b)..a.max(b);
                let places = range.start as usize..range.end as usize;
                if set {
                    bits.set(&range);
                } else {
                    let there = model[places.clone()].iter().filter(|flag| **flag).count();
                    prop_assert_eq!(bits.clear(&range), there as u64);
                }
                model[places].fill(set);
                prop_assert_eq!(bits.count(), model.iter().filter(|flag| **flag).count() as u64);
                let first = (a..256).find(|number| model[*number as usize]);
                prop_assert_eq!(bits.first(&(a..256)), first);
                let run = first.map(|first| first..(first..256).find(|n| !model[*n as usize]).unwrap_or(256));
                prop_assert_eq!(bits.first_run(&(a..256)), run);
            }
        }
    }
}
