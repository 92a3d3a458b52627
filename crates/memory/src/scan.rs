//! Which pages are in an image: those that belong to the process alone, and of these the ones that it still shares with an older process.

use std::fs::File;

use sys::remote::{self, Range};

use crate::{
    error::Error,
    limits::SCAN_BYTES,
    page::{PAGE_BYTES, PageRun},
};

/// Consecutive pages of a process that go the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// To be read from the process.
    Own(PageRun),
    /// The same as in the parent image.
    Parent(PageRun),
}

/// Walks ranges of a process that stands still and gives its own pages (anonymous, in memory or swap), in order. Memory is bounded whatever
/// the ranges: they are looked at in windows. Needs kernel 6.7 (`PAGEMAP_SCAN`).
#[derive(Debug)]
pub struct Scan<R> {
    process: PageMap,
    base: Option<PageMap>,
    ranges: R,
    within: Range,
    found: std::vec::IntoIter<Piece>,
}

#[derive(Debug)]
struct PageMap {
    pid: i32,
    file: File,
}

impl PageMap {
    fn open(pid: i32) -> Result<Self, Error> {
        let opened = File::open(format!("/proc/{pid}/pagemap"));
        let file = opened.map_err(|source| Error::Process { operation: "open the page map", pid, source })?;
        Ok(Self { pid, file })
    }

    fn own(&self, within: Range) -> Result<Vec<Range>, Error> {
        let scanned = remote::private_pages(&self.file, within);
        scanned.map_err(|source| Error::Process { operation: "scan the page map", pid: self.pid, source })
    }

    /// A process that has ended has no pages, and some kernels (6.18) say just that. Reading tells.
    fn expect_alive(&self) -> Result<(), Error> {
        self.entries(Range { start: 0, end: PAGE_BYTES as u64 }).map(drop)
    }

    fn entries(&self, within: Range) -> Result<Vec<u64>, Error> {
        let read = remote::page_entries(&self.file, within);
        read.map_err(|source| Error::Process { operation: "read the page map", pid: self.pid, source })
    }
}

impl<R: Iterator<Item = Range>> Scan<R> {
    /// The own pages of `pid` in `ranges`, which must be in order and whole pages.
    pub fn new(pid: i32, ranges: impl IntoIterator<IntoIter = R>) -> Result<Self, Error> {
        let process = PageMap::open(pid)?;
        let (within, found) = (Range { start: 0, end: 0 }, Vec::new().into_iter());
        Ok(Self { process, base: None, ranges: ranges.into_iter(), within, found })
    }

    /// The same, but pages behind which there is the same physical memory as in process `base` are [`Piece::Parent`]. `base` must stand
    /// still, too, have forked `pid` (or its forebear), and hold at these addresses what the parent image says. Seeing frames needs
    /// CAP_SYS_ADMIN; without it all pages are own.
    pub fn against(pid: i32, base: i32, ranges: impl IntoIterator<IntoIter = R>) -> Result<Self, Error> {
        Ok(Self { base: Some(PageMap::open(base)?), ..Self::new(pid, ranges)? })
    }

    fn look(&mut self) -> Result<(), Error> {
        let end = self.within.end.min(self.within.start.saturating_add(SCAN_BYTES));
        let window = Range { start: self.within.start, end };
        self.within.start = end;
        let mut pieces = Vec::new();
        for run in self.process.own(window)? {
            match &self.base {
                None => pieces.push(Piece::Own(pages(run))),
                Some(base) => compare(&self.process, base, run, &mut pieces)?,
            }
        }
        self.found = pieces.into_iter();
        Ok(())
    }
}

impl<R: Iterator<Item = Range>> Iterator for Scan<R> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(piece) = self.found.next() {
                return Some(Ok(piece));
            }
            if self.within.start >= self.within.end {
                match self.ranges.next() {
                    Some(range) => self.within = range,
                    None => return self.process.expect_alive().err().map(Err),
                }
            }
            if let Err(error) = self.look() {
                return Some(Err(error));
            }
        }
    }
}

/// Cuts a run where its pages begin or cease to be those of `base`. The kernel may move pages meanwhile; so that no move can make two look
/// equal, the process is read before and after. A page that moved is taken for changed, which costs space only.
fn compare(process: &PageMap, base: &PageMap, run: Range, pieces: &mut Vec<Piece>) -> Result<(), Error> {
    let before = process.entries(run)?;
    let theirs = base.entries(run)?;
    let after = process.entries(run)?;
    let same: Vec<bool> =
        before.iter().zip(&theirs).zip(&after).map(|((a, b), c)| *a != 0 && a == b && a == c).collect();
    let mut first = run.start / PAGE_BYTES as u64;
    for part in same.chunk_by(|a, b| a == b) {
        let pages = PageRun { first, count: part.len() as u64 };
        pieces.push(if part[0] { Piece::Parent(pages) } else { Piece::Own(pages) });
        first = pages.end();
    }
    Ok(())
}

fn pages(range: Range) -> PageRun {
    PageRun::between(range.start / PAGE_BYTES as u64, range.end / PAGE_BYTES as u64)
}
