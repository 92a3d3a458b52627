//! Where chunks go and come from.

use std::fmt;

use crate::{error::BoxError, limits::CHUNK_ID_BYTES_MAX};

/// A chunk's name, given by the store: bytes that mean nothing here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkId {
    length: u8,
    bytes: [u8; CHUNK_ID_BYTES_MAX],
}

impl ChunkId {
    /// A name of at most [`CHUNK_ID_BYTES_MAX`] bytes.
    pub fn new(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; CHUNK_ID_BYTES_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { length: name.len() as u8, bytes })
    }

    /// The name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkId({self})")
    }
}

/// Takes chunks, in order, from one thread.
pub trait ChunkSink {
    /// Stores one chunk: compressed already, not sealed.
    fn append(&mut self, bytes: &[u8]) -> Result<ChunkId, BoxError>;
}

/// Gives chunks back, from any thread.
pub trait ChunkSource: Sync {
    /// The bytes of one chunk, as they were appended.
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, BoxError>;

    /// Several chunks, in the order asked for. A store that can join neighbours into one request does so here.
    fn read_many(&self, ids: &[ChunkId]) -> Result<Vec<Vec<u8>>, BoxError> {
        ids.iter().map(|id| self.read(id)).collect()
    }
}

impl<S: ChunkSource + ?Sized> ChunkSource for &S {
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, BoxError> {
        (**self).read(id)
    }

    fn read_many(&self, ids: &[ChunkId]) -> Result<Vec<Vec<u8>>, BoxError> {
        (**self).read_many(ids)
    }
}
