//! Who is asked for a chunk.
//!
//! Chunks lie where they were used, so no rule says who has one (a hash would have to send others' chunks to where it points). But a node
//! that has one chunk of a segment has most: who had the last is asked first, and alone. Without such a one, three are asked at once, and
//! the first answer counts: misses cost small requests, hits are remembered. When nobody had any of a segment eight times in a row, nobody is
//! asked for it for some seconds.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Instant,
};

use store::id::SegmentId;

use crate::{
    limits::{ASKED_MAX, MISSES_MAX, QUIET, SEGMENTS_MAX},
    remote::Remote,
};

#[derive(Default)]
pub(crate) struct Choice {
    remotes: RwLock<Vec<Arc<Remote>>>,
    segments: Mutex<HashMap<SegmentId, Memory>>,
}

/// What is known of a segment.
#[derive(Default)]
struct Memory {
    holder: Option<Arc<Remote>>,
    misses: u32,
    quiet_until: Option<Instant>,
}

impl Choice {
    /// The peers are those at `addresses` now, the likeliest first. What is known of one that stays is kept.
    pub(crate) fn replace(&self, addresses: &[String]) {
        let mut remotes = self.remotes.write().unwrap_or_else(PoisonError::into_inner);
        let mut next: Vec<Arc<Remote>> = Vec::with_capacity(addresses.len());
        for address in addresses {
            if next.iter().all(|remote| remote.address() != address) {
                let same = remotes.iter().find(|remote| remote.address() == address);
                next.push(same.cloned().unwrap_or_else(|| Arc::new(Remote::new(address.clone()))));
            }
        }
        *remotes = next;
    }

    pub(crate) fn len(&self) -> usize {
        self.remotes.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Who had the last chunk of the segment, and some of the others. Those that rest are left out.
    pub(crate) fn candidates(&self, segment: SegmentId) -> (Option<Arc<Remote>>, Vec<Arc<Remote>>) {
        let holder = self.segments().get(&segment).and_then(|memory| memory.holder.clone());
        let holder = holder.filter(|holder| !holder.rests());
        let remotes = self.remotes.read().unwrap_or_else(PoisonError::into_inner);
        let other = |remote: &&Arc<Remote>| {
            !remote.rests() && holder.as_ref().is_none_or(|holder| !Arc::ptr_eq(holder, remote))
        };
        let others = remotes.iter().filter(other).take(ASKED_MAX).cloned().collect();
        (holder, others)
    }

    pub(crate) fn worth_asking(&self, segment: SegmentId) -> bool {
        let quiet_until = self.segments().get(&segment).and_then(|memory| memory.quiet_until);
        self.len() > 0 && quiet_until.is_none_or(|until| Instant::now() >= until)
    }

    pub(crate) fn had(&self, segment: SegmentId, holder: &Arc<Remote>) {
        self.remember(segment, Memory { holder: Some(Arc::clone(holder)), ..Memory::default() });
    }

    pub(crate) fn missed(&self, segment: SegmentId) {
        let known = self.segments().remove(&segment).unwrap_or_default();
        let misses = known.misses + 1;
        let quiet_until = (misses >= MISSES_MAX).then(|| Instant::now() + QUIET);
        // After the quiet time one miss is enough for the next.
        let memory = Memory { misses: misses.min(MISSES_MAX - 1), quiet_until, ..known };
        self.remember(segment, memory);
    }

    pub(crate) fn was_broken(&self, segment: SegmentId) {
        let memory = self.segments().remove(&segment);
        if let Some(holder) = memory.and_then(|memory| memory.holder) {
            holder.was_broken();
        }
    }

    fn remember(&self, segment: SegmentId, memory: Memory) {
        let mut segments = self.segments();
        if segments.len() >= SEGMENTS_MAX {
            segments.clear();
        }
        segments.insert(segment, memory);
    }

    fn segments(&self) -> MutexGuard<'_, HashMap<SegmentId, Memory>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: SegmentId = SegmentId([1; 16]);

    fn choice() -> Choice {
        let choice = Choice::default();
        choice.replace(&["a:1", "b:1", "a:1", "c:1", "d:1"].map(str::to_owned));
        choice
    }

    fn addresses(remotes: &[Arc<Remote>]) -> Vec<&str> {
        remotes.iter().map(|remote| remote.address()).collect()
    }

    #[test]
    fn who_had_the_last_chunk_is_asked_first_and_a_broken_answer_ends_that() {
        let choice = choice();
        let (holder, others) = choice.candidates(SEGMENT);
        assert!(holder.is_none());
        assert_eq!(addresses(&others), ["a:1", "b:1", "c:1"]);
        choice.had(SEGMENT, &others[1]);
        let (holder, others) = choice.candidates(SEGMENT);
        assert_eq!(holder.unwrap().address(), "b:1");
        assert_eq!(addresses(&others), ["a:1", "c:1", "d:1"]);
        choice.was_broken(SEGMENT);
        let (holder, others) = choice.candidates(SEGMENT);
        assert!(holder.is_none());
        assert_eq!(addresses(&others), ["a:1", "c:1", "d:1"], "it rests");
    }

    #[test]
    fn what_nobody_has_is_not_asked_for_again_and_again() {
        let choice = choice();
        for _ in 1..MISSES_MAX {
            choice.missed(SEGMENT);
            assert!(choice.worth_asking(SEGMENT));
        }
        choice.missed(SEGMENT);
        assert!(!choice.worth_asking(SEGMENT));
        assert!(choice.worth_asking(SegmentId([2; 16])), "another segment");
        choice.had(SEGMENT, &choice.candidates(SEGMENT).1[0]);
        assert!(choice.worth_asking(SEGMENT), "somebody has it");
        assert!(!Choice::default().worth_asking(SEGMENT), "there is nobody");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_who_stays_is_the_same() {
        let choice = choice();
        let before = choice.candidates(SEGMENT).1;
        for number in 0..2 * SEGMENTS_MAX as u128 {
            choice.missed(SegmentId(number.to_le_bytes()));
        }
        assert!(choice.segments().len() <= SEGMENTS_MAX);
        choice.replace(&["x:1", "b:1"].map(str::to_owned));
        let after = choice.candidates(SEGMENT).1;
        assert_eq!(addresses(&after), ["x:1", "b:1"]);
        assert!(Arc::ptr_eq(&after[1], &before[1]));
    }
}
