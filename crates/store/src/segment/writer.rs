//! Writes a segment as a stream.

use crate::{
    id::{Realm, SegmentId},
    keys::DataKey,
    limits,
    object::{ObjectError, Objects, Upload},
    seal::{OVERHEAD, SegmentKey},
};

use super::{
    ChunkRef,
    layout::{self, FOOTER_BYTES, Footer},
};

/// Why a chunk could not be added, or a segment not be finished.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum WriteError {
    #[error("a chunk of {bytes} bytes is larger than {}", limits::CHUNK_BYTES_MAX)]
    ChunkTooLarge { bytes: usize },
    #[error("segment {segment} is full: begin another")]
    Full { segment: SegmentId },
    #[error("segment {segment} could not be written")]
    Upload { segment: SegmentId, source: ObjectError },
}

/// A segment that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its identifier.
    pub id: SegmentId,
    /// Bytes of its object.
    pub bytes: u64,
    /// How many chunks it has.
    pub chunks: u32,
}

/// Writes one segment. Nobody can read it before [`SegmentWriter::finish`]; dropped before, it leaves nothing. Memory is bounded as an
/// [`Upload`]'s is. After an error it is of no use.
pub struct SegmentWriter {
    id: SegmentId,
    key: SegmentKey,
    upload: Upload,
    offset: u64,
    /// The sealed length of each chunk.
    lengths: Vec<u32>,
}

impl SegmentWriter {
    /// Begins a segment of `realm`, sealed under `key`.
    pub fn new(objects: &Objects, realm: &Realm, key: &DataKey) -> Self {
        Self::with_id(objects, realm, key, SegmentId::random())
    }

    /// `id` must be fresh: it decides the key, and numbers of chunks are nonces.
    pub(super) fn with_id(objects: &Objects, realm: &Realm, key: &DataKey, id: SegmentId) -> Self {
        let mut upload = objects.upload(&super::object_key(realm, id));
        let header = layout::encode_header(id, key.id(), realm);
        upload.buffer().extend_from_slice(&header);
        let key = SegmentKey::derive(key, realm, id);
        Self { id, key, upload, offset: header.len() as u64, lengths: Vec::new() }
    }

    /// Its identifier.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.offset
    }

    /// Seals `plain` as the next chunk. The reference is good once the segment is finished.
    pub async fn append(&mut self, plain: &[u8]) -> Result<ChunkRef, WriteError> {
        if plain.len() > limits::CHUNK_BYTES_MAX {
            return Err(WriteError::ChunkTooLarge { bytes: plain.len() });
        }
        let number = self.lengths.len() as u32;
        let length = (plain.len() + OVERHEAD) as u32;
        let chunk = ChunkRef { segment: self.id, offset: self.offset, length, number };
        if !chunk.is_possible() {
            return Err(WriteError::Full { segment: self.id });
        }
        // Before anything that waits: if the caller gives up meanwhile, this number's nonce is still used only once.
        self.lengths.push(length);
        self.offset = chunk.end();
        self.key.seal(number, plain, self.upload.buffer());
        self.upload.pass_on().await.map_err(|source| WriteError::Upload { segment: self.id, source })?;
        Ok(chunk)
    }

    /// Writes index and footer; the segment is durable and readable when this returns.
    pub async fn finish(mut self) -> Result<Segment, WriteError> {
        let index = layout::encode_index(&self.lengths);
        let chunks = self.lengths.len() as u32;
        let footer = Footer { segment: self.id, index_offset: self.offset, index_bytes: index.len() as u32, chunks };
        let failed = |source| WriteError::Upload { segment: self.id, source };
        self.upload.write(&index).await.map_err(failed)?;
        self.upload.write(&layout::encode_footer(&footer)).await.map_err(failed)?;
        self.upload.finish().await.map_err(failed)?;
        let bytes = self.offset + (index.len() + FOOTER_BYTES) as u64;
        Ok(Segment { id: self.id, bytes, chunks })
    }
}
