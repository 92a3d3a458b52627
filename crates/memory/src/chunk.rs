//! A chunk: pages in clusters, each packed by itself, behind a table that finds them.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use base::frame;

use crate::{
    codec::{Codec, Decoder, Encoder, Packing, cluster_bytes},
    error::{Damage, Error},
    limits::CHUNK_PAGES_MAX,
    page::PAGE_BYTES,
};

/// Kind of the frame around a chunk.
pub(crate) const KIND: u16 = 0x4d03;
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 5;

/// Packs `plain`, whole pages, into a framed chunk.
pub(crate) fn encode(plain: &[u8], packing: Packing, encoder: &mut Encoder) -> Result<Vec<u8>, Error> {
    let mut payload = Vec::with_capacity(plain.len() / 2);
    append(plain, packing, encoder, &mut payload);
    frame::encode(KIND, VERSION, &payload).map_err(|error| Damage::from(error).of("chunk"))
}

/// Appends table and clusters, without a frame.
pub(crate) fn append(plain: &[u8], packing: Packing, encoder: &mut Encoder, payload: &mut Vec<u8>) {
    payload.extend_from_slice(&((plain.len() / PAGE_BYTES) as u16).to_le_bytes());
    payload.extend_from_slice(&packing.cluster_pages.to_le_bytes());
    let clusters = plain.chunks(usize::from(packing.cluster_pages) * PAGE_BYTES);
    let mut entry = payload.len();
    payload.resize(entry + clusters.len() * ENTRY_BYTES, 0);
    for cluster in clusters {
        let before = payload.len();
        payload[entry] = encoder.encode(cluster, payload) as u8;
        let length = (payload.len() - before) as u32;
        payload[entry + 1..entry + ENTRY_BYTES].copy_from_slice(&length.to_le_bytes());
        entry += ENTRY_BYTES;
    }
}

/// An opened chunk: its table is checked, its clusters are decoded when asked for.
pub(crate) struct Chunk {
    bytes: Vec<u8>,
    pages: usize,
    cluster_pages: usize,
    clusters: Vec<Cluster>,
}

struct Cluster {
    codec: Codec,
    place: Range<usize>,
    plain: OnceLock<Arc<Vec<u8>>>,
}

impl Chunk {
    /// Checks a framed chunk.
    pub(crate) fn open(bytes: Vec<u8>) -> Result<Self, Error> {
        let at = check_frame(&bytes, KIND, "chunk")?;
        Self::parse(bytes, at).map_err(|damage| damage.of("chunk"))
    }

    /// Checks table and clusters that lie in `bytes` from `at` to the end.
    pub(crate) fn parse(bytes: Vec<u8>, at: usize) -> Result<Self, Damage> {
        let payload = &bytes[at..];
        let half = |at: usize| Some(usize::from(u16::from_le_bytes([*payload.get(at)?, *payload.get(at + 1)?])));
        let (Some(pages), Some(cluster_pages)) = (half(0), half(2)) else {
            return Err(Damage::Layout("too short for a chunk"));
        };
        let allowed = 1..=CHUNK_PAGES_MAX;
        if !allowed.contains(&pages) || !allowed.contains(&cluster_pages) {
            return Err(Damage::Layout("the sizes of the clusters are out of range"));
        }
        let count = pages.div_ceil(cluster_pages);
        let mut place = HEADER_BYTES + count * ENTRY_BYTES;
        let table = payload.get(HEADER_BYTES..place).ok_or(Damage::Layout("the table of clusters is cut off"))?;
        let mut clusters = Vec::with_capacity(count);
        for entry in table.as_chunks::<ENTRY_BYTES>().0 {
            let [codec, length @ ..] = *entry;
            let codec = Codec::from_byte(codec).ok_or(Damage::Layout("an unknown codec"))?;
            let end = place.saturating_add(u32::from_le_bytes(length) as usize);
            clusters.push(Cluster { codec, place: at + place..at + end, plain: OnceLock::new() });
            place = end;
        }
        if place != payload.len() {
            return Err(Damage::Layout("the clusters do not fill the chunk"));
        }
        Ok(Self { bytes, pages, cluster_pages, clusters })
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// The cluster that has page `ordinal`, and the ordinals of all its pages.
    pub(crate) fn cluster_of(&self, ordinal: usize) -> (usize, Range<usize>) {
        let index = ordinal / self.cluster_pages;
        let first = index * self.cluster_pages;
        (index, first..self.pages.min(first + self.cluster_pages))
    }

    /// Decodes pages `wanted` (ordinals, not empty), and what lies in their clusters, into the front of `plain`; the first page decoded is returned.
    pub(crate) fn decode(
        &self,
        wanted: Range<usize>,
        decoder: &mut Decoder,
        plain: &mut Vec<u8>,
    ) -> Result<usize, Error> {
        if wanted.end > self.pages {
            return Err(Damage::Layout("a page beyond the end of its chunk").of("index"));
        }
        let (first, last) = (wanted.start / self.cluster_pages, (wanted.end - 1) / self.cluster_pages);
        let start = first * self.cluster_pages;
        let bytes = (self.pages.min((last + 1) * self.cluster_pages) - start) * PAGE_BYTES;
        plain.resize(plain.len().max(bytes), 0);
        let mut rest = &mut plain[..bytes];
        for index in first..=last {
            let (into, after) = rest.split_at_mut(cluster_bytes(index, self.pages, self.cluster_pages));
            let cluster = &self.clusters[index];
            decoder
                .decode(cluster.codec, &self.bytes[cluster.place.clone()], into)
                .map_err(|damage| damage.of("chunk"))?;
            rest = after;
        }
        Ok(start)
    }

    /// The pages of one cluster. Decoded once; threads that come at the same time may each decode, and one result stays.
    pub(crate) fn cluster(&self, index: usize, decoder: &mut Decoder) -> Result<Arc<Vec<u8>>, Error> {
        let cluster = &self.clusters[index];
        if let Some(plain) = cluster.plain.get() {
            return Ok(Arc::clone(plain));
        }
        let mut plain = vec![0; cluster_bytes(index, self.pages, self.cluster_pages)];
        let packed = &self.bytes[cluster.place.clone()];
        decoder.decode(cluster.codec, packed, &mut plain).map_err(|damage| damage.of("chunk"))?;
        Ok(Arc::clone(cluster.plain.get_or_init(|| Arc::new(plain))))
    }
}

/// Checks the frame of a `kind` of this crate, whose version is 1, and returns where the payload begins.
pub(crate) fn check_frame(bytes: &[u8], kind: u16, what: &'static str) -> Result<usize, Error> {
    match frame::decode(bytes, kind, VERSION) {
        Ok((VERSION, _)) => Ok(frame::HEADER_BYTES),
        Ok(_) => Err(Damage::Layout("a version that never was").of(what)),
        Err(error) => Err(Damage::from(error).of(what)),
    }
}
