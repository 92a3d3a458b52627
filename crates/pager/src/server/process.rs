//! One process: its lock, its bookkeeping, and the copying of pages.

use std::{
    collections::HashSet,
    io,
    mem::ManuallyDrop,
    ops::Range,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use sys::uffd::{Outcome, Uffd};

use super::{image::PageImage, lock};
use crate::{
    board::{
        borrow,
        process::{ProcessRecord, State},
    },
    limits::{NEIGHBOUR_PAGES, PAGE_BYTES},
    missing::Missing,
    pages::Cluster,
    space::{Space, Span},
};

/// The last page of user space. Below it is the stack, and there is hardly ever a mapping, even less one that is registered.
const PROBE: u64 = 0x7fff_ffff_e000;

/// Why copying stopped.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Events have to be read first.
    Again,
    /// The process is gone.
    Gone,
    /// The kernel has no memory for it, or the like.
    Failed(io::Error),
}

/// The records that this pager has processes of: a record must never have two, because both would close its descriptor.
pub(super) type Claims = Arc<Mutex<HashSet<usize>>>;

/// What changes of a process, under its lock.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) space: Space,
    /// Pages that are missing.
    pub(super) left: u64,
    /// It was killed, or should have been; its faults are not answered any more.
    pub(super) doomed: bool,
}

/// A process that is served.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) record: ProcessRecord,
    pub(super) image: Arc<PageImage>,
    pub(super) missing: Missing<'static>,
    pub(super) book: Mutex<Book>,
    uffd: Option<Uffd>,
    over: AtomicBool,
    claims: Claims,
}

impl Process {
    /// Takes the process of `record` over, as the record has it. `AlreadyExists`: somebody has.
    pub(super) fn new(record: ProcessRecord, image: &Arc<PageImage>, claims: &Claims) -> io::Result<Arc<Self>> {
        if !lock(claims).insert(record.index) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let opened = open(record);
        if opened.is_err() {
            lock(claims).remove(&record.index);
        }
        let uffd = opened?;
        let missing = record.missing(image.layout.pages());
        let doomed = record.state() == State::Doomed;
        image.joined();
        Ok(Arc::new(Self {
            record,
            image: Arc::clone(image),
            missing,
            book: Mutex::new(Book { space: record.space(), left: missing.count(), doomed }),
            uffd: Some(uffd.into()),
            over: AtomicBool::new(false),
            claims: Arc::clone(claims),
        }))
    }

