//! Bytes of any length: in the reference itself, if they are few, so that they come with the manifest; else as chunks, pieces of 1 MiB.
//! Which these are is in the reference, too, or, if they are many, in one more chunk.

use std::io::{self, Read, Write};

use base::limits::RECORD_BYTES_MAX;
use serde::{Deserialize, Serialize};
use store::{Store, segment::ChunkRef};
use tokio::runtime::Handle;

use super::Writing;
use crate::error::{Result, Storing};

/// A piece: large enough for one request, small enough to hold some of them.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces that are asked for at once.
const AHEAD: usize = 8;

/// Most bytes that a reference holds itself, and most that all references of one writing hold: a manifest has room for 1 MiB.
const INLINE_BYTES_MAX: usize = 256 << 10;
const INLINE_BYTES_IN_ALL: usize = 640 << 10;
/// What is left beside them for all else in a manifest, half of what there is: the rest is for references of many layers.
const ELSE_BYTES: usize = (RECORD_BYTES_MAX - INLINE_BYTES_IN_ALL) / 2;
/// Most pieces that a reference names itself.
const PIECES_MAX: usize = 64;

/// Where the bytes are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Place {
    /// Here.
    Inline(#[serde(with = "serde_bytes")] Vec<u8>),
    /// In chunks; the encoded reference of the one that lists the others.
    Listed(Vec<u8>),
    /// In these chunks: their encoded references.
    Pieces(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// Where the bytes of a blob are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobRef {
    place: Place,
    /// How many they are.
    pub bytes: u64,
}

/// Takes bytes and writes pieces.
pub(super) struct BlobWriter<'a> {
    writing: &'a mut Writing,
    piece: Vec<u8>,
    list: Vec<u8>,
    bytes: u64,
}

impl Writing {
    /// Begins a blob.
    pub(super) fn blob(&mut self) -> BlobWriter<'_> {
        BlobWriter { writing: self, piece: Vec::with_capacity(PIECE_BYTES), list: Vec::new(), bytes: 0 }
    }

    /// The manifest has so many bytes of another kind: if they are many, its references hold fewer.
    pub fn leave_room(&mut self, bytes: usize) {
        self.inline_bytes += bytes.saturating_sub(ELSE_BYTES);
    }

    /// Writes a whole blob.
    pub(super) fn write_blob(&mut self, bytes: &[u8]) -> Result<BlobRef> {
        let mut blob = self.blob();
        blob.write_all(bytes).storing("write a blob")?;
        blob.finish()
    }
}

impl BlobWriter<'_> {
    fn pass_on(&mut self) -> Result<()> {
        let chunk = self.writing.append(&self.piece)?;
        self.list.extend_from_slice(&chunk.encode());
        self.bytes += self.piece.len() as u64;
        self.piece.clear();
        Ok(())
    }

    /// Writes the rest and the list.
    pub(super) fn finish(mut self) -> Result<BlobRef> {
        let few = self.list.is_empty() && self.piece.len() <= INLINE_BYTES_MAX;
        if few && self.writing.inline_bytes + self.piece.len() <= INLINE_BYTES_IN_ALL {
            self.writing.inline_bytes += self.piece.len();
            return Ok(BlobRef { bytes: self.piece.len() as u64, place: Place::Inline(self.piece) });
        }
        if !self.piece.is_empty() {
            self.pass_on()?;
        }
        let place = if self.list.len() <= PIECES_MAX * ChunkRef::BYTES {
            Place::Pieces(self.list)
        } else {
            Place::Listed(self.writing.append(&self.list)?.encode().to_vec())
        };
        Ok(BlobRef { place, bytes: self.bytes })
    }
}

impl Write for BlobWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        if self.piece.len() == PIECE_BYTES {
            self.pass_on().map_err(io::Error::other)?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Gives the bytes of a blob, fetching some pieces ahead. Blocks: never on a thread of the runtime.
pub(super) struct BlobReader<'a> {
    store: &'a Store,
    runtime: &'a Handle,
    list: std::vec::IntoIter<ChunkRef>,
    pieces: std::collections::VecDeque<bytes::Bytes>,
    at: usize,
}

impl BlobRef {
    /// No bytes.
    pub(super) fn none() -> Self {
        Self { place: Place::Inline(Vec::new()), bytes: 0 }
    }

