//! The front of a dump: reads pages in bulk, classifies them, fills chunks.

use std::{mem, sync::mpsc};

use super::{Entry, Goes, Job};
use crate::{
    classify::{Class, Classifier, Place},
    codec::Packing,
    content::Known,
    error::Error,
    limits::{LEAF_RUNS_MAX, READ_BYTES},
    page::{PAGE_BYTES, PageRun},
    read::PageSource,
    scan::Piece,
};

/// Why the front ends early.
#[derive(Debug)]
pub(super) enum Halt {
    Failed(Error),
    /// The back has ended.
    Cancelled,
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

pub(super) fn run(
    source: &dyn PageSource,
    pieces: impl Iterator<Item = Result<Piece, Error>>,
    packing: Packing,
    known: &Known,
    jobs: mpsc::Sender<Job>,
    buffers: mpsc::Receiver<Vec<u8>>,
) -> Result<(), Halt> {
    let plain = buffers.recv().map_err(|_| Halt::Cancelled)?;
    let job = Job::new(0, plain);
    let chunk_bytes = usize::from(packing.chunk_pages) * PAGE_BYTES;
    let mut filler = Filler { job, chunk_bytes, classifier: Classifier::new(known), jobs, buffers };
    let mut batch = Batch { source, pieces: Vec::new(), bytes: 0, buffer: vec![0; READ_BYTES] };
    for piece in pieces {
        let mut left = Some(piece?);
        while let Some(piece) = left {
            left = batch.take(piece);
            if batch.is_full() {
                batch.flush(&mut filler)?;
            }
        }
    }
    batch.flush(&mut filler)?;
    filler.send()
}

/// Pieces that are read together.
struct Batch<'a> {
    source: &'a dyn PageSource,
    pieces: Vec<Piece>,
    bytes: usize,
    buffer: Vec<u8>,
}

impl Batch<'_> {
    /// Takes as much of `piece` as there is room for, and gives back the rest.
    fn take(&mut self, piece: Piece) -> Option<Piece> {
        let Piece::Own(pages) = piece else {
            self.pieces.push(piece);
            return None;
        };
        let room = ((READ_BYTES - self.bytes) / PAGE_BYTES) as u64;
        let now = PageRun { first: pages.first, count: pages.count.min(room) };
        self.pieces.push(Piece::Own(now));
        self.bytes += now.bytes() as usize;
        let rest = PageRun::between(now.end(), pages.end());
        (rest.count > 0).then_some(Piece::Own(rest))
    }

    fn is_full(&self) -> bool {
        self.bytes == READ_BYTES || self.pieces.len() >= LEAF_RUNS_MAX
    }

    fn flush(&mut self, filler: &mut Filler<'_>) -> Result<(), Halt> {
        let own = |piece: &Piece| match piece {
            Piece::Own(pages) => Some(*pages),
            Piece::Parent(_) => None,
        };
        let runs: Vec<PageRun> = self.pieces.iter().filter_map(own).collect();
        let mut rest = &mut self.buffer[..mem::take(&mut self.bytes)];
        self.source.read(&runs, rest)?;
        for piece in self.pieces.drain(..) {
            match piece {
                Piece::Parent(pages) => filler.add(pages, Goes::Parent)?,
                Piece::Own(pages) => {
                    let (bytes, after) = rest.split_at_mut(pages.bytes() as usize);
                    filler.fill(pages.first, bytes)?;
                    rest = after;
                }
            }
        }
        Ok(())
    }
}

/// Fills chunks with pages that are new.
struct Filler<'a> {
    job: Job,
    chunk_bytes: usize,
    classifier: Classifier<'a>,
    jobs: mpsc::Sender<Job>,
    buffers: mpsc::Receiver<Vec<u8>>,
}

impl Filler<'_> {
    fn fill(&mut self, first: u64, bytes: &[u8]) -> Result<(), Halt> {
        for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE_BYTES)) {
            let place = Place { chunk: self.job.number, ordinal: (self.job.plain.len() / PAGE_BYTES) as u16 };
            let goes = match self.classifier.classify(bytes, place) {
                Class::Zero => Goes::Zero,
                Class::Known(place) => Goes::Known(place),
                Class::Duplicate(place) => Goes::To(place),
                Class::New(hash) => {
                    self.job.hashes.push(hash);
                    self.job.plain.extend_from_slice(bytes);
                    Goes::To(place)
                }
            };
            self.add(PageRun { first: page, count: 1 }, goes)?;
        }
        Ok(())
    }

    fn add(&mut self, pages: PageRun, goes: Goes) -> Result<(), Halt> {
        match self.job.entries.last_mut() {
            Some(last) if continues(last, pages, goes) => last.pages.count += pages.count,
            _ => self.job.entries.push(Entry { pages, goes }),
        }
        // Runs without new pages must not pile up either.
        if self.job.plain.len() == self.chunk_bytes || self.job.entries.len() == LEAF_RUNS_MAX {
            self.send()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Halt> {
        let number = self.job.number.checked_add(1).ok_or(Error::TooLarge("it has too many chunks"))?;
        let plain = self.buffers.recv().map_err(|_| Halt::Cancelled)?;
        let full = mem::replace(&mut self.job, Job::new(number, plain));
        self.jobs.send(full).map_err(|_| Halt::Cancelled)
    }
}

/// Whether pages that go somewhere go on where `last` ends.
fn continues(last: &Entry, pages: PageRun, goes: Goes) -> bool {
    let same = match (last.goes, goes) {
        (Goes::To(from), Goes::To(to)) => {
            from.chunk == to.chunk && u64::from(from.ordinal) + last.pages.count == u64::from(to.ordinal)
        }
        (Goes::Known(from), Goes::Known(to)) => {
            from.chunk == to.chunk && u64::from(from.ordinal) + last.pages.count == u64::from(to.ordinal)
        }
        (last, goes) => last == goes,
    };
    same && last.pages.end() == pages.first
}
