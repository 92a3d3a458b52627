//! What the kernel reports: read, applied, answered.

use std::{
    io,
    os::fd::RawFd,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use rustix::{buffer::spare_capacity, event::epoll, io::Errno};
use sys::uffd::{Event, MESSAGE_WORDS};

use super::{
    BELL, Server,
    demand::Wanted,
    lock,
    process::{Book, Process, Trouble},
};
use crate::{
    board::{Word, process::State},
    limits::{
        EVENT_THREADS_MAX, IMAGE_PROCESSES_MAX, LOG_MESSAGES, NEIGHBOUR_PAGES, PAGE_BYTES, PROCESSES_MAX,
        PROCESSES_RESERVE,
    },
    space::{Confused, Space},
};

/// What a fault brings along.
const NEIGHBOUR_BYTES: u64 = NEIGHBOUR_PAGES * PAGE_BYTES;

/// Logs read before another process has its turn.
const LOGS_IN_A_ROW: usize = 4;

impl Server {
    pub(super) fn add_event_thread(self: &Arc<Self>) {
        self.threads.fetch_add(1, Ordering::Relaxed);
        self.spawn("events", |server| server.event_loop());
    }

    fn event_loop(self: &Arc<Self>) {
        let mut ready = Vec::with_capacity(1);
        loop {
            ready.clear();
            self.idle.fetch_add(1, Ordering::AcqRel);
            let waited = epoll::wait(&self.epoll, spare_capacity(&mut ready), None);
            // Nobody would see the next event while this thread is held up.
            if self.idle.fetch_sub(1, Ordering::AcqRel) == 1 && self.threads.load(Ordering::Relaxed) < EVENT_THREADS_MAX
            {
                self.add_event_thread();
            }
            match waited {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot wait for events");
                    std::process::abort();
                }
            }
            for event in &ready {
                match event.data.u64() {
                    BELL => {
                        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
                        self.look_for_images();
                    }
                    index => self.attend(index as usize),
                }
            }
        }
    }

    /// Reads and answers what is there of one process, then lets any thread have its next events.
    fn attend(self: &Arc<Self>, index: usize) {
        let Some(process) = self.process(index) else { return };
        self.pump(&process);
        if !process.is_over() {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
            let data = epoll::EventData::new_u64(index as u64);
            // It may have been retired in this instant, and is not watched any more.
            let _ = epoll::modify(&self.epoll, process.uffd(), data, flags);
        }
    }

    /// Reads events, applies them, and answers the faults among them or has them answered.
    pub(super) fn pump(self: &Arc<Self>, process: &Arc<Process>) {
        let since = Instant::now();
        let mut confused = None;
        let mut gone = false;
        {
            let mut book = lock(&process.book);
            let mut again = Vec::new();
            for _ in 0..LOGS_IN_A_ROW {
                let count = match self.read_log(process) {
                    Ok(count) => count,
                    Err(error) => {
                        confused = confused.or((error.kind() != io::ErrorKind::WouldBlock)
                            .then(|| format!("its events cannot be read: {error}")));
                        break;
                    }
                };
                // Faults come out of the kernel first, and its refusal to copy ends when an event is read. So nothing is copied before all
                // events of the log are applied: a forked child would lack the page, and not be known to.
                let mut faults = std::mem::take(&mut again);
                for event in process.record.log().chunks_exact(MESSAGE_WORDS).take(count).filter_map(Event::decode) {
                    if let Event::Fault(address) = event {
                        faults.push(address);
                    }
                    confused = confused.or(self.apply(process, &mut book, event));
                }
                if confused.is_some() {
                    break;
                }
                for address in faults {
                    match self.fault(process, &mut book, address, since) {
                        Answer::Settled => {}
                        Answer::Again => again.push(address),
                        Answer::Gone => gone = true,
                    }
                }
                if count < LOG_MESSAGES && again.is_empty() {
                    break;
                }
            }
            for address in again {
                self.demand.add(Wanted::new(process, address - address % PAGE_BYTES, since).later());
            }
        }
        if let Some(reason) = confused {
            self.doom(process, &reason);
        } else if gone {
            self.retire(process);
        } else {
            self.settle(process);
        }
    }

    fn read_log(&self, process: &Process) -> io::Result<usize> {
        if process.is_over() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        process.record.clear_log();
        process.uffd().read(process.record.log())
    }

    /// Applies an event, and says so in the log. A fault changes nothing: whoever forgets one asks for it again. `Some`: the process cannot be
    /// served any longer.
    fn apply(self: &Arc<Self>, process: &Arc<Process>, book: &mut Book, event: Event) -> Option<String> {
        let record = process.record;
        let moved = |space: &Space, outcome: Result<(), Confused>| {
            record.advance_with(space);
            outcome.err().map(|confused| confused.to_string())
        };
        match event {
            Event::Fault(_) => {
                record.advance();
                None
            }
            Event::Fork(child) => self.adopt_child(process, book, child),
            Event::Remove(range) => {
                book.left -= book.space.remove(&range).iter().map(|gone| process.missing.clear(gone)).sum::<u64>();
                record.advance();
                None
            }
            Event::Unmap(range) => {
                let outcome = book.space.unmap(&range).map(|gone| {
                    book.left -= gone.iter().map(|gone| process.missing.clear(gone)).sum::<u64>();
                });
                moved(&book.space, outcome)
            }
            Event::Remap { from, to, len } => {
                let outcome = book.space.remap(from, to, len);
                moved(&book.space, outcome)
            }
        }
    }

    /// Applies an event that an earlier pager read and did not apply.
    pub(super) fn apply_again(self: &Arc<Self>, process: &Arc<Process>, book: &mut Book, event: Event) {
        if let Some(reason) = self.apply(process, book, event) {
            self.doom_locked(process, book, &reason);
        }
    }

    /// Takes a forked child in: it lacks the pages that its parent lacks, in the same places.
    fn adopt_child(self: &Arc<Self>, parent: &Arc<Process>, book: &Book, child: RawFd) -> Option<String> {
        let Some(record) = self.board.take_process(State::TakenByPager) else {
            // Not reached: the reserve is larger than all logs. The descriptor stays open, so that nothing wrong is read.
            parent.record.advance();
            return Some("too many processes are served".into());
        };
        let pages = parent.image.layout.pages();
        record.enter(parent.image.record.index, child, None);
        record.missing(pages).copy_from(parent.missing);
        lock(&parent.image.progress).forked();
        // The child has no move under way, so it awaits no echo.
        record.begin(&Space::from_parts(book.space.spans().to_vec(), Default::default()), pages);
        // A parent that was killed has forked before it died.
        record.set_state(State::Born);
        parent.record.advance();
        // Claimed before it can be seen as one that nobody serves.
        let process = Process::new(record, &parent.image, &self.claims);
        record.set_state(State::Active);
        match process {
            Ok(process) => {
                self.enlist(&process);
                let full = self.full(parent).or_else(|| book.doomed.then(|| "its parent was stopped".to_owned()));
                match full {
                    Some(reason) => {
                        self.doom(&process, &reason);
                        (!book.doomed).then_some(reason)
                    }
                    None => {
                        // Its parent may have got its last page just before: then nothing else would ever look at the child.
                        self.settle(&process);
                        None
                    }
                }
            }
            Err(error) => Some(format!("its child cannot be served: {error}")),
        }
    }

    fn full(&self, parent: &Process) -> Option<String> {
        let all = self.processes.read().unwrap_or_else(std::sync::PoisonError::into_inner).len();
        if parent.image.processes() > IMAGE_PROCESSES_MAX {
            return Some(format!("more than {IMAGE_PROCESSES_MAX} processes of its image lack pages"));
        }
        (all > PROCESSES_MAX - PROCESSES_RESERVE).then(|| "too many processes lack pages".into())
    }

    /// Answers a fault, or has it answered by a thread that may wait.
    fn fault(self: &Arc<Self>, process: &Arc<Process>, book: &mut Book, address: u64, since: Instant) -> Answer {
        self.board.add(Word::Faults, 1);
        if book.doomed {
            return Answer::Settled;
        }
        let address = address - address % PAGE_BYTES;
        match self.answer_locally(process, book, address) {
            Ok(true) => self.board.count_latency(since.elapsed().as_nanos() as u64),
            Ok(false) => self.demand.add(Wanted::new(process, address, since)),
            Err(Trouble::Again | Trouble::Failed(_)) => return Answer::Again,
            Err(Trouble::Gone) => return Answer::Gone,
        }
        Answer::Settled
    }

    /// Whether it could be answered without waiting.
    fn answer_locally(&self, process: &Process, book: &mut Book, address: u64) -> Result<bool, Trouble> {
        let Some(number) = book.space.number(address).filter(|number| process.missing.has(*number)) else {
            self.board.add(Word::ZeroPages, 1);
            return process.zero(address).map(|()| true);
        };
        let image = &process.image;
        image.note_fault(number);
        let place = image.layout.address(number);
        let block = place.saturating_sub(number % NEIGHBOUR_PAGES * PAGE_BYTES);
        if let Some(cluster) = image.standing(place, &(block..block + NEIGHBOUR_BYTES)) {
            self.board.add(Word::FaultPages, process.answer(book, &cluster, number)?);
            self.board.add(Word::Local, 1);
            return Ok(true);
        }
        if !image.source.is_local(place) {
            return Ok(false);
        }
        match image.source.cluster(place) {
            Ok(cluster) if cluster.is_sound(place) => {
                self.board.add(Word::FaultPages, process.answer(book, &cluster, number)?);
                self.board.add(Word::Local, 1);
                Ok(true)
            }
            // Whoever may wait finds out what is wrong.
            Ok(_) | Err(_) => Ok(false),
        }
    }

    /// Ends the service of a process that has all its pages.
    pub(super) fn settle(&self, process: &Arc<Process>) {
        let book = lock(&process.book);
        if book.left == 0 && !book.doomed && !process.is_over() {
            if let Some(still) = process.image.still.get() {
                still.complete(process);
            }
            process.unregister(&book);
            drop(book);
            self.retire(process);
        }
    }
}

/// What became of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// It is answered, or somebody will.
    Settled,
    /// The kernel is changing the mappings.
    Again,
    /// The process is gone.
    Gone,
}
