//! The back of a dump: puts chunks in order, appends them, writes the index.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::mpsc,
};

use super::{Dump, Entry, Goes, Packed};
use crate::{
    chunks::{ChunkId, ChunkSink},
    error::Error,
    image::{Builder, What},
    limits::RECENT_CHUNKS_MAX,
    page::PAGE_BYTES,
};

pub(super) fn run(
    packed: mpsc::Receiver<Result<Packed, Error>>,
    free: mpsc::Sender<Vec<u8>>,
    sink: &mut dyn ChunkSink,
) -> Result<Dump, Error> {
    let mut index = Index { builder: Builder::default(), recent: VecDeque::new(), next: 0, sink };
    let mut early = BTreeMap::new();
    for result in packed {
        let result = result?;
        early.insert(result.job.number, result);
        while let Some(Packed { mut job, bytes }) = early.remove(&index.next) {
            index.add(job.plain.len() / PAGE_BYTES, &bytes, &job.entries)?;
            job.plain.clear();
            // At the end nobody takes buffers any more.
            let _ = free.send(job.plain);
        }
    }
    let totals = *index.builder.totals_mut();
    Ok(Dump { root: index.builder.finish(index.sink)?, totals })
}

struct Index<'a> {
    builder: Builder,
    /// Names of the last chunks; none for a number without a chunk.
    recent: VecDeque<Option<ChunkId>>,
    next: u32,
    sink: &'a mut dyn ChunkSink,
}

impl Index<'_> {
    fn add(&mut self, pages: usize, bytes: &[u8], entries: &[Entry]) -> Result<(), Error> {
        let mut append = || self.sink.append(bytes).map_err(|source| Error::Write { source });
        let id = if bytes.is_empty() { None } else { Some(append()?) };
        self.recent.push_back(id);
        if self.recent.len() > RECENT_CHUNKS_MAX {
            self.recent.pop_front();
        }
        self.next += 1;
        let totals = self.builder.totals_mut();
        totals.chunks += u64::from(id.is_some());
        totals.chunk_bytes += bytes.len() as u64;
        totals.data_pages += pages as u64;
        let mut placed = 0;
        for entry in entries {
            self.push(*entry, &mut placed)?;
        }
        self.builder.totals_mut().duplicate_pages += placed - pages as u64;
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
