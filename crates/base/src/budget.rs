//! Bytes that something may keep, as a part of what something larger may keep.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// So many bytes and no more. A part of a budget is bounded by itself and by the whole.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    used: AtomicUsize,
    whole: Option<Arc<Budget>>,
}

impl Budget {
    /// A budget of its own.
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, used: AtomicUsize::new(0), whole: None })
    }

    /// A part of this one.
    pub fn part(self: &Arc<Self>, bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, used: AtomicUsize::new(0), whole: Some(Arc::clone(self)) })
    }

    /// Takes bytes. False, and nothing is taken, if there are not so many.
    #[must_use]
    pub fn take(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        if self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            return false;
        }
        let taken = self.whole.as_ref().is_none_or(|whole| whole.take(bytes));
        if !taken {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken
    }

    /// Gives back what was taken.
    pub fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.give(bytes);
        }
    }

    /// Bytes that are taken.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl Drop for Budget {
    /// What a part still has goes back to the whole.
    fn drop(&mut self) {
        if let Some(whole) = &self.whole {
            whole.give(*self.used.get_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_bounded_by_itself_and_the_whole() {
        let whole = Budget::new(10);
        let parts = [whole.part(6), whole.part(6)];
        assert!(parts[0].take(6) && !parts[0].take(1));
        assert!(!parts[1].take(5) && parts[1].take(4));
        assert_eq!((parts[1].used(), whole.used()), (4, 10));
        parts[0].give(2);
        assert!(parts[1].take(2) && !parts[1].take(usize::MAX));
        drop(parts);
        assert_eq!(whole.used(), 0);
    }
}
