//! What the board has of a process: the journal that a new pager goes on from.
//!
//! ```text
//!   free ─► taken ─► born ─► active ─► closing ─► free
//!                               └► doomed ─┘
//! ```
//!
//! *Taken*: being written, by the pager or the guardian; void if that dies. *Born*: a forked child that is whole, while its parent's log
//! may not yet say that the fork was applied: the next pager says so before it serves anyone. *Doomed*: it was killed, or should have been; its descriptor stays until it is gone.
//! *Closing*: its descriptor is being closed, and may be another's already.
//!
//! **The log.** Events are read from the kernel straight into the record. A message that the kernel gave out is in the log, even if the
//! pager is killed in the same instant. `progress` holds how many of them were applied, and which of the two sets of spans
//! is the true one, in one word; so each is applied exactly once. (Bits may be cleared twice. That does no harm.)

use std::{
    collections::VecDeque,
    os::fd::RawFd,
    sync::atomic::{AtomicU64, Ordering},
};

use sys::uffd::{Event, MESSAGE_WORDS};

use super::{PAGE_WORDS, from_descriptor, record::Record, to_descriptor};
use crate::{
    limits::{ECHOES_MAX, LOG_MESSAGES, PAGES_MAX, SPANS_MAX},
    missing::Missing,
    space::{Space, Span},
};

const IMAGE: usize = 1;
const UFFD: usize = 2;
const PIDFD: usize = 3;
const PID: usize = 4;
const PROGRESS: usize = 5;
/// Pages in its layout, plus one; 0 until spans and bits are filled in.
const PAGES: usize = 6;
/// The number of the failure that it is stopped for, plus one.
const FAILURE: usize = 7;
const COUNTS: usize = 8;
const LOG: usize = 64;
const LOG_WORDS: usize = LOG_MESSAGES * MESSAGE_WORDS;
const SPANS: usize = PAGE_WORDS;
const SPAN_WORDS: usize = 3;
/// Spans and echoes, in whole pages.
const SET_WORDS: usize = ((SPANS_MAX + 1 + ECHOES_MAX) * SPAN_WORDS).next_multiple_of(PAGE_WORDS);
const BITS: usize = SPANS + 2 * SET_WORDS;
/// Words of one record.
pub(super) const WORDS: usize = BITS + (PAGES_MAX / 64) as usize;
/// In place of a page number: this is not a span but an expected unmapping.
const ECHO: u64 = u64::MAX;

const _: () = assert!(LOG + LOG_WORDS <= PAGE_WORDS, "the log is in the record's first page");

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum State {
    Free = 0,
    TakenByPager = 1,
    TakenByGuardian = 2,
    Born = 3,
    Active = 4,
    Doomed = 5,
    Closing = 6,
}

impl State {
    const ALL: [Self; 7] =
        [Self::Free, Self::TakenByPager, Self::TakenByGuardian, Self::Born, Self::Active, Self::Doomed, Self::Closing];
}

/// The record of one process. Whoever changes it holds the process's lock, or is the only one who knows of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessRecord {
    pub(crate) index: usize,
    record: Record<WORDS>,
}

impl ProcessRecord {
    pub(super) fn new(index: usize, record: Record<WORDS>) -> Self {
        Self { index, record }
    }

    pub(crate) fn state(self) -> State {
        let value = self.record.state().load(Ordering::Acquire);
        State::ALL.into_iter().find(|state| *state as u64 == value).unwrap_or(State::Free)
    }

    pub(crate) fn set_state(self, state: State) {
        self.record.state().store(state as u64, Ordering::Release);
    }