    pub(super) fn uffd(&self) -> &Uffd {
        self.uffd.as_ref().expect("it is taken out when the process is dropped")
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The descriptor is closed when the last thread has let go of this. False: it was ended before.
    pub(super) fn end(&self) -> bool {
        !self.over.swap(true, Ordering::AcqRel)
    }

    /// Copies what is missing of `pages` of a cluster.
    pub(super) fn deliver(&self, book: &mut Book, cluster: &Cluster, pages: &Range<u64>) -> Result<u64, Trouble> {
        let mut copied = 0;
        for (start, numbers) in self.image.layout.numbers(&cluster.range()) {
            let mut rest = numbers.start.max(pages.start)..numbers.end.min(pages.end);
            while let Some(run) = self.missing.first_run(&rest) {
                rest.start = run.end;
                for span in book.space.places(&run) {
                    let from = start + (span.first - numbers.start) * PAGE_BYTES - cluster.start;
                    let bytes = &cluster.bytes[from as usize..(from + span.pages * PAGE_BYTES) as usize];
                    copied += self.copy_span(book, span, bytes)?;
                }
            }
        }
        Ok(copied)
    }

    /// Answers a fault on page `number` out of a cluster that has it, and brings its neighbours.
    pub(super) fn answer(&self, book: &mut Book, cluster: &Cluster, number: u64) -> Result<u64, Trouble> {
        // The page itself first: its process can go on while the neighbours are copied.
        let copied = self.deliver(book, cluster, &(number..number + 1))?;
        let block = number - number % NEIGHBOUR_PAGES;
        match self.deliver(book, cluster, &(block..block + NEIGHBOUR_PAGES)) {
            Ok(more) => Ok(copied + more),
            // The fault is answered. Neighbours are a gift.
            Err(Trouble::Again | Trouble::Failed(_)) => Ok(copied),
            Err(Trouble::Gone) => Err(Trouble::Gone),
        }
    }

    fn has(&self, book: &mut Book, numbers: Range<u64>) {
        book.left -= self.missing.clear(&numbers);
    }

    /// Copies one span. A page that is there already, or that is not mapped here, is not missing.
    fn copy_span(&self, book: &mut Book, span: Span, bytes: &[u8]) -> Result<u64, Trouble> {
        let mut done = 0;
        // A span may cross mappings (the program changed protections in it), which one copy may not: then page by page.
        let mut step = span.pages;
        while done < span.pages {
            let pages = step.min(span.pages - done);
            let at = span.at + done * PAGE_BYTES;
            let part = &bytes[(done * PAGE_BYTES) as usize..((done + pages) * PAGE_BYTES) as usize];
            let first = span.first + done;
            let settled = match self.uffd().copy(at, part).map_err(Trouble::Failed)? {
                Outcome::Done(bytes) => bytes / PAGE_BYTES,
                Outcome::Exists => {
                    // Somebody may have asked before it came.
                    let _ = self.uffd().wake(at..at + PAGE_BYTES);
                    1
                }
                Outcome::NoMapping if pages > 1 => {
                    step = 1;
                    continue;
                }
                Outcome::NoMapping if self.is_changing() || self.copy_again(at, part)? => return Err(Trouble::Again),
                // It is unmapped for good, or was never registered: nobody will miss it.
                Outcome::NoMapping => {
                    let _ = self.uffd().wake(at..at + PAGE_BYTES);
                    1
                }
                Outcome::Again => return Err(Trouble::Again),
                Outcome::Gone => return Err(Trouble::Gone),
            };
            self.has(book, first..first + settled);
            done += settled;
        }
        Ok(done)
    }

    /// Whether the process is changing its mappings. While it is, a page may be found nowhere that is about to be reported as moved.
    /// (Nothing that it changes can be completed meanwhile: its events are read under the lock that the caller holds.)
    fn is_changing(&self) -> bool {
        !matches!(self.probe(), Ok(Outcome::NoMapping))
    }

    /// After a change that failed, the page is where it was.
    fn copy_again(&self, at: u64, page: &[u8]) -> Result<bool, Trouble> {
        Ok(self.uffd().copy(at, page).map_err(Trouble::Failed)? != Outcome::NoMapping)
    }

    /// Asks for something that does nothing, to see what stands in the way: `NoMapping` is nothing.
    pub(super) fn probe(&self) -> io::Result<Outcome> {
        self.uffd().zeropage(PROBE..PROBE + PAGE_BYTES)
    }

    /// Fills the page at `address` with zeros.
    pub(super) fn zero(&self, address: u64) -> Result<(), Trouble> {
        let page = address..address + PAGE_BYTES;
        match self.uffd().zeropage(page.clone()).map_err(Trouble::Failed)? {
            Outcome::Done(_) => Ok(()),
            Outcome::Exists | Outcome::NoMapping => self.uffd().wake(page).map_err(Trouble::Failed),
            Outcome::Again => Err(Trouble::Again),
            Outcome::Gone => Err(Trouble::Gone),
        }
    }

    /// Lets all faults that nobody remembers be reported again.
    pub(super) fn wake_all(&self, book: &Book) {
        const USER_END: u64 = 0x7fff_ffff_f000;
        // Where it may begin is a setting; below the larger number there is hardly ever a mapping.
        let whole = [0x1000, 0x1_0000].into_iter().any(|start| self.uffd().wake(start..USER_END).is_ok());
        if !whole {
            for span in book.space.spans() {
                let _ = self.uffd().wake(span.at..span.at + span.pages * PAGE_BYTES);
            }
        }
    }

    /// Absent pages are the kernel's own zeros from now on. Only when nothing is missing.
    pub(super) fn unregister(&self, book: &Book) {
        for span in book.space.spans() {
            // Parts may be unmapped meanwhile. Closing the descriptor does the same; this is for when somebody has a duplicate.
            let _ = self.uffd().unregister(span.at..span.at + span.pages * PAGE_BYTES);
        }
    }
}

/// The descriptor of a process.
fn open(record: ProcessRecord) -> io::Result<OwnedFd> {
    // A blocking one cannot be polled. What is none is found out before it is owned, and so closed.
    let uffd = borrow(record.uffd())?;
    fcntl_setfl(&*uffd, fcntl_getfl(&*uffd)? | OFlags::NONBLOCK)?;
    Ok(ManuallyDrop::into_inner(uffd))
}

impl Drop for Process {
    fn drop(&mut self) {
        let uffd: Option<OwnedFd> = self.uffd.take().map(Into::into);
        if !self.is_over() {
            // Closing it would make pages zeros that are not.
            std::mem::forget(uffd);
            return;
        }
        self.image.left();
        let pidfd = self.record.pidfd().and_then(|number| sys::share::adopt(number).ok());
        self.record.set_state(State::Closing);
        drop(uffd);
        drop(pidfd);
        lock(&self.claims).remove(&self.record.index);
        self.record.free();
    }
}
