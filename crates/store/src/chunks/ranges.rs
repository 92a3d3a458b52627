//! Range requests for several chunks at once.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OnceCell;

use crate::{
    id::SegmentId,
    limits::{GAP_BYTES_MAX, RANGE_BYTES_MAX},
    object::ObjectError,
    segment::ChunkRef,
};

/// Bytes of a segment's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) segment: SegmentId,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Range {
    pub(super) fn of(chunk: &ChunkRef) -> Self {
        Self { segment: chunk.segment, start: chunk.offset, end: chunk.end() }
    }

    fn covers(&self, chunk: &ChunkRef) -> bool {
        self.segment == chunk.segment && self.start <= chunk.offset && chunk.end() <= self.end
    }
}

/// The fewest ranges that have `chunks` without reading over large gaps, none longer than a request should be. In order.
pub(super) fn coalesce(chunks: Vec<ChunkRef>) -> Vec<Arc<SharedRange>> {
    spans(chunks).into_iter().map(|range| Arc::new(SharedRange { range, bytes: OnceCell::new() })).collect()
}

/// The one of `ranges` that has `chunk`.
pub(super) fn find(ranges: &[Arc<SharedRange>], chunk: &ChunkRef) -> Option<Arc<SharedRange>> {
    let place = (chunk.segment, chunk.offset);
    let behind = ranges.partition_point(|shared| (shared.range.segment, shared.range.start) <= place);
    let shared = ranges.get(behind.checked_sub(1)?)?;
    shared.range.covers(chunk).then(|| shared.clone())
}

fn spans(mut chunks: Vec<ChunkRef>) -> Vec<Range> {
    chunks.sort_unstable_by_key(|chunk| (chunk.segment, chunk.offset));
    let mut ranges: Vec<Range> = Vec::new();
    for chunk in &chunks {
        match ranges.last_mut() {
            Some(range)
                if range.segment == chunk.segment
                    && chunk.offset <= range.end + GAP_BYTES_MAX
                    && chunk.end().max(range.end) - range.start <= RANGE_BYTES_MAX =>
            {
                range.end = range.end.max(chunk.end());
            }
            _ => ranges.push(Range::of(chunk)),
        }
    }
    ranges
}

/// A range that several chunks are cut from; the first that needs it fetches it.
pub(super) struct SharedRange {
    range: Range,
    bytes: OnceCell<Result<Bytes, Arc<ObjectError>>>,
}

impl SharedRange {
    /// The bytes of `chunk`, which the range covers.
    pub(super) async fn slice<F>(
        &self,
        chunk: &ChunkRef,
        fetch: impl FnOnce(Range) -> F,
    ) -> Result<Bytes, Arc<ObjectError>>
    where
        F: Future<Output = Result<Bytes, Arc<ObjectError>>>,
    {
        let bytes = self.bytes.get_or_init(|| fetch(self.range)).await.clone()?;
        let start = (chunk.offset - self.range.start) as usize;
        // A copy: who keeps a chunk for a while does not keep the range.
        Ok(Bytes::copy_from_slice(&bytes[start..start + chunk.length as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(segment: u8, offset: u64, length: u32) -> ChunkRef {
        ChunkRef { segment: SegmentId([segment; 16]), offset, length, number: 0 }
    }

    fn spans(chunks: &[ChunkRef]) -> Vec<(u8, u64, u64)> {
        let spans = super::spans(chunks.to_vec());
        spans.iter().map(|range| (range.segment.0[0], range.start, range.end)).collect()
    }

    #[test]
    fn neighbours_share_a_range_in_whatever_order_they_come() {
        let (a, b, c) = (chunk(1, 100, 50), chunk(1, 150, 50), chunk(1, 200 + GAP_BYTES_MAX, 10));
        assert_eq!(spans(&[c, a, b, a]), [(1, 100, 210 + GAP_BYTES_MAX)]);
    }

    #[test]
    fn each_chunk_finds_its_range_and_a_cached_one_finds_none() {
        let (a, b, elsewhere) = (chunk(1, 100, 50), chunk(2, 7, 50), chunk(1, 400 + GAP_BYTES_MAX, 10));
        let ranges = coalesce(vec![b, a]);
        assert_eq!(find(&ranges, &a).unwrap().range, Range::of(&a));
        assert_eq!(find(&ranges, &b).unwrap().range, Range::of(&b));
        assert!(find(&ranges, &elsewhere).is_none() && find(&ranges, &chunk(1, 99, 5)).is_none());
    }

    #[test]
    fn a_large_gap_another_segment_and_a_full_range_begin_anew() {
        assert_eq!(spans(&[chunk(1, 0, 10), chunk(1, 11 + GAP_BYTES_MAX, 10)]).len(), 2);
        assert_eq!(spans(&[chunk(1, 0, 10), chunk(2, 10, 10)]).len(), 2);
        let large = RANGE_BYTES_MAX as u32;
        assert_eq!(spans(&[chunk(1, 0, large), chunk(1, large.into(), 1)]).len(), 2);
    }
}
