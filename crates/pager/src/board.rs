//! The memory that guardian, spare and pager share: all that must outlive any one of them.
//!
//! ```text
//!  head      who is who, clients, counters, states of images and processes
//!  failures  what went wrong, newest over oldest
//!  images    [256]  name, descriptor of its description, order of first faults
//!  processes [4096] state, descriptors, log of events read, spans (twice), missing bits
//! ```
//!
//! It is sparse: memory is taken for what is used. Nothing in it is trusted to be complete: its writers may be killed between any two words.
//! So each record is made out of sight and then shown by one word (its state), and each change of a process's spans is written beside the old
//! ones and then chosen by one word, together with the count of events that it stands for. See [`process::ProcessRecord`].

pub(crate) mod image;
pub(crate) mod process;
mod record;

use std::{
    io,
    mem::ManuallyDrop,
    os::fd::{OwnedFd, RawFd},
    sync::atomic::{AtomicU64, Ordering},
};

use image::PageImageRecord;
use process::ProcessRecord;
use record::Record;
use sys::{share::Region, uffd::Event};

use crate::limits::{CLIENTS_MAX, FAILURE_BYTES_MAX, FAILURES_MAX, IMAGES_MAX, PROCESSES_MAX};

/// Words of a page: what can be given back.
const PAGE_WORDS: usize = 512;
const CLIENTS: usize = 128;
const HISTOGRAM: usize = 64;
/// Buckets of the latency histogram: bucket `n` counts answers that took less than 2^n ns, and not less than half of it.
pub(crate) const BUCKETS: usize = 40;
/// Side by side, so that looking for one touches few pages.
const IMAGE_STATES: usize = PAGE_WORDS;
const PROCESS_STATES: usize = IMAGE_STATES + PAGE_WORDS;
const FAILURES: usize = PROCESS_STATES + PROCESSES_MAX;
const FAILURE_WORDS: usize = 1 + FAILURE_BYTES_MAX / 8;
const IMAGES: usize = FAILURES + FAILURES_MAX * FAILURE_WORDS;
const PROCESSES: usize = IMAGES + IMAGES_MAX * image::WORDS;
const WORDS: usize = PROCESSES + PROCESSES_MAX * process::WORDS;

const _: () = assert!(IMAGES.is_multiple_of(PAGE_WORDS) && IMAGES_MAX <= PAGE_WORDS, "records can be given back");
const _: () = assert!(image::WORDS.is_multiple_of(PAGE_WORDS) && process::WORDS.is_multiple_of(PAGE_WORDS));
const _: () = assert!(CLIENTS + CLIENTS_MAX <= PAGE_WORDS && HISTOGRAM + BUCKETS <= CLIENTS);

/// One word each of the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Word {
    /// Pid of the pager.
    PagerPid,
    /// Pidfd of the pager, plus one; so with all descriptors: 0 is none.
    Pager,
    /// Pidfd of the guardian.
    Guardian,
    /// Pid of the spare guardian.
    SparePid,
    /// Its pidfd.
    Spare,
    /// Pid of the child that was entered last, once it does not depend on its parent any more.
    Grown,
    /// The listening socket.
    Listener,
    /// An eventfd that is rung when there is something new for the pager.
    Bell,
    /// The pager was started so many times.
    PagerStarts,
    /// The spare became the guardian so many times.
    Takeovers,
    /// Images ever served.
    Serials,
    /// Failures ever recorded.
    Failures,
    /// Faults read.
    Faults,
    /// Faults answered at once, without waiting for the store.
    Local,
    /// Clusters fetched for faults.
    Fetches,
    /// Pages answered with zeros.
    ZeroPages,
    /// Pages with content that were copied in for faults, with their neighbours.
    FaultPages,
    /// Pages with content that were copied in in the background.
    FillPages,
    /// Fetches that failed and were tried again.
    Retries,
    /// Processes whose pages all are there, or which ended.
    Finished,
}

/// Handles to the shared memory; cheap to copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Board {
    region: Region,
}

