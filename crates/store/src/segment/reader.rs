//! Reads a segment as a whole: what chunks it has, and whether each of them opens.

use bytes::Bytes;

use crate::{
    id::SegmentId,
    keys::{KeyError, RealmKeys},
    limits,
    object::{ObjectError, Objects},
    seal::{self, SegmentKey},
};

use super::{
    ChunkRef,
    layout::{self, FOOTER_BYTES, LayoutError},
};

/// What a first request fetches of the end: footer and an index of 16,000 chunks.
const TAIL_BYTES: u64 = 64 << 10;

/// Why a segment is not sound, or could not be looked at.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum SegmentError {
    #[error("segment {segment} is not sound")]
    Layout { segment: SegmentId, source: LayoutError },
    #[error("chunk {chunk} does not open: it is damaged, or not the one that was written there")]
    Damaged { chunk: ChunkRef },
    #[error("segment {segment} could not be read")]
    Object { segment: SegmentId, source: ObjectError },
    #[error("the key of segment {segment} is not to be had")]
    Key { segment: SegmentId, source: KeyError },
}

/// A segment's index, and the way to its chunks without a cache.
pub struct SegmentReader<'a> {
    objects: &'a Objects,
    keys: &'a RealmKeys,
    segment: SegmentId,
    object: String,
    chunks: Vec<ChunkRef>,
}

impl<'a> SegmentReader<'a> {
    /// Reads the index of `segment`.
    pub async fn open(objects: &'a Objects, keys: &'a RealmKeys, segment: SegmentId) -> Result<Self, SegmentError> {
        let object = super::object_key(keys.realm(), segment);
        let failed = |source| SegmentError::Object { segment, source };
        let unsound = |source| SegmentError::Layout { segment, source };
        let (tail, size) = objects.get_tail(&object, TAIL_BYTES).await.map_err(failed)?;
        let footer_at = tail.len().saturating_sub(FOOTER_BYTES);
        let footer = layout::decode_footer(&tail[footer_at..], segment, size).map_err(unsound)?;
        let index = match (footer_at as u64).checked_sub(u64::from(footer.index_bytes)) {
            Some(start) => tail.slice(start as usize..footer_at),
            None => {
                let range = footer.index_offset..footer.index_offset + u64::from(footer.index_bytes);
                objects.get_range(&object, range).await.map_err(failed)?
            }
        };
        let lengths = layout::decode_index(&index, footer.chunks).map_err(unsound)?;
        let mut offset = layout::header_bytes(keys.realm());
        let mut chunks = Vec::with_capacity(lengths.len());
        for (number, length) in lengths.into_iter().enumerate() {
            let chunk = ChunkRef { segment, offset, length, number: number as u32 };
            if !chunk.is_possible() {
                return Err(unsound(LayoutError::Inconsistent { part: "index" }));
            }
            offset = chunk.end();
            chunks.push(chunk);
        }
        if offset != footer.index_offset {
            return Err(unsound(LayoutError::Inconsistent { part: "index" }));
        }
        Ok(Self { objects, keys, segment, object, chunks })
    }

    /// Its chunks, in order.
    pub fn chunks(&self) -> &[ChunkRef] {
        &self.chunks
    }

    /// Reads the whole segment, a few MiB at a time, and opens every chunk.
    pub async fn verify(&self) -> Result<(), SegmentError> {
        let unsound = |source| SegmentError::Layout { segment: self.segment, source };
        let header = self.fetch(0, layout::header_bytes(self.keys.realm())).await?;
        layout::check_header(&header, self.segment, self.keys.realm()).map_err(unsound)?;
        let mut rest = &self.chunks[..];
        while let Some(first) = rest.first() {
            let together =
                rest.iter().take_while(|chunk| chunk.end() - first.offset <= limits::RANGE_BYTES_MAX).count();
            let (group, later) = rest.split_at(together.max(1));
            let end = group.last().map_or(first.end(), ChunkRef::end);
            let bytes = self.fetch(first.offset, end).await?;
            for chunk in group {
                let start = (chunk.offset - first.offset) as usize;
                self.open_chunk(chunk, &bytes[start..start + chunk.length as usize]).await?;
            }
            rest = later;
        }
        Ok(())
    }

    async fn fetch(&self, start: u64, end: u64) -> Result<Bytes, SegmentError> {
        let fetched = self.objects.get_range(&self.object, start..end).await;
        fetched.map_err(|source| SegmentError::Object { segment: self.segment, source })
    }

    async fn open_chunk(&self, chunk: &ChunkRef, sealed: &[u8]) -> Result<Bytes, SegmentError> {
        let damaged = |_| SegmentError::Damaged { chunk: *chunk };
        let id = seal::key_id(sealed).map_err(damaged)?;
        let key = match self.keys.get(id).await {
            Err(KeyError::UnknownKey { .. }) => return Err(damaged(seal::BrokenSeal)),
            other => other.map_err(|source| SegmentError::Key { segment: self.segment, source })?,
        };
        SegmentKey::derive(&key, self.keys.realm(), self.segment).open(chunk.number, sealed).map_err(damaged)
    }
}
