//! Building an index from runs in order, with bounded memory: full leaves go to the sink once the root has its share of them.

use std::{collections::HashMap, mem};

use super::{
    leaf::{Kind, Leaf, Run},
    root::{LeafPlace, LeafRef, Root},
};
use crate::{
    chunks::{ChunkId, ChunkSink},
    error::Error,
    limits::{LEAF_RUNS_MAX, PAGE_NUMBER_END, ROOT_INLINE_BYTES_MAX},
    page::PageRun,
};

/// Where pages are, with the chunk's own name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Zero,
    Parent,
    Data { id: ChunkId, ordinal: u16 },
}

#[derive(Debug, Default)]
pub(crate) struct Builder {
    pub(super) root: Root,
    leaf: Leaf,
    /// Numbers of the leaf's chunks.
    numbers: HashMap<ChunkId, u32>,
    inline_bytes: usize,
    end: u64,
}

impl Builder {
    pub(crate) fn totals_mut(&mut self) -> &mut super::Totals {
        &mut self.root.totals
    }

    /// Adds a run behind all others.
    pub(crate) fn push(&mut self, pages: PageRun, what: What, sink: &mut dyn ChunkSink) -> Result<(), Error> {
        if pages.first < self.end {
            return Err(Error::Order { page: pages.first, last: self.end });
        }
        if pages.end() > PAGE_NUMBER_END {
            return Err(Error::TooLarge("a page is beyond all address spaces"));
        }
        self.end = pages.end();
        let mut first = pages.first;
        while first < pages.end() {
            let count = u32::try_from(pages.end() - first).unwrap_or(u32::MAX);
            self.push_run(first, count, what, sink)?;
            first += u64::from(count);
        }
        Ok(())
    }

    fn push_run(&mut self, first: u64, count: u32, what: What, sink: &mut dyn ChunkSink) -> Result<(), Error> {
        let known = self.known(what);
        let joins = |last: &mut Run| known.is_some_and(|kind| last.join(Run { first, count, kind }));
        if self.leaf.runs.last_mut().is_some_and(joins) {
            return Ok(());
        }
        if self.leaf.runs.len() == LEAF_RUNS_MAX {
            self.flush(sink)?;
        }
        self.number(what);
        self.leaf.runs.extend(self.known(what).map(|kind| Run { first, count, kind }));
        Ok(())
    }

    /// `what` in the leaf's numbers; none if its chunk has no number yet.
    fn known(&self, what: What) -> Option<Kind> {
        match what {
            What::Zero => Some(Kind::Zero),
            What::Parent => Some(Kind::Parent),
            What::Data { id, ordinal } => self.numbers.get(&id).map(|chunk| Kind::Data { chunk: *chunk, ordinal }),
        }
    }

    /// Gives the chunk of `what` a number if it has none.
    fn number(&mut self, what: What) {
        if let (What::Data { id, .. }, None) = (what, self.known(what)) {
            self.numbers.insert(id, self.leaf.chunks.len() as u32);
            self.leaf.chunks.push(id);
        }
    }

    fn flush(&mut self, sink: &mut dyn ChunkSink) -> Result<(), Error> {
        let leaf = mem::take(&mut self.leaf);
        self.numbers.clear();
        let Some((first, end)) = leaf.span() else { return Ok(()) };
        let bytes = leaf.encode()?;
        let place = place(bytes, &mut self.inline_bytes, sink)?;
        self.root.leaves.push(LeafRef { first, end, place });
        Ok(())
    }

    /// The framed root.
    pub(crate) fn finish(mut self, sink: &mut dyn ChunkSink) -> Result<Vec<u8>, Error> {
        self.flush(sink)?;
        self.root.encode()
    }
}

/// Puts an encoded leaf into the root, which has `inline_bytes` of them, or into a chunk if there is no room.
pub(super) fn place(bytes: Vec<u8>, inline_bytes: &mut usize, sink: &mut dyn ChunkSink) -> Result<LeafPlace, Error> {
    if *inline_bytes + bytes.len() <= ROOT_INLINE_BYTES_MAX {
        *inline_bytes += bytes.len();
        return Ok(LeafPlace::Inline(bytes));
    }
    Ok(LeafPlace::Chunk(sink.append(&bytes).map_err(|source| Error::Write { source })?))
}
