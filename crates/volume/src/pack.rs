//! Data on its way from memory into segments: many small files in one chunk, in the order of their inodes.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use store::{
    Store,
    heads::{Heads, Lease, Protected},
    id::SegmentId,
    segment::{ChunkRef, SegmentWriter},
};

use crate::{
    VolumeError, chunk,
    compact::Plan,
    error::Cause,
    extents::{Piece, Source, Window},
    key::Key,
    limits::{COMMIT_LEASE, PACK_BYTES, PIECES_MAX, SEGMENT_BYTES},
    loader::Loader,
    state::Stored,
};

/// Segments that a commit writes. Each is kept by the commit's lease before its first byte.
pub(crate) struct Segments<'a> {
    pub(crate) heads: &'a Heads,
    pub(crate) store: &'a Store,
    pub(crate) lease: &'a mut Lease,
    /// Those that are finished.
    pub(crate) finished: BTreeSet<SegmentId>,
}

/// Fills chunks with data.
pub(crate) struct Packer<'a, 'b> {
    segments: &'b mut Segments<'a>,
    loader: &'a Loader,
    plan: &'a Plan,
    writer: Option<SegmentWriter>,
    buffer: chunk::Open,
    /// Pieces whose data is in the buffer: window, piece, and where in the buffer it begins.
    waiting: Vec<(usize, Piece, u32)>,
    windows: Vec<Packed>,
}

/// A window of which some data gets a new place.
struct Packed {
    key: Key,
    frozen: Window,
    pieces: Vec<Piece>,
}

/// A stretch of a window that gets a new place: pieces without holes between them.
type Run = Vec<Piece>;

impl Segments<'_> {
    /// Begins a segment.
    pub(crate) async fn begin(&mut self) -> Result<SegmentWriter, VolumeError> {
        const LEASE: Duration = COMMIT_LEASE;
        let writer = self.store.write().await.map_err(failed("get the key of a segment"))?;
        self.heads.renew(self.lease, LEASE).await.map_err(failed("renew the lease of a commit"))?;
        let kept = self.heads.protect(self.lease, &[Protected::Segment(writer.id())]).await;
        kept.map_err(failed("keep a segment"))?;
        Ok(writer)
    }

    /// Makes a segment durable.
    pub(crate) async fn finish(&mut self, writer: SegmentWriter) -> Result<(), VolumeError> {
        let segment = writer.finish().await.map_err(failed("write a segment"))?;
        self.finished.insert(segment.id);
        Ok(())
    }
}

impl<'a, 'b> Packer<'a, 'b> {
    pub(crate) fn new(segments: &'b mut Segments<'a>, loader: &'a Loader, plan: &'a Plan) -> Self {
        Self {
            segments,
            loader,
            plan,
            writer: None,
            buffer: chunk::Open::new(),
            waiting: Vec::new(),
            windows: Vec::new(),
        }
    }

    /// Does some of a window's data need a place?
    pub(crate) fn wants(window: &Window, plan: &Plan) -> bool {
        window.memory_bytes() > 0 || window.pieces().len() > PIECES_MAX || plan.moves(window)
    }

    /// Adds a window whose data is not in the store, or in too many places.
    pub(crate) async fn add(&mut self, key: Key, frozen: Window) -> Result<(), VolumeError> {
        let (kept, runs) = self.divide(&frozen);
        let chunks: Vec<ChunkRef> = runs.iter().flatten().filter_map(chunk_of).collect();
        let data = self.loader.data(&chunks).await?;
        let at = self.windows.len();
        self.windows.push(Packed { key, frozen, pieces: kept });
        for run in runs {
            let length: u32 = run.iter().map(|piece| piece.length).sum();
            if self.buffer.bytes() + length as usize > PACK_BYTES {
                self.flush().await?;
            }
            let source = Source::Memory { buffer: Arc::default(), offset: 0 };
            self.waiting.push((at, Piece { start: run[0].start, length, source }, self.buffer.bytes() as u32));
            for piece in &run {
                let bytes = piece.bytes(&data).ok_or(VolumeError::Damaged { what: "the length of a chunk" })?;
                self.buffer.add(bytes);
            }
        }
        Ok(())
    }

    /// Writes what is left; the windows as they are now.
    pub(crate) async fn finish(mut self) -> Result<Vec<Stored>, VolumeError> {
        self.flush().await?;
        if let Some(writer) = self.writer.take() {
            self.segments.finish(writer).await?;
        }
        let stored = |Packed { key, frozen, mut pieces }: Packed| {
            pieces.sort_unstable_by_key(|piece| piece.start);
            Stored { key, frozen, stored: Window::from_pieces(pieces) }
        };
        Ok(self.windows.into_iter().map(stored).collect())
    }

    /// What of a window stays where it is, and what gets a new place, each stretch without holes as a whole.
    fn divide(&self, window: &Window) -> (Vec<Piece>, Vec<Run>) {
        let all = window.pieces().len() > PIECES_MAX;
        let moves = |piece: &Piece| all || chunk_of(piece).is_none_or(|chunk| self.plan.data.contains(&chunk.segment));
        let (mut kept, mut runs): (Vec<Piece>, Vec<Run>) = (Vec::new(), Vec::new());
        for piece in window.pieces().iter().cloned() {
            if !moves(&piece) {
                kept.push(piece);
                continue;
            }
            match runs.last_mut().filter(|run| run.last().is_some_and(|last| last.end() == piece.start)) {
                Some(run) => run.push(piece),
                None => runs.push(vec![piece]),
            }
        }
        (kept, runs)
    }

    /// Writes the buffer as a chunk, and tells the pieces in it.
    async fn flush(&mut self) -> Result<(), VolumeError> {
        if self.buffer.bytes() == 0 {
            return Ok(());
        }
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.segments.begin().await?,
        };
        let chunk = writer.append(&self.buffer.encode()).await.map_err(failed("write a file's data"))?;
        for (window, piece, offset) in self.waiting.drain(..) {
            self.windows[window].pieces.push(Piece { source: Source::Chunk { chunk, offset }, ..piece });
        }
        self.buffer.clear();
        if writer.bytes() < SEGMENT_BYTES {
            self.writer = Some(writer);
            return Ok(());
        }
        self.segments.finish(writer).await
    }
}

pub(crate) fn chunk_of(piece: &Piece) -> Option<ChunkRef> {
    match piece.source {
        Source::Chunk { chunk, .. } => Some(chunk),
        Source::Memory { .. } => None,
    }
}

fn failed<E: Into<Cause>>(action: &'static str) -> impl FnOnce(E) -> VolumeError {
    VolumeError::store(action)
}
