//! The data of a file, window by window: which bytes there are, and where each lies.
//!
//! A file is cut into windows of [`WINDOW_BYTES`]; each is a value of the tree. A window is a row of pieces that do not overlap; between
//! them are holes. What was written lies in memory until it is materialised, then in a chunk of the store.

use std::{ops::Range, sync::Arc};

use serde::{Deserialize, Serialize};
use store::{id::SegmentId, segment::ChunkRef};

use crate::limits::{HOLE_BYTES_MIN, PIECES_MAX, WINDOW_BYTES};

/// Where bytes lie.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// Written, and not in the store yet.
    Memory { buffer: Arc<Vec<u8>>, offset: u32 },
    /// In an opened chunk, from `offset` on.
    Chunk { chunk: ChunkRef, offset: u32 },
}

/// A stretch of data.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// Where it begins in the window.
    pub(crate) start: u32,
    pub(crate) length: u32,
    pub(crate) source: Source,
}

/// Data of one window, in ascending order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Window {
    pieces: Vec<Piece>,
}

/// A piece as the tree holds it.
#[derive(Serialize, Deserialize)]
struct StoredPiece {
    start: u32,
    length: u32,
    chunk: [u8; ChunkRef::BYTES],
    offset: u32,
}

/// A byte range of a file as ranges of its windows.
pub(crate) fn windows(offset: u64, length: u64) -> impl Iterator<Item = (u64, Range<u32>)> {
    let (mut at, end) = (offset, offset.saturating_add(length));
    std::iter::from_fn(move || {
        let index = at / u64::from(WINDOW_BYTES);
        let start = (at % u64::from(WINDOW_BYTES)) as u32;
        let bytes = (end - at).min(u64::from(WINDOW_BYTES - start)) as u32;
        at += u64::from(bytes);
        (bytes > 0).then_some((index, start..start + bytes))
    })
}

impl Source {
    pub(crate) fn skip(&self, bytes: u32) -> Self {
        match self {
            Self::Memory { buffer, offset } => Self::Memory { buffer: buffer.clone(), offset: offset + bytes },
            Self::Chunk { chunk, offset } => Self::Chunk { chunk: *chunk, offset: offset + bytes },
        }
    }
}

impl Piece {
    pub(crate) fn end(&self) -> u32 {
        self.start + self.length
    }

    /// The part of it in `range`, if there is one.
    fn part(&self, range: &Range<u32>) -> Option<Self> {
        let (start, end) = (self.start.max(range.start), self.end().min(range.end));
        (start < end).then(|| Self { start, length: end - start, source: self.source.skip(start - self.start) })
    }

    fn buffer_mut(&mut self) -> Option<(&mut Vec<u8>, usize)> {
        match &mut self.source {
            // A buffer that is being materialised is shared, and stays as it was.
            Source::Memory { buffer, offset } => Arc::get_mut(buffer).map(|bytes| (bytes, *offset as usize)),
            Source::Chunk { .. } => None,
        }
    }

    fn memory(&self) -> Option<&[u8]> {
        match &self.source {
            Source::Memory { buffer, offset } => buffer.get(*offset as usize..(*offset + self.length) as usize),
            Source::Chunk { .. } => None,
        }
    }
}

