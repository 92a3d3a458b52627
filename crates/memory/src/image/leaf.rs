//! A leaf of the index: runs of pages in order, and the names of the chunks they lie in.
//!
//! Encoded column by column, because zstd then finds what repeats: equal gaps, equal counts, chunk after chunk.

use base::frame;

use crate::{
    chunk::check_frame,
    chunks::ChunkId,
    error::{Damage, Error},
    limits::{CHUNK_ID_BYTES_MAX, CHUNK_PAGES_MAX, LEAF_RUNS_MAX, PAGE_NUMBER_END},
    page::PageRun,
};

/// Kind of the frame around a leaf.
pub(super) const KIND: u16 = 0x4d02;
const ZSTD_LEVEL: i32 = 3;
const HEADER_BYTES: usize = 8;
const RUN_BYTES: usize = 8 + 4 + 1 + 4 + 2;
const RAW_BYTES_MAX: usize = HEADER_BYTES + LEAF_RUNS_MAX * (RUN_BYTES + 1 + CHUNK_ID_BYTES_MAX);

/// Where the pages of a run are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Zero,
    Parent,
    /// In the leaf's chunk number `chunk`, from its page `ordinal` on.
    Data {
        chunk: u32,
        ordinal: u16,
    },
}

/// Consecutive pages that are in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) count: u32,
    pub(crate) kind: Kind,
}

impl Run {
    pub(crate) fn pages(self) -> PageRun {
        PageRun { first: self.first, count: self.count.into() }
    }

    /// Takes `next` into this run if it goes on where this ends, in pages and in place.
    pub(super) fn join(&mut self, next: Self) -> bool {
        let same = match (self.kind, next.kind) {
            (Kind::Zero, Kind::Zero) | (Kind::Parent, Kind::Parent) => true,
            (Kind::Data { chunk: a, ordinal: from }, Kind::Data { chunk: b, ordinal: to }) => {
                a == b && u32::from(from) + self.count == to.into()
            }
            _ => false,
        };
        let adjacent = self.first + u64::from(self.count) == next.first;
        match self.count.checked_add(next.count) {
            Some(count) if same && adjacent => {
                self.count = count;
                true
            }
            _ => false,
        }
    }
}

/// Runs in order, at most [`LEAF_RUNS_MAX`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) runs: Vec<Run>,
    pub(crate) chunks: Vec<ChunkId>,
}

impl Leaf {
    /// First page and the page after the last; none if the leaf is empty.
    pub(crate) fn span(&self) -> Option<(u64, u64)> {
        Some((self.runs.first()?.first, self.runs.last()?.pages().end()))
    }

    /// Index of the first run that has pages at or after `page`.
    pub(crate) fn run_from(&self, page: u64) -> usize {
        self.runs.partition_point(|run| run.pages().end() <= page)
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, Error> {
        let mut raw = Vec::with_capacity(HEADER_BYTES + self.runs.len() * (RUN_BYTES + CHUNK_ID_BYTES_MAX));
        raw.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        raw.extend_from_slice(&(self.chunks.len() as u32).to_le_bytes());
        let mut end = 0;
        for run in &self.runs {
            raw.extend_from_slice(&(run.first - end).to_le_bytes());
            end = run.pages().end();
        }
        let columns = self.runs.iter().map(|run| match run.kind {
            Kind::Zero => (0u8, 0, 0),
            Kind::Parent => (1, 0, 0),
            Kind::Data { chunk, ordinal } => (2, chunk, ordinal),
        });
        self.runs.iter().for_each(|run| raw.extend_from_slice(&run.count.to_le_bytes()));
        columns.clone().for_each(|(kind, _, _)| raw.push(kind));
        columns.clone().for_each(|(_, chunk, _)| raw.extend_from_slice(&chunk.to_le_bytes()));
        columns.for_each(|(_, _, ordinal)| raw.extend_from_slice(&ordinal.to_le_bytes()));
        self.chunks.iter().for_each(|id| raw.push(id.as_bytes().len() as u8));
        self.chunks.iter().for_each(|id| raw.extend_from_slice(id.as_bytes()));
        let packed = zstd::bulk::compress(&raw, ZSTD_LEVEL).map_err(|source| Error::Compression { source })?;
        frame::encode(KIND, 1, &packed).map_err(|error| Damage::from(error).of("index"))
    }

    pub(super) fn decode(framed: &[u8]) -> Result<Self, Error> {
        let at = check_frame(framed, KIND, "index")?;
        let raw = zstd::bulk::decompress(&framed[at..], RAW_BYTES_MAX)
            .map_err(|_| Damage::Layout("the leaf cannot be unpacked").of("index"))?;
        Self::parse(&raw).ok_or_else(|| Damage::Layout("the columns of the leaf make no sense").of("index"))
    }

    /// None if a size does not fit or a value is out of range.
    fn parse(raw: &[u8]) -> Option<Self> {
        let mut rest = raw;
        let runs = u32::from_le_bytes(take(&mut rest)?) as usize;
        let chunks = u32::from_le_bytes(take(&mut rest)?) as usize;
        if runs > LEAF_RUNS_MAX || chunks > runs || rest.len() < runs * RUN_BYTES + chunks {
            return None;
        }
        let (gaps, rest) = rest.split_at(runs * 8);
        let (counts, rest) = rest.split_at(runs * 4);
        let (kinds, rest) = rest.split_at(runs);
        let (places, rest) = rest.split_at(runs * 4);
        let (ordinals, rest) = rest.split_at(runs * 2);
        let (lengths, mut names) = rest.split_at(chunks);
        let mut leaf = Self { runs: Vec::with_capacity(runs), chunks: Vec::with_capacity(chunks) };
        let columns = gaps.as_chunks().0.iter().zip(counts.as_chunks().0).zip(kinds);
        let places = places.as_chunks().0.iter().zip(ordinals.as_chunks().0);
        let mut end = 0u64;
        for (((gap, count), kind), (chunk, ordinal)) in columns.zip(places) {
            let first = end.checked_add(u64::from_le_bytes(*gap))?;
            let run = Run { first, count: u32::from_le_bytes(*count), kind: Kind::Zero };
            end = first.checked_add(run.count.into()).filter(|end| *end <= PAGE_NUMBER_END && run.count > 0)?;
            let kind = parse_kind(*kind, u32::from_le_bytes(*chunk), u16::from_le_bytes(*ordinal), run.count, chunks)?;
            leaf.runs.push(Run { kind, ..run });
        }
        for length in lengths {
            let (name, after) = names.split_at_checked(usize::from(*length))?;
            leaf.chunks.push(ChunkId::new(name)?);
            names = after;
        }
        names.is_empty().then_some(leaf)
    }
}

fn parse_kind(kind: u8, chunk: u32, ordinal: u16, count: u32, chunks: usize) -> Option<Kind> {
    match kind {
        0 if chunk == 0 && ordinal == 0 => Some(Kind::Zero),
        1 if chunk == 0 && ordinal == 0 => Some(Kind::Parent),
        2 if (chunk as usize) < chunks && u32::from(ordinal).checked_add(count)? <= CHUNK_PAGES_MAX as u32 => {
            Some(Kind::Data { chunk, ordinal })
        }
        _ => None,
    }
}

/// Takes the first `N` bytes off `rest`.
pub(super) fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*bytes)
}
