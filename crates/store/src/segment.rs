//! Segments: immutable objects of sealed chunks, one after the other, each readable alone.
//!
//! ```text
//! header   frame: segment id, data key id, realm
//! chunk 0  sealed (see `seal`)
//! chunk 1  ...
//! index    frame: the sealed length of each chunk
//! footer   frame of fixed size: segment id, where the index begins, its length, how many chunks
//! ```
//!
//! A [`ChunkRef`] alone is enough to read a chunk with one range request; only [`SegmentReader`], which verifies whole segments, needs
//! the index. Bytes are laid out in `docs/formats/segment.md`.

use std::fmt;

use crate::{
    id::{Realm, SegmentId},
    limits, seal,
};

mod layout;
mod reader;
mod writer;

#[cfg(feature = "fuzzing")]
pub(crate) use layout::fuzz;
pub use reader::{SegmentError, SegmentReader};
pub use writer::{Segment, SegmentWriter, WriteError};

/// Where a chunk is. Whoever keeps one must keep it unforged (under a hash): it is trusted to name the chunk that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkRef {
    /// The segment it is in.
    pub segment: SegmentId,
    /// Where its sealed bytes begin in the segment's object.
    pub offset: u64,
    /// How many sealed bytes it has.
    pub length: u32,
    /// Its place among the segment's chunks, from 0.
    pub number: u32,
}

/// Bytes that are not a chunk's reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are not the reference of a chunk")]
pub struct InvalidChunkRef;

impl ChunkRef {
    /// Bytes of an encoded reference.
    pub const BYTES: usize = 32;

    /// The bytes of the chunk before it was sealed.
    pub fn plain_bytes(&self) -> u32 {
        self.length.saturating_sub(seal::OVERHEAD as u32)
    }

    /// Segment, offset, length and number, little-endian.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.segment.0);
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_le_bytes());
        bytes[28..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// The reference that was encoded as `bytes`; refuses what no writer makes.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidChunkRef> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| InvalidChunkRef)?;
        let (segment, rest) = bytes.split_first_chunk().ok_or(InvalidChunkRef)?;
        let (offset, rest) = rest.split_first_chunk().ok_or(InvalidChunkRef)?;
        let (length, rest) = rest.split_first_chunk().ok_or(InvalidChunkRef)?;
        let number = rest.first_chunk().ok_or(InvalidChunkRef)?;
        let chunk = Self {
            segment: SegmentId(*segment),
            offset: u64::from_le_bytes(*offset),
            length: u32::from_le_bytes(*length),
            number: u32::from_le_bytes(*number),
        };
        if chunk.is_possible() { Ok(chunk) } else { Err(InvalidChunkRef) }
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.length))
    }

    /// Could a writer have made it? Asked before anything of its length is allocated or fetched.
    pub(crate) fn is_possible(&self) -> bool {
        (seal::OVERHEAD..=limits::CHUNK_BYTES_MAX + seal::OVERHEAD).contains(&(self.length as usize))
            && self.end() <= limits::SEGMENT_BYTES_MAX
            && (self.number as usize) < limits::CHUNKS_MAX
    }
}

impl fmt::Display for ChunkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.number)
    }
}

/// The object that holds a segment.
pub fn object_key(realm: &Realm, segment: SegmentId) -> String {
    format!("realms/{realm}/segments/{segment}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        id::KeyId,
        keys::DataKey,
        object::{Location, Objects, RequestOptions},
    };

    #[tokio::test]
    async fn the_bytes_are_the_documented_ones() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::Directory(folder.path().to_owned());
        let objects = Objects::open(&location, RequestOptions::default()).unwrap();
        let secret: Vec<u8> = (0..32).collect();
        let key = DataKey::new(KeyId(*b"\x10\x11\x12\x13\x14\x15\x16\x17"), 3, secret.try_into().unwrap());
        let realm: Realm = "golden".parse().unwrap();
        let mut writer = SegmentWriter::with_id(&objects, &realm, &key, SegmentId(*b"0123456789abcdef"));
        for plain in [&b"first chunk"[..], b"", &[0; 100]] {
            writer.append(plain).await.unwrap();
        }
        let segment = writer.finish().await.unwrap();
        let bytes = objects.get(&object_key(&realm, segment.id), 1 << 20).await.unwrap();
        assert_eq!(bytes, include_bytes!("../tests/golden/segment-v1.bin")[..]);
        assert_eq!((segment.bytes, segment.chunks), (bytes.len() as u64, 3));
    }

    #[tokio::test]
    async fn a_chunk_that_is_too_large_or_too_many_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::Directory(folder.path().to_owned());
        let objects = Objects::open(&location, RequestOptions::default()).unwrap();
        let key = DataKey::new(KeyId([1; 8]), 0, [1; 32]);
        let mut writer = SegmentWriter::new(&objects, &"test".parse().unwrap(), &key);
        let large = writer.append(&vec![0; limits::CHUNK_BYTES_MAX + 1]).await;
        assert!(matches!(large, Err(WriteError::ChunkTooLarge { .. })));
        let last = writer.append(&vec![0; limits::CHUNK_BYTES_MAX]).await.unwrap();
        assert!(ChunkRef { number: limits::CHUNKS_MAX as u32 - 1, ..last }.is_possible());
        assert!(!ChunkRef { number: limits::CHUNKS_MAX as u32, ..last }.is_possible());
        assert!(!ChunkRef { offset: limits::SEGMENT_BYTES_MAX, ..last }.is_possible());
    }
}
