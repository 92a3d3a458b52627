//! The same image in another place, where its chunks have other names.

use super::{
    Leaf, PageImage,
    build::place,
    root::{LeafRef, Root},
};
use crate::{
    chunks::{ChunkId, ChunkSink, ChunkSource},
    error::{BoxError, Error},
};

/// A place that an image moves to. As a [`ChunkSink`] it takes parts of the index.
pub trait ChunkMover: ChunkSink {
    /// The names that `chunks`, all of pages, have there; brings those there that are not. In order, as the index meets them; a chunk
    /// that several parts of the index use is asked for again.
    fn names(&mut self, chunks: &[ChunkId]) -> Result<Vec<ChunkId>, BoxError>;
}

impl PageImage {
    /// The root of this image in the place `to`. Its index is read through `source`, a leaf at a time.
    pub fn moved(&self, source: &dyn ChunkSource, to: &mut impl ChunkMover) -> Result<Vec<u8>, Error> {
        let mut root = Root { totals: self.root.totals, leaves: Vec::with_capacity(self.root.leaves.len()) };
        let mut inline_bytes = 0;
        for at in &self.root.leaves {
            let Leaf { runs, chunks } = self.load(at, source)?;
            let named = to.names(&chunks).map_err(|source| Error::Write { source })?;
            if named.len() != chunks.len() {
                let source = format!("{} names for {} chunks", named.len(), chunks.len()).into();
                return Err(Error::Write { source });
            }
            let leaf = Leaf { runs, chunks: named }.encode()?;
            let place = place(leaf, &mut inline_bytes, to)?;
            root.leaves.push(LeafRef { first: at.first, end: at.end, place });
        }
        root.encode()
    }
}