    /// Takes the place if it is free.
    pub(super) fn try_take(self, owner: State) -> bool {
        self.record
            .state()
            .compare_exchange(State::Free as u64, owner as u64, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Writes who it is; it is shown by [`ProcessRecord::set_state`].
    pub(crate) fn enter(self, image: usize, uffd: RawFd, root: Option<(i32, RawFd)>) {
        self.record.set(IMAGE, image as u64);
        self.record.set(UFFD, from_descriptor(uffd));
        let (pid, pidfd) = root.map_or((0, 0), |(pid, pidfd)| (pid, from_descriptor(pidfd)));
        self.record.set(PID, pid as u64);
        self.record.set(PIDFD, pidfd);
    }

    /// Gives the place back.
    pub(crate) fn free(self) {
        self.set_state(State::Closing);
        self.record.clear();
        self.set_state(State::Free);
    }

    pub(crate) fn image(self) -> usize {
        self.record.get(IMAGE) as usize
    }

    pub(crate) fn uffd(self) -> Option<RawFd> {
        to_descriptor(self.record.get(UFFD))
    }

    pub(crate) fn pidfd(self) -> Option<RawFd> {
        to_descriptor(self.record.get(PIDFD))
    }

    /// Known only of those that a client handed over.
    pub(crate) fn pid(self) -> Option<i32> {
        Some(self.record.get(PID) as i32).filter(|pid| *pid > 0)
    }

    /// It is stopped, for this failure.
    pub(crate) fn doom(self, failure: u64) {
        self.record.set(FAILURE, failure + 1);
        self.set_state(State::Doomed);
    }

    pub(crate) fn failure(self) -> Option<u64> {
        self.record.get(FAILURE).checked_sub(1)
    }

    /// Whether what it says of descriptors and events holds.
    pub(super) fn is_open(self) -> bool {
        match self.state() {
            State::Born | State::Active | State::Doomed => true,
            State::Free | State::TakenByPager | State::TakenByGuardian | State::Closing => false,
        }
    }

    /// Its descriptors, those of children that it has forked and that nobody has taken in yet included.
    pub(super) fn descriptors(self) -> Vec<RawFd> {
        if !self.is_open() {
            return Vec::new();
        }
        let children = self.unapplied().into_iter().filter_map(|event| match event {
            Event::Fork(child) => Some(child),
            Event::Fault(_) | Event::Remap { .. } | Event::Remove(_) | Event::Unmap(_) => None,
        });
        children.chain(self.uffd()).chain(self.pidfd()).collect()
    }

    /// Where the kernel writes messages.
    pub(crate) fn log(self) -> &'static [AtomicU64] {
        &self.record.words()[LOG..LOG + LOG_WORDS]
    }

    /// Makes the log empty; all of it was applied. Also makes its page present, which [`sys::uffd::Uffd::read`] asks for.
    pub(crate) fn clear_log(self) {
        self.record.set(PROGRESS, self.record.get(PROGRESS) & 1 | (LOG_MESSAGES as u64) << 1);
        self.log().iter().for_each(|word| word.store(0, Ordering::Release));
        self.record.set(PROGRESS, self.record.get(PROGRESS) & 1);
    }

    /// The events of the log that were not applied.
    pub(crate) fn unapplied(self) -> Vec<Event> {
        let done = (self.record.get(PROGRESS) >> 1) as usize;
        self.log().chunks_exact(MESSAGE_WORDS).skip(done).map_while(Event::decode).collect()
    }

    /// One more event of the log was applied, without a change of the spans.
    pub(crate) fn advance(self) {
        self.record.set(PROGRESS, self.record.get(PROGRESS) + 2);
    }

    /// One more event of the log was applied, and made the spans these.
    pub(crate) fn advance_with(self, space: &Space) {
        let progress = self.record.get(PROGRESS);
        let set = 1 - (progress & 1) as usize;
        self.write_set(set, space);
        self.record.set(PROGRESS, (progress & !1 | set as u64) + 2);
    }

    /// Fills in where the pages are; the bits were set before. From here on it can be served.
    pub(crate) fn begin(self, space: &Space, pages: u64) {
        self.write_set(0, space);
        self.record.set(PROGRESS, 0);
        self.record.set(PAGES, pages + 1);
    }

    /// Pages in its layout; `None` before [`ProcessRecord::begin`].
    pub(crate) fn pages(self) -> Option<u64> {
        self.record.get(PAGES).checked_sub(1)
    }

    /// Its bits, for a layout of so many pages.
    pub(crate) fn missing(self, pages: u64) -> Missing<'static> {
        Missing::new(&self.record.words()[BITS..BITS + pages.div_ceil(64) as usize])
    }