impl Board {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { region: Region::new(WORDS)? })
    }

    fn words(self) -> &'static [AtomicU64] {
        self.region.words()
    }

    pub(crate) fn get(self, word: Word) -> u64 {
        self.words()[word as usize].load(Ordering::Acquire)
    }

    pub(crate) fn set(self, word: Word, value: u64) {
        self.words()[word as usize].store(value, Ordering::Release);
    }

    pub(crate) fn add(self, word: Word, value: u64) {
        self.words()[word as usize].fetch_add(value, Ordering::Relaxed);
    }

    pub(crate) fn descriptor(self, word: Word) -> Option<RawFd> {
        to_descriptor(self.get(word))
    }

    /// As [`Board::descriptor`], for who closes it.
    pub(crate) fn take_descriptor(self, word: Word) -> Option<RawFd> {
        let number = self.descriptor(word);
        self.set(word, 0);
        number
    }

    /// The places of clients' connections, as descriptors plus one.
    pub(crate) fn clients(self) -> &'static [AtomicU64] {
        &self.words()[CLIENTS..CLIENTS + CLIENTS_MAX]
    }

    /// Counts an answer to a fault.
    pub(crate) fn count_latency(self, ns: u64) {
        let bucket = (u64::BITS - ns.leading_zeros()) as usize;
        self.words()[HISTOGRAM + bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn latencies(self) -> Vec<u64> {
        self.words()[HISTOGRAM..HISTOGRAM + BUCKETS].iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// Remembers a failure, over the oldest one; its number.
    pub(crate) fn record_failure(self, record: &[u8]) -> u64 {
        let number = self.words()[Word::Failures as usize].fetch_add(1, Ordering::AcqRel);
        self.write_failure(number, record);
        number
    }

    /// Writes a failure anew, now that more is known of it.
    pub(crate) fn write_failure(self, number: u64, record: &[u8]) {
        let place = self.failure(number);
        let record = &record[..record.len().min(FAILURE_BYTES_MAX)];
        place[0].store(0, Ordering::Release);
        put_bytes(&place[1..], record);
        place[0].store(record.len() as u64, Ordering::Release);
    }

    /// A failure that was remembered; empty if it is being written.
    pub(crate) fn read_failure(self, number: u64) -> Vec<u8> {
        let place = self.failure(number);
        get_bytes(&place[1..], place[0].load(Ordering::Acquire) as usize)
    }

    fn failure(self, number: u64) -> &'static [AtomicU64] {
        let at = FAILURES + number as usize % FAILURES_MAX * FAILURE_WORDS;
        &self.words()[at..at + FAILURE_WORDS]
    }

    /// The failures that are remembered, oldest first.
    pub(crate) fn failures(self) -> Vec<Vec<u8>> {
        let total = self.get(Word::Failures);
        let numbers = total.saturating_sub(FAILURES_MAX as u64)..total;
        numbers.map(|number| self.read_failure(number)).filter(|record| !record.is_empty()).collect()
    }

    pub(crate) fn image(self, index: usize) -> PageImageRecord {
        let at = IMAGES + index * image::WORDS;
        PageImageRecord::new(index, Record::new(self.region, IMAGE_STATES + index, at))
    }

    pub(crate) fn images(self) -> impl Iterator<Item = PageImageRecord> {
        (0..IMAGES_MAX).map(move |index| self.image(index))
    }

    pub(crate) fn process(self, index: usize) -> ProcessRecord {
        let at = PROCESSES + index * process::WORDS;
        ProcessRecord::new(index, Record::new(self.region, PROCESS_STATES + index, at))
    }

    pub(crate) fn processes(self) -> impl Iterator<Item = ProcessRecord> {
        (0..PROCESSES_MAX).map(move |index| self.process(index))
    }

    /// Takes a free place for a process, in the name of `owner` (a state).
    pub(crate) fn take_process(self, owner: process::State) -> Option<ProcessRecord> {
        self.processes().find(|record| record.try_take(owner))
    }

    /// Completes what a dead pager left half done; for the next one, while it is alone.
    pub(crate) fn tidy(self) {
        for record in self.processes() {
            match record.state() {
                process::State::Born => {
                    // Before anyone serves it: afterwards it may be gone, and the number of its descriptor another's.
                    let fork = record.uffd().map(Event::Fork);
                    let parent = self.processes().find(|parent| {
                        parent.is_open() && fork.is_some() && parent.unapplied().first() == fork.as_ref()
                    });
                    if let Some(parent) = parent {
                        parent.advance();
                    }
                    record.set_state(process::State::Active);
                }
                // Its descriptor was closed, if not by its last owner then by the guardian.
                process::State::TakenByPager | process::State::Closing => record.free(),
                process::State::Free
                | process::State::TakenByGuardian
                | process::State::Active
                | process::State::Doomed => {}
            }
        }
    }

    /// All descriptors that are named in here: what a dead pager leaves open and is not here, is of no use to anyone.
    pub(crate) fn descriptors(self) -> Vec<RawFd> {
        let head = [Word::Pager, Word::Guardian, Word::Spare, Word::Listener, Word::Bell];
        let head = head.into_iter().filter_map(|word| self.descriptor(word));
        let clients = self.clients().iter().filter_map(|word| to_descriptor(word.load(Ordering::Acquire)));
        let images = self.images().filter_map(PageImageRecord::descriptor);
        head.chain(clients).chain(images).chain(self.processes().flat_map(ProcessRecord::descriptors)).collect()
    }
}

/// A word that holds a descriptor.
pub(crate) fn to_descriptor(word: u64) -> Option<RawFd> {
    word.checked_sub(1).map(|number| number as RawFd)
}

/// The word for a descriptor.
pub(crate) fn from_descriptor(number: RawFd) -> u64 {
    number as u64 + 1
}

/// A descriptor of the shared table, to be used and not to be closed.
pub(crate) fn borrow(number: Option<RawFd>) -> io::Result<ManuallyDrop<OwnedFd>> {
    sys::share::adopt(number.unwrap_or(-1)).map(ManuallyDrop::new)
}

/// Writes bytes into words, which have room for them.
fn put_bytes(words: &[AtomicU64], bytes: &[u8]) {
    for (word, chunk) in words.iter().zip(bytes.chunks(8)) {
        let mut value = [0; 8];
        value[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_le_bytes(value), Ordering::Release);
    }
}

/// The first `len` bytes of words.
fn get_bytes(words: &[AtomicU64], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        words.iter().take(len.div_ceil(8)).flat_map(|word| word.load(Ordering::Acquire).to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}
