//! The index of an image: which page is where.
//!
//! ```text
//!  root ─ totals, leaves by first page ─┬─► leaf in the root itself (small images: all of them)
//!                                       └─► leaf as a chunk
//!  leaf ─ up to 4,096 runs of pages, each zero | parent | data (chunk, page in the chunk)
//! ```
//!
//! Finding a page is one binary search in the root and one in a leaf.

mod build;
mod leaf;
mod rename;
mod root;

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
};

use lru::LruCache;

pub(crate) use build::{Builder, What};
pub(crate) use leaf::{Kind, Leaf, Run};
pub use rename::ChunkMover;

use crate::{
    chunks::ChunkSource,
    error::{Damage, Error},
    limits::OPEN_LEAVES_MAX,
};
use root::{LeafPlace, LeafRef, Root};

/// What an image holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Pages of zeros.
    pub zero_pages: u64,
    /// Pages that are as in the parent image, or in a chunk of it or of those before it.
    pub parent_pages: u64,
    /// Pages whose bytes are in a chunk, each counted where it is first.
    pub data_pages: u64,
    /// Pages equal to a data page.
    pub duplicate_pages: u64,
    /// Chunks of data.
    pub chunks: u64,
    /// Bytes of these chunks.
    pub chunk_bytes: u64,
}

/// An opened index.
pub struct PageImage {
    root: Root,
    open: Mutex<LruCache<usize, Arc<Leaf>>>,
}

impl PageImage {
    /// Checks the root of an image, as [`crate::dump`] returned it.
    pub fn open(root: &[u8]) -> Result<Self, Error> {
        let leaves = const { NonZeroUsize::new(OPEN_LEAVES_MAX).expect("more than none") };
        Ok(Self { root: Root::decode(root)?, open: Mutex::new(LruCache::new(leaves)) })
    }

    /// What the image holds.
    pub fn totals(&self) -> Totals {
        self.root.totals
    }

    /// Index of the first leaf that has pages at or after `page`.
    pub(crate) fn leaf_from(&self, page: u64) -> usize {
        self.root.leaves.partition_point(|leaf| leaf.end <= page)
    }

    /// The leaf at `index`, and its first page; none after the last.
    pub(crate) fn leaf_start(&self, index: usize) -> Option<u64> {
        self.root.leaves.get(index).map(|leaf| leaf.first)
    }

    /// The leaf at `index`, which must exist.
    pub(crate) fn leaf(&self, index: usize, source: &dyn ChunkSource) -> Result<Arc<Leaf>, Error> {
        let open = || self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leaf) = open().get(&index) {
            return Ok(Arc::clone(leaf));
        }
        let leaf = Arc::new(self.load(&self.root.leaves[index], source)?);
        open().put(index, Arc::clone(&leaf));
        Ok(leaf)
    }

    fn load(&self, at: &LeafRef, source: &dyn ChunkSource) -> Result<Leaf, Error> {
        let leaf = match &at.place {
            LeafPlace::Inline(bytes) => Leaf::decode(bytes)?,
            LeafPlace::Chunk(id) => Leaf::decode(&source.read(id).map_err(|source| Error::Read { id: *id, source })?)?,
        };
        // A whole leaf of another image, or of another part of this one, must not pass for this.
        if leaf.span() != Some((at.first, at.end)) {
            return Err(Damage::Layout("the leaf has other pages than the root says").of("index"));
        }
        Ok(leaf)
    }
}

#[cfg(test)]
mod tests;
