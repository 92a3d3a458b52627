//! What clients ask of the guardian. It answers from the board; the pager is not asked.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{MemfdFlags, fstat, memfd_create},
    net::{SocketFlags, accept_with},
};

use super::Guardian;
use crate::{
    board::{
        Word, borrow, from_descriptor,
        image::{Description, PageImageRecord},
        process::{ProcessRecord, State},
        to_descriptor,
    },
    limits::{
        IMAGE_BYTES_MAX, IMAGES_MAX, MESSAGE_BYTES_MAX, NAME_BYTES_MAX, PAGES_MAX, PROCESSES_MAX, PROCESSES_RESERVE,
        SPANS_AT_START_MAX,
    },
    message::{Counters, Failure, PageImageStatus, Reply, Request, Status},
    pages::Layout,
};

/// What the guardian does after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    GoOn,
    End,
}

type Answer = Result<(Reply, Option<OwnedFd>), String>;

/// The connection in a client's place.
pub(super) fn descriptor(word: &AtomicU64) -> Option<RawFd> {
    to_descriptor(word.load(Ordering::Acquire))
}

impl Guardian {
    pub(super) fn accept(&mut self) {
        let Ok(listener) = borrow(self.board.descriptor(Word::Listener)) else { return };
        let Ok(client) = accept_with(&*listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else { return };
        // With no place left it is closed, which the client sees.
        if let Some(place) = self.board.clients().iter().find(|word| descriptor(word).is_none()) {
            place.store(from_descriptor(client.into_raw_fd()), Ordering::Release);
        }
    }

    fn hang_up(&self, place: usize) {
        let word = &self.board.clients()[place];
        if let Some(number) = descriptor(word) {
            word.store(0, Ordering::Release);
            drop(sys::share::adopt(number));
        }
    }

    /// Answers one request of the client in `place`; a client that breaks the rules, or does not read, is disconnected.
    pub(super) fn serve_client(&mut self, place: usize) -> After {
        let Ok(client) = borrow(descriptor(&self.board.clients()[place])) else { return After::GoOn };
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        let received = match sys::seqpacket::recv(&*client, &mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return After::GoOn,
            Err(_) | Ok((0, _)) => None,
            Ok((length, descriptors)) => {
                serde_json::from_slice(&buffer[..length]).ok().map(|request: Request| (request, descriptors))
            }
        };
        let Some((request, descriptors)) = received else {
            self.hang_up(place);
            return After::GoOn;
        };
        let ends = matches!(request, Request::Shutdown);
        let (reply, body) =
            self.answer(request, descriptors).unwrap_or_else(|reason| (Reply::Refused { reason }, None));
        let bodies: Vec<BorrowedFd<'_>> = body.iter().map(|body| body.as_fd()).collect();
        let sent = serde_json::to_vec(&reply).map_err(io::Error::from);
        let sent = sent.and_then(|bytes| sys::seqpacket::send(&*client, &bytes, &bodies));
        if sent.is_err() {
            self.hang_up(place);
        }
        if ends && matches!(reply, Reply::Done) { After::End } else { After::GoOn }
    }

    fn answer(&mut self, request: Request, descriptors: Vec<OwnedFd>) -> Answer {
        match request {
            Request::Serve { name, pid, ranges, image_bytes, parked } => {
                let [uffd, pidfd, image] =
                    <[OwnedFd; 3]>::try_from(descriptors).map_err(|_| "three descriptors are needed".to_owned())?;
                let image = Handed { name, pid, ranges, image_bytes, parked, memfd: image };
                self.serve(image, uffd, pidfd).map(|()| (Reply::Done, None))
            }
            Request::Status => {
                let json = serde_json::to_vec(&self.status()).map_err(|error| error.to_string())?;
                body(&json)
            }
            Request::WorkingSet { name } => {
                let image = self.board.images().find(|image| image.is_used() && image.name() == name);
                let order = image.ok_or_else(|| format!("no image {name} is served"))?.order();
                body(&order.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
            }
            Request::Hurry { name } => {
                let images = self.board.images().filter(|image| image.is_used() && image.name() == name);
                images.for_each(|image| image.hurry());
                Ok((Reply::Done, None))
            }
            Request::Forget { name } => {
                let images = self.board.images().filter(|image| image.is_used() && image.name() == name);
                images.for_each(|image| image.forget());
                Ok((Reply::Done, None))
            }
            Request::Shutdown => match self.unfinished() {
                0 => Ok((Reply::Done, None)),
                count => Err(format!("{count} processes still lack pages, which would read as zeros")),
            },
        }
    }

    /// Processes that lack pages, or may.
    pub(super) fn unfinished(&self) -> usize {
        self.board.processes().filter(|record| is_served(record.state())).count()
    }

    fn serve(&mut self, image: Handed, uffd: OwnedFd, pidfd: OwnedFd) -> Result<(), String> {
        let mut known = self.board.images().filter(|known| known.is_used() && known.name() == image.name);
        if let Some(known) = known.find(|known| !known.is_forgotten()) {
            // The answer to the first time was lost with the guardian that should have given it.
            let same = known.description().is_some_and(|known| known.pid == image.pid);
            return if same { Ok(()) } else { Err(format!("an image {} is served already", image.name)) };
        }
        image.check()?;
        if self.unfinished() >= PROCESSES_MAX - PROCESSES_RESERVE {
            return Err(format!("at most {} processes are served", PROCESSES_MAX - PROCESSES_RESERVE));
        }
        let place = self.free_place().ok_or_else(|| format!("at most {IMAGES_MAX} images are served"))?;
        let process = self.board.take_process(State::TakenByGuardian).ok_or("no place for a process")?;
        let serial = self.board.get(Word::Serials) + 1;
        self.board.set(Word::Serials, serial);
        process.enter(place.index, uffd.into_raw_fd(), Some((image.pid, pidfd.into_raw_fd())));
        let Handed { name, pid, ranges, image_bytes, parked, memfd } = image;
        place.enter(&Description { name, descriptor: memfd.into_raw_fd(), ranges, image_bytes, pid, parked }, serial);
        process.set_state(State::Active);
        place.complete();
        self.ring();
        Ok(())
    }

    /// A place for an image; else that of the one that was handed over first of those that no process needs any more: what was recorded of it
    /// had its time to be asked for.
    fn free_place(&self) -> Option<PageImageRecord> {
        if let Some(free) = self.board.images().find(|place| !place.is_used()) {
            return Some(free);
        }
        let done = self.board.images().filter(|image| image.is_complete() && !self.is_needed(*image));
        let oldest = done.min_by_key(|image| image.serial())?;
        self.remove_if_unused(oldest);
        Some(oldest).filter(|place| !place.is_used())
    }

    fn is_needed(&self, image: PageImageRecord) -> bool {
        let uses = |record: &ProcessRecord| record.state() != State::Free && record.image() == image.index;
        self.board.processes().any(|record| uses(&record))
    }

    /// Removes images that nobody asks for any more.
    pub(super) fn forget_images(&self) {
        for image in self.board.images().filter(|image| image.is_used() && image.is_forgotten()) {
            self.remove_if_unused(image);
        }
    }

    /// After a guardian's death: an image whose process it had not entered yet does not count.
    pub(super) fn forget_halves(&self) {
        for image in self.board.images().filter(|image| image.is_used() && !image.is_complete()) {
            self.remove_if_unused(image);
        }
    }

    fn remove_if_unused(&self, image: PageImageRecord) {
        if !self.is_needed(image) {
            let descriptor = image.descriptor();
            image.remove();
            drop(descriptor.map(sys::share::adopt));
        }
    }

    fn status(&self) -> Status {
        let board = self.board;
        let counters = Counters {
            pager_starts: board.get(Word::PagerStarts),
            takeovers: board.get(Word::Takeovers),
            faults: board.get(Word::Faults),
            local: board.get(Word::Local),
            fetches: board.get(Word::Fetches),
            zero_pages: board.get(Word::ZeroPages),
            fault_pages: board.get(Word::FaultPages),
            fill_pages: board.get(Word::FillPages),
            retries: board.get(Word::Retries),
            finished: board.get(Word::Finished),
        };
        let failures = board.failures();
        Status {
            images: board.images().filter(|image| image.is_used()).map(|image| self.image_status(image)).collect(),
            failures: failures.iter().filter_map(|json| serde_json::from_slice::<Failure>(json).ok()).collect(),
            pager_pid: board.get(Word::PagerPid) as i32,
            guardian_pid: rustix::process::getpid().as_raw_nonzero().get(),
            spare_pid: board.get(Word::SparePid) as i32,
            counters,
            latency: board.latencies(),
        }
    }

    fn image_status(&self, image: PageImageRecord) -> PageImageStatus {
        let records =
            self.board.processes().filter(|record| is_served(record.state()) && record.image() == image.index);
        let missing: Vec<u64> =
            records.map(|record| record.pages().map_or(0, |pages| record.missing(pages).count())).collect();
        PageImageStatus {
            name: image.name(),
            pid: image.description().map_or(0, |image| image.pid),
            processes: missing.len() as u64,
            missing_pages: missing.iter().sum(),
            working_set_pages: image.order().len() as u64,
        }
    }
}

fn is_served(state: State) -> bool {
    match state {
        State::Born | State::Active | State::Doomed | State::TakenByPager => true,
        State::Free | State::TakenByGuardian | State::Closing => false,
    }
}

/// An image as a client hands it over.
struct Handed {
    name: String,
    pid: i32,
    ranges: u64,
    image_bytes: u64,
    parked: bool,
    memfd: OwnedFd,
}

impl Handed {
    fn check(&self) -> Result<(), String> {
        if self.name.len() > NAME_BYTES_MAX {
            return Err(format!("a name has at most {NAME_BYTES_MAX} bytes"));
        }
        if self.ranges > SPANS_AT_START_MAX as u64 || self.image_bytes > IMAGE_BYTES_MAX {
            return Err(format!("at most {SPANS_AT_START_MAX} ranges and {IMAGE_BYTES_MAX} bytes of an image"));
        }
        let mut bytes = vec![0; self.ranges as usize * 16];
        let size = fstat(&self.memfd).map_err(|error| error.to_string())?.st_size as u64;
        let read = rustix::io::pread(&self.memfd, &mut bytes, 0).map_err(|error| error.to_string())?;
        if read != bytes.len() || size < read as u64 + self.image_bytes {
            return Err("the image is shorter than it should be".into());
        }
        let pages = Layout::decode(&bytes).map(|layout| layout.pages());
        match pages {
            None => Err("ranges must be whole pages, sorted and apart".into()),
            Some(pages) if pages > PAGES_MAX => Err(format!("{pages} pages; at most {PAGES_MAX}")),
            Some(_) => Ok(()),
        }
    }
}

/// A memfd is not bounded as a message is.
fn body(bytes: &[u8]) -> Answer {
    let write = || {
        let mut file = File::from(memfd_create("pando-pager", MemfdFlags::CLOEXEC)?);
        file.write_all(bytes)?;
        Ok::<_, io::Error>(file)
    };
    let file = write().map_err(|error| format!("cannot make the answer: {error}"))?;
    Ok((Reply::Body { bytes: bytes.len() as u64 }, Some(file.into())))
}
