//! Memory of a dump. Alone in its file: it looks at the whole process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use memory::{
    BoxError, ChunkId, ChunkSink, ChunkSource, Error, Known, Options, PAGE_BYTES, PageRun, PageSource, codec::Packing,
    limits::KNOWN_PAGES_MAX, scan::Piece,
};

/// Memory without end: each other page is zero, no two of the rest are equal.
struct Endless;

impl PageSource for Endless {
    fn read(&self, runs: &[PageRun], into: &mut [u8]) -> Result<(), Error> {
        let pages = runs.iter().flat_map(|run| run.first..run.end());
        for (page, place) in pages.zip(into.chunks_mut(PAGE_BYTES)) {
            place.fill(0);
            if page % 2 == 1 {
                place[..8].copy_from_slice(&page.to_le_bytes());
            }
        }
        Ok(())
    }
}

/// Takes all and keeps nothing; names are long and without a pattern.
struct Nowhere(u64);

impl ChunkSink for Nowhere {
    fn append(&mut self, _: &[u8]) -> Result<ChunkId, BoxError> {
        self.0 += 1;
        Ok(ChunkId::new(blake3::hash(&self.0.to_le_bytes()).as_bytes()).ok_or("too long")?)
    }
}

/// Pieces of a list of contents, each of 1024 chunks with 64 pages; no two hashes are equal.
struct Pieces;

impl ChunkSource for Pieces {
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, BoxError> {
        let mut payload = 1024u32.to_le_bytes().to_vec();
        for chunk in 0..1024u32 {
            payload.push(32);
            payload.extend_from_slice(&[id.as_bytes()[0]; 28]);
            payload.extend_from_slice(&chunk.to_le_bytes());
            payload.extend_from_slice(&64u16.to_le_bytes());
        }
        let hashes = payload.len()..payload.len() + 1024 * 64 * 16;
        payload.resize(hashes.end, 0);
        blake3::Hasher::new().update(id.as_bytes()).finalize_xof().fill(&mut payload[hashes]);
        Ok(base::frame::encode(0x4d07, 1, &payload)?)
    }
}

/// More than a dump takes notice of.
fn known() -> Known {
    let mut list = (16u64 << 16).to_le_bytes().to_vec();
    (0..16).for_each(|piece| list.extend_from_slice(&[1, piece]));
    let known = Known::read([&base::frame::encode(0x4d06, 1, &list).unwrap()[..]], &Pieces).unwrap();
    assert_eq!(known.pages(), KNOWN_PAGES_MAX);
    known
}

fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_dump_of_eight_gigabytes_takes_less_than_64_mib() {
    // Against as much as can be known.
    let known = known();
    // More pages than are remembered, more chunks than are, and more leaves than fit the root.
    let pieces = [Ok(Piece::Own(PageRun { first: 1 << 20, count: 2 << 20 }))];
    let options = Options { packing: Packing::SMALL, threads: 4 };
    let dumped = memory::dump(&Endless, pieces.into_iter(), &mut Nowhere(0), options, &known).unwrap();
    assert_eq!((dumped.totals.data_pages, dumped.totals.zero_pages), (1 << 20, 1 << 20));
    println!("{} MiB", peak_bytes() >> 20);
    assert!(peak_bytes() < 64 << 20, "{} MiB", peak_bytes() >> 20);
}
