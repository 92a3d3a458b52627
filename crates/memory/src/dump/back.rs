//! The back of a dump: puts chunks in order, appends them, writes the index.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::mpsc,
};

use super::{Dump, Entry, Goes, Packed};
use crate::{
    chunks::{ChunkId, ChunkSink},
    content::{Hash, Known, Writer},
    error::Error,
    image::{Builder, What},
    limits::RECENT_CHUNKS_MAX,
};

pub(super) fn run(
    packed: mpsc::Receiver<Result<Packed, Error>>,
    free: mpsc::Sender<Vec<u8>>,
    known: &Known,
    sink: &mut dyn ChunkSink,
) -> Result<Dump, Error> {
    let (builder, contents) = (Builder::default(), Writer::default());
    let mut index = Index { builder, contents, known, known_pages: 0, recent: VecDeque::new(), next: 0, sink };
    let mut early = BTreeMap::new();
    for result in packed {
        let result = result?;
        early.insert(result.job.number, result);
        while let Some(Packed { mut job, bytes }) = early.remove(&index.next) {
            index.add(&job.hashes, &bytes, &job.entries)?;
            job.plain.clear();
            // At the end nobody takes buffers any more.
            let _ = free.send(job.plain);
        }
    }
    let totals = *index.builder.totals_mut();
    let contents = index.contents.finish(index.sink)?;
    Ok(Dump { root: index.builder.finish(index.sink)?, totals, contents, known_pages: index.known_pages })
}

struct Index<'a> {
    builder: Builder,
    contents: Writer,
    known: &'a Known,
    known_pages: u64,
    /// Names of the last chunks; none for a number without a chunk.
    recent: VecDeque<Option<ChunkId>>,
    next: u32,
    sink: &'a mut dyn ChunkSink,
}

impl Index<'_> {
    fn add(&mut self, hashes: &[Hash], bytes: &[u8], entries: &[Entry]) -> Result<(), Error> {
        let mut append = || self.sink.append(bytes).map_err(|source| Error::Write { source });
        let id = if bytes.is_empty() { None } else { Some(append()?) };
        if let Some(id) = &id {
            self.contents.add(id, hashes, self.sink)?;
        }
        self.recent.push_back(id);
        if self.recent.len() > RECENT_CHUNKS_MAX {
            self.recent.pop_front();
        }
        self.next += 1;
        let totals = self.builder.totals_mut();
        totals.chunks += u64::from(id.is_some());
        totals.chunk_bytes += bytes.len() as u64;
        totals.data_pages += hashes.len() as u64;
        let mut placed = 0;
        for entry in entries {
            self.push(*entry, &mut placed)?;
        }
        self.builder.totals_mut().duplicate_pages += placed - hashes.len() as u64;
        Ok(())
    }

    fn push(&mut self, Entry { pages, goes }: Entry, placed: &mut u64) -> Result<(), Error> {
        let totals = self.builder.totals_mut();
        let what = match goes {
            Goes::Zero => {
                totals.zero_pages += pages.count;
                What::Zero
            }
            Goes::Parent => {
                totals.parent_pages += pages.count;
                What::Parent
            }
            Goes::Known(place) => {
                totals.parent_pages += pages.count;
                self.known_pages += pages.count;
                let id = self.known.chunk(place).ok_or(Error::TooLarge("it refers to a chunk that is not known"))?;
                What::Data { id, ordinal: place.ordinal }
            }
            Goes::To(place) => {
                *placed += pages.count;
                let back = (self.next - place.chunk) as usize;
                let id = self.recent.len().checked_sub(back).and_then(|at| self.recent[at]);
                What::Data { id: id.ok_or(Error::TooLarge("it refers too far back"))?, ordinal: place.ordinal }
            }
        };
        self.builder.push(pages, what, self.sink)
    }
}