    fn write_set(self, set: usize, space: &Space) {
        let spans = space.spans().iter().map(|span| [span.at, span.first, span.pages]);
        let echoes = space.echoes().map(|echo| [echo.start, ECHO, echo.end]);
        let at = SPANS + set * SET_WORDS;
        let places = self.record.words()[at..at + SET_WORDS].chunks_exact(SPAN_WORDS);
        for (place, values) in places.zip(spans.chain(echoes)) {
            place.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Release));
        }
        self.record.set(COUNTS + set, (space.spans().len() + space.echoes().len()) as u64);
    }

    /// Where its pages are, as last written.
    pub(crate) fn space(self) -> Space {
        let set = (self.record.get(PROGRESS) & 1) as usize;
        let at = SPANS + set * SET_WORDS;
        let count = self.record.get(COUNTS + set) as usize;
        let mut spans = Vec::with_capacity(count);
        let mut echoes = VecDeque::new();
        for place in self.record.words()[at..at + SET_WORDS].chunks_exact(SPAN_WORDS).take(count) {
            let [start, first, last] = [0, 1, 2].map(|index: usize| place[index].load(Ordering::Acquire));
            match first {
                ECHO => echoes.push_back(start..last),
                first => spans.push(Span { at: start, first, pages: last }),
            }
        }
        Space::from_parts(spans, echoes)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::{board::Board, pages::Layout};

    fn log_fork(record: ProcessRecord, index: usize, child: RawFd) {
        let words = &record.log()[index * MESSAGE_WORDS..];
        words[0].store(0x13, Ordering::Release);
        words[1].store(child as u64, Ordering::Release);
    }

    #[test]
    fn a_child_that_is_whole_is_not_adopted_again_whatever_became_of_it() {
        let board = Board::new().unwrap();
        let [parent, child, other] = [(); 3].map(|()| board.take_process(State::TakenByPager).unwrap());
        parent.enter(0, 5, None);
        parent.clear_log();
        log_fork(parent, 0, 6);
        log_fork(parent, 1, 7);
        parent.set_state(State::Active);
        child.enter(0, 6, None);
        child.set_state(State::Born);
        other.enter(0, 8, None);
        board.tidy();
        assert_eq!((child.state(), other.state()), (State::Active, State::Free));
        // It may have all its pages at once, and its descriptor's number may be another's before the parent's turn comes.
        child.free();
        assert_eq!(parent.unapplied(), [Event::Fork(7)]);
        board.tidy();
        assert_eq!(parent.unapplied(), [Event::Fork(7)]);
    }

    fn log_unmap(record: ProcessRecord, index: usize, range: Range<u64>) {
        let words = &record.log()[index * MESSAGE_WORDS..];
        words[0].store(0x16, Ordering::Release);
        words[1].store(range.start, Ordering::Release);
        words[2].store(range.end, Ordering::Release);
    }

    #[test]
    fn spans_and_events_are_found_again_as_they_were_left() {
        let record = Board::new().unwrap().take_process(State::TakenByPager).unwrap();
        let mut space = Space::new(&Layout::new(&[0x1000..0x5000, 0x9000..0xa000]).unwrap());
        record.begin(&space, 5);
        record.clear_log();
        log_unmap(record, 0, 0x2000..0x3000);
        log_unmap(record, 1, 0x9000..0xa000);
        assert_eq!(record.unapplied(), [Event::Unmap(0x2000..0x3000), Event::Unmap(0x9000..0xa000)]);
        space.unmap(&(0x2000..0x3000)).unwrap();
        record.advance_with(&space);
        assert_eq!(record.unapplied(), [Event::Unmap(0x9000..0xa000)]);
        assert_eq!(record.space(), space);
        record.advance();
        assert_eq!(record.unapplied(), []);
        space.remap(0x1000, 0x20000, 0x1000).unwrap();
        record.clear_log();
        record.advance_with(&space);
        assert_eq!(record.space(), space, "with its echo");
    }
}
