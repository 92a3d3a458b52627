//! What is in an image, by content: a hash of every page that lies in its chunks, so that a later dump finds pages that are there already.
//!
//! Pages are told by BLAKE3, cut to 128 bits. A strong hash, so that equal hashes are equal pages and nothing has to be read again to be
//! compared (the pages are compressed and gone by then): a program that plants a collision would need 2^64 tries, to damage images of its
//! own realm only. On whole pages it is 1.9 times as fast as SHA-256 with the processor's own instructions, and takes a fifth of zstd's time;
//! a fast hash with a comparison would save at most another tenth of a dump.
//!
//! A list lies in chunks of its own (pieces), which only a dump reads: 16 bytes for each page and 33 for each chunk of 64 of them.

mod known;
mod sample;

use base::frame;

pub use known::Known;
pub(crate) use known::KnownPlace;
pub use sample::Sample;

use crate::{
    chunk::check_frame,
    chunks::{ChunkId, ChunkSink},
    error::{Damage, Error},
    limits::{CHUNK_PAGES_MAX, PIECE_PAGES},
    list::{ChunkList, push_name, take_name},
};

/// Kinds of the frames around the list of pieces and around a piece.
const KIND_LIST: u16 = 0x4d06;
const KIND_PIECE: u16 = 0x4d07;
const WHAT: &str = "list of contents";

/// Tells a page from every other.
pub(crate) type Hash = [u8; 16];

pub(crate) fn hash_of(page: &[u8]) -> Hash {
    let mut hash = Hash::default();
    blake3::Hasher::new().update(page).finalize_xof().fill(&mut hash);
    hash
}

/// Writes a list of contents, a piece at a time.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    list: ChunkList,
    /// Chunks of the piece: names and numbers of pages, encoded.
    chunks: Vec<u8>,
    count: u32,
    hashes: Vec<u8>,
}

impl Writer {
    /// Adds a chunk, by the hashes of its pages.
    pub(crate) fn add(&mut self, id: &ChunkId, hashes: &[Hash], sink: &mut dyn ChunkSink) -> Result<(), Error> {
        push_name(&mut self.chunks, id);
        self.chunks.extend_from_slice(&(hashes.len() as u16).to_le_bytes());
        self.count += 1;
        self.hashes.extend_from_slice(hashes.as_flattened());
        self.list.pages += hashes.len() as u64;
        if self.hashes.len() >= PIECE_PAGES * size_of::<Hash>() { self.flush(sink) } else { Ok(()) }
    }

    fn flush(&mut self, sink: &mut dyn ChunkSink) -> Result<(), Error> {
        if self.count == 0 {
            return Ok(());
        }
        let payload = [&self.count.to_le_bytes()[..], &self.chunks, &self.hashes].concat();
        let framed = frame::encode(KIND_PIECE, 1, &payload).map_err(|error| Damage::from(error).of(WHAT))?;
        self.list.chunks.push(sink.append(&framed).map_err(|source| Error::Write { source })?);
        self.count = 0;
        self.chunks.clear();
        self.hashes.clear();
        Ok(())
    }

    /// The framed list of pieces.
    pub(crate) fn finish(mut self, sink: &mut dyn ChunkSink) -> Result<Vec<u8>, Error> {
        self.flush(sink)?;
        self.list.encode(KIND_LIST, WHAT)
    }
}

/// Some chunks, and the hashes of their pages.
struct Piece {
    chunks: Vec<(ChunkId, u16)>,
    hashes: Vec<u8>,
}

impl Piece {
    fn open(framed: Vec<u8>) -> Result<Self, Error> {
        let at = check_frame(&framed, KIND_PIECE, WHAT)?;
        Self::parse(&framed[at..]).ok_or_else(|| Damage::Layout("the fields of the piece make no sense").of(WHAT))
    }

    /// None if a size does not fit or a value is out of range.
    fn parse(payload: &[u8]) -> Option<Self> {
        let (count, mut rest) = payload.split_first_chunk()?;
        let mut chunks = Vec::new();
        let mut pages = 0;
        for _ in 0..u32::from_le_bytes(*count) {
            let id = take_name(&mut rest)?;
            let (number, after) = rest.split_first_chunk()?;
            let number = u16::from_le_bytes(*number);
            if !(1..=CHUNK_PAGES_MAX).contains(&usize::from(number)) {
                return None;
            }
            pages += usize::from(number);
            chunks.push((id, number));
            rest = after;
        }
        (rest.len() == pages * size_of::<Hash>()).then(|| Self { chunks, hashes: rest.to_vec() })
    }
}
