//! How close a restore is to what it must do: `taskset -c 0 cargo run --release -p pando-memory --example floor -- PID...`
//!
//! The floor is decoding each cluster and copying each page, measured alone and added up. The whole path finds pages in the index, fetches
//! chunks (from memory), checks, decodes and copies. Sealing is not part of this crate and in neither.

mod common;

use std::{
    fs, hint,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use anyhow::{Context, Result};
use memory::{
    BoxError, ChunkId, ChunkSink, ChunkSource, Options, PAGE_BYTES, PageImage, PageReader, PageRun, PageTarget,
    ProcessPages, codec::Packing, hot,
};

#[derive(Default)]
struct Chunks(Vec<Vec<u8>>);

impl ChunkSink for Chunks {
    fn append(&mut self, bytes: &[u8]) -> Result<ChunkId, BoxError> {
        self.0.push(bytes.to_vec());
        Ok(ChunkId::new(&(self.0.len() as u32 - 1).to_le_bytes()).ok_or("a name of 4 bytes is short")?)
    }
}

impl ChunkSource for Chunks {
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, BoxError> {
        let index = u32::from_le_bytes(id.as_bytes().try_into()?);
        Ok(self.0.get(index as usize).ok_or("no such chunk")?.clone())
    }
}

/// Takes chunks and keeps nothing.
struct Nowhere;

impl ChunkSink for Nowhere {
    fn append(&mut self, _: &[u8]) -> Result<ChunkId, BoxError> {
        Ok(ChunkId::new(b"0").ok_or("a name of 1 byte is short")?)
    }
}

/// A place for every page, present already.
struct Place {
    /// First page of each run and where it begins.
    runs: Vec<(u64, usize)>,
    bytes: Mutex<Vec<u8>>,
}

impl PageTarget for Place {
    fn data(&self, first: u64, bytes: &[u8]) -> Result<(), BoxError> {
        let run = self.runs.partition_point(|(page, _)| *page <= first).checked_sub(1).ok_or("a page too many")?;
        let (page, at) = self.runs[run];
        let at = at + (first - page) as usize * PAGE_BYTES;
        let mut place = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        place[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn zero(&self, _: PageRun) -> Result<(), BoxError> {
        Ok(())
    }
}

fn peak_mib() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? >> 10)
}

fn dump(pid: i32, sink: &mut dyn ChunkSink, packing: Packing) -> Result<(memory::Dump, f64)> {
    let start = Instant::now();
    let options = Options { packing, threads: 2 };
    let dumped = memory::dump(&ProcessPages::open(pid)?, common::scan(pid)?, sink, options, &memory::Known::default())?;
    Ok((dumped, start.elapsed().as_secs_f64()))
}

/// Seconds to decode every cluster and to copy every page that has bytes.
fn floor(memory: &common::Memory, packing: Packing) -> Result<(f64, f64)> {
    let data = common::data(memory);
    let (decode, plain) = common::decode(&data, packing, 9)?;
    let mut place = vec![1; data.len()];
    let copy = common::seconds(9, || {
        // From the cache, as a cluster is that was just decoded.
        place.chunks_mut(plain.len()).for_each(|place| place.copy_from_slice(hint::black_box(&plain[..place.len()])));
        Ok(())
    })?;
    Ok((decode, copy))
}

fn restores(memory: &common::Memory, chunks: &Chunks, root: &[u8], packing: Packing) -> Result<()> {
    let million = memory.bytes.len() as f64 / 1e6;
    let (decode, copy) = floor(memory, packing)?;
    let runs = common::places(&memory.runs);
    let target = Place { runs, bytes: Mutex::new(vec![0; memory.bytes.len()]) };
    let reader = PageReader::new(vec![PageImage::open(root)?], chunks)?;
    let whole = common::seconds(9, || Ok(reader.restore(PageRun::ALL, 1, &target)?))?;
    let same = *target.bytes.lock().unwrap_or_else(PoisonError::into_inner) == memory.bytes;
    println!(
        "  restore: decode {:.0} MB/s, copy {:.0} MB/s, floor {:.0} MB/s; whole path {:.0} MB/s = {:.0} % of the floor; same bytes: {same}",
        million / decode,
        million / copy,
        million / (decode + copy),
        million / whole,
        (decode + copy) * 100. / whole
    );
    Ok(())
}

/// Faults on pages all over the image, each in a chunk that is not open yet; and the working set.
fn faults(memory: &common::Memory, chunks: &Chunks, root: &[u8]) -> Result<()> {
    let mut micros = Vec::new();
    let reader = PageReader::new(vec![PageImage::open(root)?], chunks)?;
    let pages: Vec<u64> = memory.runs.iter().flat_map(|run| run.first..run.end()).collect();
    for page in pages.iter().step_by(1009) {
        let start = Instant::now();
        hint::black_box(reader.fetch(*page)?);
        micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
    micros.sort_by(f64::total_cmp);
    let start = Instant::now();
    (0..1000).try_for_each(|_| reader.fetch(pages[0]).map(drop))?;
    let open = start.elapsed().as_secs_f64() * 1e3;
    println!(
        "  fault: {:.0} us (median of {}), {open:.2} us when the cluster is decoded",
        micros[micros.len() / 2],
        micros.len()
    );
    let order: Vec<u64> = pages.iter().step_by(10).copied().collect();
    let mut hot_chunks = Chunks::default();
    let set = hot::write(&reader, &order, &mut hot_chunks)?;
    let read = common::seconds(9, || Ok(set.read(&hot_chunks, &Looking)?))?;
    let million = (order.len() * PAGE_BYTES) as f64 / 1e6;
    println!("  working set of every tenth page: {million:.1} MB read at {:.0} MB/s", million / read);
    Ok(())
}

/// Looks at pages and drops them.
struct Looking;

impl PageTarget for Looking {
    fn data(&self, _: u64, bytes: &[u8]) -> Result<(), BoxError> {
        hint::black_box(bytes);
        Ok(())
    }

    fn zero(&self, _: PageRun) -> Result<(), BoxError> {
        Ok(())
    }
}

fn main() -> Result<()> {
    let pids = common::pids()?;
    let _stopped: Vec<_> = pids.iter().map(|pid| common::Stopped::new(*pid)).collect::<Result<_>>()?;
    // Before anything large is in this process.
    for pid in &pids {
        for (name, packing) in [("small", Packing::SMALL), ("fast", Packing::FAST)] {
            let (_, seconds) = dump(*pid, &mut Nowhere, packing)?;
            println!("pid {pid} {name}: dumped to nowhere in {seconds:.3} s, peak {} MiB", peak_mib()?);
        }
    }
    for pid in pids {
        for (name, packing) in [("small", Packing::SMALL), ("fast", Packing::FAST)] {
            let mut chunks = Chunks::default();
            let (dumped, seconds) = dump(pid, &mut chunks, packing)?;
            let memory = common::read(pid)?;
            let million = memory.bytes.len() as f64 / 1e6;
            let bytes = dumped.totals.chunk_bytes as usize + dumped.root.len();
            println!(
                "{} {name}: {million:.1} MB -> {:.2} %, index {} bytes, {:.0} MB/s",
                memory.name,
                bytes as f64 / 1e4 / million,
                dumped.root.len(),
                million / seconds
            );
            restores(&memory, &chunks, &dumped.root, packing)?;
            faults(&memory, &chunks, &dumped.root)?;
        }
    }
    Ok(())
}
