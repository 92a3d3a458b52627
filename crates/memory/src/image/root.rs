//! The root of an index: totals, and where the leaves are.

use base::frame;

use super::{Totals, leaf::take};
use crate::{
    chunk::check_frame,
    chunks::ChunkId,
    error::{Damage, Error},
    limits::{PAGE_NUMBER_END, ROOT_BYTES_MAX},
};

/// Kind of the frame around a root.
const KIND: u16 = 0x4d01;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) totals: Totals,
    pub(super) leaves: Vec<LeafRef>,
}

/// A leaf has pages from `first` up to, not including, `end`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LeafRef {
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) place: LeafPlace,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum LeafPlace {
    Inline(Vec<u8>),
    Chunk(ChunkId),
}

impl Root {
    pub(super) fn encode(&self) -> Result<Vec<u8>, Error> {
        let Totals { zero_pages, parent_pages, data_pages, duplicate_pages, chunks, chunk_bytes } = self.totals;
        let words = [zero_pages, parent_pages, data_pages, duplicate_pages, chunks, chunk_bytes];
        let mut payload = Vec::new();
        words.iter().for_each(|word| payload.extend_from_slice(&word.to_le_bytes()));
        payload.extend_from_slice(&(self.leaves.len() as u32).to_le_bytes());
        for leaf in &self.leaves {
            let (place, bytes) = match &leaf.place {
                LeafPlace::Inline(bytes) => (0u8, &bytes[..]),
                LeafPlace::Chunk(id) => (1, id.as_bytes()),
            };
            payload.extend_from_slice(&leaf.first.to_le_bytes());
            payload.extend_from_slice(&leaf.end.to_le_bytes());
            payload.push(place);
            payload.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            payload.extend_from_slice(bytes);
        }
        if payload.len() > ROOT_BYTES_MAX {
            return Err(Error::TooLarge("its index has too many leaves"));
        }
        frame::encode(KIND, 1, &payload).map_err(|error| Damage::from(error).of("index"))
    }

    pub(super) fn decode(framed: &[u8]) -> Result<Self, Error> {
        if framed.len() > ROOT_BYTES_MAX + frame::HEADER_BYTES {
            return Err(Error::TooLarge("its root is longer than any that is written"));
        }
        let at = check_frame(framed, KIND, "index")?;
        Self::parse(&framed[at..]).ok_or_else(|| Damage::Layout("the fields of the root make no sense").of("index"))
    }

    /// None if a size does not fit or a value is out of range.
    fn parse(payload: &[u8]) -> Option<Self> {
        let rest = &mut &payload[..];
        let totals = Totals {
            zero_pages: word(rest)?,
            parent_pages: word(rest)?,
            data_pages: word(rest)?,
            duplicate_pages: word(rest)?,
            chunks: word(rest)?,
            chunk_bytes: word(rest)?,
        };
        let mut root = Self { totals, leaves: Vec::new() };
        let mut last = 0;
        for _ in 0..u32::from_le_bytes(take(rest)?) {
            let leaf = parse_leaf(rest)?;
            if leaf.first < last || leaf.end <= leaf.first || leaf.end > PAGE_NUMBER_END {
                return None;
            }
            last = leaf.end;
            root.leaves.push(leaf);
        }
        rest.is_empty().then_some(root)
    }
}

fn parse_leaf(rest: &mut &[u8]) -> Option<LeafRef> {
    let (first, end) = (word(rest)?, word(rest)?);
    let [place] = take(rest)?;
    let length = u32::from_le_bytes(take(rest)?) as usize;
    let (bytes, after) = rest.split_at_checked(length)?;
    *rest = after;
    let place = match place {
        0 => LeafPlace::Inline(bytes.to_vec()),
        1 => LeafPlace::Chunk(ChunkId::new(bytes)?),
        _ => return None,
    };
    Some(LeafRef { first, end, place })
}

fn word(rest: &mut &[u8]) -> Option<u64> {
    take(rest).map(u64::from_le_bytes)
}