    /// Whether versions of checkpoints before the fourth know such a reference.
    pub(super) fn is_old(&self) -> bool {
        matches!(self.place, Place::Inline(_) | Place::Listed(_))
    }

    /// Whether it is in the manifest itself.
    pub fn is_inline(&self) -> bool {
        matches!(self.place, Place::Inline(_))
    }

    /// Reads it piece by piece.
    pub(super) fn open<'a>(&self, store: &'a Store, runtime: &'a Handle) -> Result<BlobReader<'a>> {
        let list = match &self.place {
            Place::Inline(bytes) => {
                let pieces = [bytes::Bytes::from(bytes.clone())].into();
                return Ok(BlobReader { store, runtime, list: Vec::new().into_iter(), pieces, at: 0 });
            }
            Place::Listed(list) => {
                let list = ChunkRef::decode(list).storing("open a blob")?;
                runtime.block_on(store.read(&list)).storing("read the list of a blob")?
            }
            Place::Pieces(list) => list.clone().into(),
        };
        let refs: std::result::Result<Vec<ChunkRef>, _> = list.chunks(ChunkRef::BYTES).map(ChunkRef::decode).collect();
        let list = refs.storing("read the list of a blob")?.into_iter();
        Ok(BlobReader { store, runtime, list, pieces: std::collections::VecDeque::new(), at: 0 })
    }

    /// Reads all of it, at most `max` bytes.
    pub(super) fn read(&self, store: &Store, runtime: &Handle, max: u64) -> Result<Vec<u8>> {
        if self.bytes > max {
            return Err(format!("a blob of {} bytes is more than the {max} expected", self.bytes))
                .storing("read a blob");
        }
        // What the manifest says is believed for one piece: the rest of the room is made as bytes come.
        let mut bytes = Vec::with_capacity(self.bytes.min(PIECE_BYTES as u64) as usize);
        self.open(store, runtime)?.take(self.bytes + 1).read_to_end(&mut bytes).storing("read a blob")?;
        if bytes.len() as u64 != self.bytes {
            return Err(format!("a blob has {} bytes or more, not the {} of its reference", bytes.len(), self.bytes))
                .storing("read a blob");
        }
        Ok(bytes)
    }
}

impl Read for BlobReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.pieces.front().is_some_and(|piece| self.at == piece.len()) {
            self.pieces.pop_front();
            self.at = 0;
        }
        if self.pieces.is_empty() {
            let next: Vec<ChunkRef> = self.list.by_ref().take(AHEAD).collect();
            self.pieces = self.runtime.block_on(self.store.read_many(&next)).map_err(io::Error::other)?.into();
        }
        let Some(piece) = self.pieces.front() else { return Ok(0) };
        let taken = into.len().min(piece.len() - self.at);
        into[..taken].copy_from_slice(&piece[self.at..self.at + taken]);
        self.at += taken;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Durable, PeerSettings, Settings};

    /// As long as that, and of no period that pieces have.
    fn text(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn few_bytes_some_pieces_and_many_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let settings = Settings {
            realm: store::id::Realm::default(),
            objects: None,
            database: None,
            master_keys: None,
            cache_bytes: 0,
            peers: PeerSettings::default(),
        };
        let durable = runtime.block_on(Durable::open(&settings, folder.path(), "test")).unwrap();
        let mut writing = Writing::begin(&durable, runtime.handle(), "test").unwrap();
        let lengths = [INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, PIECE_BYTES * PIECES_MAX, PIECE_BYTES * PIECES_MAX + 1];
        let blobs = lengths.map(|length| writing.write_blob(&text(length)).unwrap());
        writing.finish_segment().unwrap();
        assert!(matches!(
            blobs.each_ref().map(|blob| &blob.place),
            [Place::Inline(_), Place::Pieces(_), Place::Pieces(_), Place::Listed(_)]
        ));
        for (blob, length) in blobs.iter().zip(lengths) {
            assert!(blob.read(&durable.store, runtime.handle(), u64::MAX - 1).unwrap() == text(length), "{length}");
            assert!(blob.read(&durable.store, runtime.handle(), length as u64 - 1).is_err());
        }
    }
}