impl Window {
    pub(crate) fn from_pieces(pieces: Vec<Piece>) -> Self {
        Self { pieces }
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes of data.
    pub(crate) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.length)).sum()
    }

    /// Bytes of data that are not in the store.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.pieces.iter().filter_map(Piece::memory).map(|bytes| bytes.len() as u64).sum()
    }

    /// Bytes by the segment that holds them.
    pub(crate) fn stored_bytes(&self) -> impl Iterator<Item = (SegmentId, u64)> {
        self.pieces.iter().filter_map(|piece| match &piece.source {
            Source::Memory { .. } => None,
            Source::Chunk { chunk, .. } => Some((chunk.segment, u64::from(piece.length))),
        })
    }

    /// Puts `data` at `start`, over what was there. In place where that is possible: small appends to one file make one piece.
    pub(crate) fn write(&mut self, start: u32, data: &[u8]) {
        let end = start + data.len() as u32;
        let at = self.pieces.iter().position(|piece| (piece.start..=piece.end()).contains(&start));
        if let Some(at) = at {
            let piece_end = self.pieces[at].end();
            if piece_end < end {
                self.cut(piece_end..end);
            }
            if write_into(&mut self.pieces[at], start, data) {
                return;
            }
        }
        self.cut(start..end);
        let source = Source::Memory { buffer: Arc::new(data.to_vec()), offset: 0 };
        self.insert(Piece { start, length: end - start, source });
        if self.pieces.len() > PIECES_MAX {
            self.join();
        }
    }

    /// Makes a hole of `range`.
    pub(crate) fn cut(&mut self, range: Range<u32>) {
        if !self.pieces.iter().any(|piece| piece.start < range.end && range.start < piece.end()) {
            return;
        }
        let (before, after) = (0..range.start, range.end..WINDOW_BYTES);
        let halves = |piece: Piece| [piece.part(&before), piece.part(&after)];
        self.pieces = std::mem::take(&mut self.pieces).into_iter().flat_map(halves).flatten().collect();
    }

    /// The data in `range`.
    pub(crate) fn parts(&self, range: Range<u32>) -> impl Iterator<Item = Piece> {
        self.pieces.iter().filter_map(move |piece| piece.part(&range))
    }

    /// Adds a piece where there is a hole.
    pub(crate) fn insert(&mut self, piece: Piece) {
        let at = self.pieces.partition_point(|other| other.start < piece.start);
        self.pieces.insert(at, piece);
    }

    /// The first byte of data at `start` or behind it.
    pub(crate) fn next_data(&self, start: u32) -> Option<u32> {
        self.pieces.iter().find(|piece| piece.end() > start).map(|piece| piece.start.max(start))
    }

    /// The first byte of a hole at `start` or behind it.
    pub(crate) fn next_hole(&self, start: u32) -> Option<u32> {
        let covered = |at: u32, piece: &Piece| if (piece.start..piece.end()).contains(&at) { piece.end() } else { at };
        let at = self.pieces.iter().fold(start, covered);
        (at < WINDOW_BYTES).then_some(at)
    }

    /// Joins neighbours in memory and fills small holes between them, so that many small writes do not make many pieces.
    fn join(&mut self) {
        let mut joined: Vec<Piece> = Vec::new();
        for piece in std::mem::take(&mut self.pieces) {
            let Some(last) = joined.last_mut() else {
                joined.push(piece);
                continue;
            };
            let near = piece.start - last.end() < HOLE_BYTES_MIN;
            match (last.memory(), piece.memory()) {
                (Some(before), Some(after)) if near => {
                    let mut bytes = Vec::with_capacity((piece.end() - last.start) as usize);
                    bytes.extend_from_slice(before);
                    bytes.resize((piece.start - last.start) as usize, 0);
                    bytes.extend_from_slice(after);
                    last.length = bytes.len() as u32;
                    last.source = Source::Memory { buffer: Arc::new(bytes), offset: 0 };
                }
                _ => joined.push(piece),
            }
        }
        self.pieces = joined;
    }

    /// As the tree holds it; `None` while a piece is in memory.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let stored = |piece: &Piece| match &piece.source {
            Source::Memory { .. } => None,
            Source::Chunk { chunk, offset } => {
                let (start, length) = (piece.start, piece.length);
                Some(StoredPiece { start, length, chunk: chunk.encode(), offset: *offset })
            }
        };
        let pieces: Vec<StoredPiece> = self.pieces.iter().map(stored).collect::<Option<_>>()?;
        postcard::to_stdvec(&pieces).ok()
    }

    /// `None` if no volume writes such a window.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let stored: Vec<StoredPiece> = postcard::from_bytes(bytes).ok()?;
        let mut window = Self::default();
        let mut end = 0;
        for StoredPiece { start, length, chunk, offset } in stored {
            let chunk = ChunkRef::decode(&chunk).ok()?;
            if start < end || length == 0 || start.checked_add(length)? > WINDOW_BYTES {
                return None;
            }
            end = start + length;
            window.pieces.push(Piece { start, length, source: Source::Chunk { chunk, offset } });
        }
        Some(window)
    }
}

