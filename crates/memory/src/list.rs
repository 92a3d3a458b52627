//! A framed list of chunks that belong together, beside the number of pages in them.

use base::frame;

use crate::{
    chunk::check_frame,
    chunks::ChunkId,
    error::{Damage, Error},
};

/// The chunks of a working set, or of a list of contents, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ChunkList {
    pub(crate) pages: u64,
    pub(crate) chunks: Vec<ChunkId>,
}

impl ChunkList {
    pub(crate) fn encode(&self, kind: u16, what: &'static str) -> Result<Vec<u8>, Error> {
        let mut payload = self.pages.to_le_bytes().to_vec();
        self.chunks.iter().for_each(|id| push_name(&mut payload, id));
        frame::encode(kind, 1, &payload).map_err(|error| Damage::from(error).of(what))
    }

    /// Checks a framed list of at most `most` pages.
    pub(crate) fn decode(framed: &[u8], kind: u16, what: &'static str, most: u64) -> Result<Self, Error> {
        let at = check_frame(framed, kind, what)?;
        let parse = || {
            let (pages, mut rest) = framed[at..].split_first_chunk()?;
            let mut list = Self { pages: u64::from_le_bytes(*pages), chunks: Vec::new() };
            while !rest.is_empty() {
                list.chunks.push(take_name(&mut rest)?);
            }
            (list.pages <= most).then_some(list)
        };
        parse().ok_or_else(|| Damage::Layout("the list of chunks makes no sense").of(what))
    }
}

/// Appends the length of a chunk's name and the name.
pub(crate) fn push_name(payload: &mut Vec<u8>, id: &ChunkId) {
    payload.push(id.as_bytes().len() as u8);
    payload.extend_from_slice(id.as_bytes());
}

/// Takes such a name off `rest`; none if it is cut off or too long.
pub(crate) fn take_name(rest: &mut &[u8]) -> Option<ChunkId> {
    let (length, after) = rest.split_first()?;
    let (name, after) = after.split_at_checked(usize::from(*length))?;
    *rest = after;
    ChunkId::new(name)
}
