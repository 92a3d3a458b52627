//! What dumping against known pages costs and gains: `cargo run --release -p pando-memory --example known -- PID...`
//!
//! Each process is dumped against nothing, against as many pages that it does not have (the cost of looking) and against its own image (what
//! an unchanged program takes). The three in turns; processor time of all threads is compared, so that other work on the machine matters little.

mod common;

use std::{fs, time::Instant};

use anyhow::{Context, Result};
use memory::{
    BoxError, ChunkId, ChunkSink, ChunkSource, Dump, Known, Options, PAGE_BYTES, PageRun, PageSource, ProcessPages,
    codec::Packing, scan::Piece,
};

const ROUNDS: usize = 7;

#[derive(Default)]
struct Chunks(Vec<Vec<u8>>);

impl ChunkSink for Chunks {
    fn append(&mut self, bytes: &[u8]) -> Result<ChunkId, BoxError> {
        self.0.push(bytes.to_vec());
        // As long as the store's.
        let mut name = [0; 32];
        name[..8].copy_from_slice(&(self.0.len() as u64 - 1).to_le_bytes());
        ChunkId::new(&name).ok_or_else(|| "a name of 32 bytes is short".into())
    }
}

impl ChunkSource for Chunks {
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, BoxError> {
        let index = u64::from_le_bytes(id.as_bytes()[..8].try_into()?);
        Ok(self.0.get(usize::try_from(index)?).ok_or("no such chunk")?.clone())
    }
}

/// Pages without pattern, no two of them equal.
struct Others;

impl PageSource for Others {
    fn read(&self, runs: &[PageRun], into: &mut [u8]) -> Result<(), memory::Error> {
        let pages = runs.iter().flat_map(|run| run.first..run.end());
        for (page, place) in pages.zip(into.chunks_mut(PAGE_BYTES)) {
            place[..8].copy_from_slice(&page.to_le_bytes());
        }
        Ok(())
    }
}

/// Processor time of this process so far, in ticks of 10 ms.
fn ticks() -> Result<u64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(") ").next().context("no fields")?.split(' ').collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

fn known(dumped: &Dump, chunks: &Chunks) -> Result<Known> {
    Ok(Known::read([&dumped.contents[..]], chunks)?)
}

fn main() -> Result<()> {
    let pids = common::pids()?;
    let options = Options { packing: Packing::SMALL, threads: 2 };
    for pid in pids {
        let _stopped = common::Stopped::new(pid)?;
        let source = ProcessPages::open(pid)?;
        let dump = |known: &Known| -> Result<(Dump, Chunks)> {
            let mut chunks = Chunks::default();
            Ok((memory::dump(&source, common::scan(pid)?, &mut chunks, options, known)?, chunks))
        };
        let start = Instant::now();
        let (dumped, chunks) = dump(&Known::default())?;
        let first = start.elapsed().as_secs_f64();
        let own = known(&dumped, &chunks)?;
        let list = own.pages();
        let mut other_chunks = Chunks::default();
        let pieces = [Ok(Piece::Own(PageRun { first: 1, count: list as u64 }))];
        let others = memory::dump(&Others, pieces.into_iter(), &mut other_chunks, options, &Known::default())?;
        let others = known(&others, &other_chunks)?;
        let start = Instant::now();
        known(&dumped, &chunks)?;
        let read = start.elapsed().as_secs_f64();
        let mut used = [0; 3];
        for _ in 0..ROUNDS {
            for (known, used) in [&Known::default(), &others, &own].into_iter().zip(&mut used) {
                let before = ticks()?;
                dump(known)?;
                *used += ticks()? - before;
            }
        }
        let [whole, looked, found] = used.map(|ticks| ticks as f64);
        let again = dump(&own)?.0;
        let pages = dumped.totals.data_pages + dumped.totals.duplicate_pages + dumped.totals.zero_pages;
        let list_bytes = 16 * list + 35 * dumped.totals.chunks as usize;
        println!(
            "pid {pid}: {pages} pages in {} bytes, {list} in the list: {list_bytes} bytes = {:.2} %, read in {:.3}x of a dump",
            dumped.totals.chunk_bytes,
            list_bytes as f64 * 100. / dumped.totals.chunk_bytes as f64,
            read / first
        );
        println!(
            "  dump {:.0} MB/s of a processor; against others {:.3}x of its time, against its own image {:.3}x and {} bytes",
            (pages * PAGE_BYTES as u64 * ROUNDS as u64) as f64 / 1e4 / whole,
            looked / whole,
            found / whole,
            again.totals.chunk_bytes
        );
        (again.totals.data_pages == 0).then_some(()).context("a page was not found in its own image")?;
    }
    Ok(())
}