/// Writes into a buffer that nobody else has: over its bytes, or on from them if it ends with the piece.
fn write_into(piece: &mut Piece, start: u32, data: &[u8]) -> bool {
    let (skip, length) = ((start - piece.start) as usize, piece.length as usize);
    let Some((buffer, offset)) = piece.buffer_mut() else { return false };
    let (from, end) = (offset + skip, offset + skip + data.len());
    if skip + data.len() <= length {
        buffer[from..end].copy_from_slice(data);
    } else if offset + length == buffer.len() {
        buffer.truncate(from);
        buffer.extend_from_slice(data);
        piece.length = (skip + data.len()) as u32;
    } else {
        return false;
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes_of(window: &Window, length: u32) -> (Vec<u8>, Vec<bool>) {
        let (mut bytes, mut data) = (vec![0; length as usize], vec![false; length as usize]);
        for piece in window.parts(0..length) {
            let range = piece.start as usize..piece.end() as usize;
            bytes[range.clone()].copy_from_slice(piece.memory().unwrap());
            data[range].fill(true);
        }
        (bytes, data)
    }

    #[test]
    fn appends_make_one_piece_and_frozen_bytes_stay() {
        let mut window = Window::default();
        for at in 0..100 {
            window.write(at * 3, b"abc");
        }
        assert_eq!(window.pieces().len(), 1);
        let frozen = window.clone();
        window.write(0, b"x");
        window.write(300, b"abc");
        assert_eq!((bytes_of(&frozen, 300).0[0], frozen.bytes(), window.bytes()), (b'a', 300, 303));
    }

    #[test]
    fn a_range_is_dealt_out_to_windows() {
        let whole = u64::from(WINDOW_BYTES);
        let dealt: Vec<_> = windows(whole - 1, whole + 2).collect();
        assert_eq!(dealt, [(0, WINDOW_BYTES - 1..WINDOW_BYTES), (1, 0..WINDOW_BYTES), (2, 0..1)]);
        assert_eq!(windows(5, 0).count(), 0);
    }

    proptest! {
        #[test]
        fn a_window_is_what_was_written_to_it(
            edits in proptest::collection::vec((0..400u32, 1..60u32, any::<Option<u8>>(), any::<bool>()), 0..200),
        ) {
            const BYTES: usize = 460;
            let (mut window, mut model, mut data) = (Window::default(), vec![0; BYTES], [false; BYTES]);
            let mut frozen = Vec::new();
            for (start, length, fill, freeze) in edits {
                let range = start as usize..(start + length) as usize;
                match fill {
                    Some(fill) => window.write(start, &vec![fill; length as usize]),
                    None => window.cut(start..start + length),
                }
                model[range.clone()].fill(fill.unwrap_or(0));
                data[range].fill(fill.is_some());
                if freeze {
                    frozen.push((window.clone(), model.clone()));
                }
            }
            prop_assert_eq!(&bytes_of(&window, BYTES as u32).0, &model);
            for (window, model) in frozen {
                prop_assert_eq!(bytes_of(&window, BYTES as u32).0, model);
            }
            prop_assert!(window.pieces().windows(2).all(|pair| pair[0].end() <= pair[1].start));
            prop_assert!(window.pieces().len() <= PIECES_MAX + 1);
            for at in 0..BYTES as u32 {
                // Small holes may be filled, never data lost.
                let holes = window.next_hole(at).unwrap();
                prop_assert!((at..holes.min(BYTES as u32)).all(|byte| window.next_data(byte) == Some(byte)));
                if data[at as usize] { prop_assert_eq!(window.next_data(at), Some(at)); }
            }
        }
    }
}
