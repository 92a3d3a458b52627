//! How close the restore of a sealed image is to what it must do: `taskset -c 0 cargo run --release -p pando-memory --example sealed -- PID...`
//!
//! The floor is opening each sealed chunk, decoding each cluster and `UFFDIO_COPY` of each, measured alone and added up. The whole path finds
//! pages in the index, reads chunks from the store's cache on the disk (its bytes are in the page cache), opens, checks, decodes and copies.

mod common;

use std::{
    hint,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result, anyhow};
use memory::{
    BoxError, ChunkId, ChunkSink, ChunkSource, Options, PAGE_BYTES, PageImage, PageReader, PageRun, PageTarget,
    ProcessPages, codec::Packing,
};
use store::{
    Store,
    cache::Cache,
    keys::{MasterKeys, RealmKeys},
    object::{Location, Objects, RequestOptions},
    seal::SegmentKey,
    segment::{ChunkRef, SegmentWriter},
};
use sys::uffd::Uffd;
use tokio::runtime::Runtime;

const ROUNDS: usize = 7;

struct Sealed {
    runtime: Runtime,
    store: Store,
    writer: Option<SegmentWriter>,
    chunks: Vec<ChunkRef>,
}

impl ChunkSink for Sealed {
    fn append(&mut self, bytes: &[u8]) -> Result<ChunkId, BoxError> {
        let writer = self.writer.as_mut().ok_or("the segment is finished")?;
        let chunk = self.runtime.block_on(writer.append(bytes))?;
        self.chunks.push(chunk);
        Ok(ChunkId::new(&chunk.encode()).ok_or("a reference is short")?)
    }
}

impl ChunkSource for Sealed {
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, BoxError> {
        let chunk = ChunkRef::decode(id.as_bytes())?;
        Ok(self.runtime.block_on(self.store.read(&chunk))?.into())
    }
}

/// Memory of this process without pages, which only the userfaultfd fills.
struct Absent {
    uffd: Uffd,
    /// Never touched.
    _room: Vec<u8>,
    start: u64,
    /// First page of each run and where it begins.
    runs: Vec<(u64, usize)>,
    filled: Mutex<usize>,
}

impl Absent {
    fn new(runs: &[PageRun]) -> Result<Self> {
        let bytes: usize = runs.iter().map(|run| run.bytes() as usize).sum();
        // More than any allocator keeps: it is mapped for this, and empty.
        let room = Vec::with_capacity(bytes.max(64 << 20) + PAGE_BYTES);
        let start = (room.as_ptr() as u64).next_multiple_of(PAGE_BYTES as u64);
        let uffd = Uffd::new()?;
        uffd.register(start..start + bytes as u64)?;
        let runs = common::places(runs);
        Ok(Self { uffd, _room: room, start, runs, filled: Mutex::new(0) })
    }
}

impl PageTarget for Absent {
    fn data(&self, first: u64, bytes: &[u8]) -> Result<(), BoxError> {
        let run = self.runs.partition_point(|(page, _)| *page <= first).checked_sub(1).ok_or("a page too many")?;
        let (page, at) = self.runs[run];
        self.uffd.copy(self.start + at as u64 + (first - page) * PAGE_BYTES as u64, bytes)?;
        *self.filled.lock().unwrap_or_else(PoisonError::into_inner) += bytes.len();
        Ok(())
    }

    fn zero(&self, _: PageRun) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Seconds to open every chunk, to decode every cluster, and to copy what is not zeros.
fn floor(sealed: &Sealed, memory: &common::Memory, packing: Packing) -> Result<[f64; 3]> {
    let first = sealed.chunks.first().context("nothing was stored")?;
    let key = sealed.runtime.block_on(sealed.store.keys().current())?;
    let key = SegmentKey::derive(&key, sealed.store.realm(), first.segment);
    let mut bytes = Vec::new();
    for chunk in &sealed.chunks {
        let cached = sealed.runtime.block_on(sealed.store.sealed(chunk));
        bytes.push((chunk.number, cached.context("the cache has not kept all")?));
    }
    let open = common::seconds(ROUNDS, || {
        for (number, sealed) in &bytes {
            hint::black_box(key.open(*number, sealed).map_err(|error| anyhow!("{error}"))?);
        }
        Ok(())
    })?;
    drop(bytes);
    let data = common::data(memory);
    let (decode, plain) = common::decode(&data, packing, ROUNDS)?;
    let whole = PageRun { first: 0, count: (data.len() / PAGE_BYTES) as u64 };
    let mut targets = (0..ROUNDS).map(|_| Absent::new(&[whole])).collect::<Result<Vec<_>>>()?;
    let copy = common::seconds(ROUNDS, || {
        let target = targets.pop().context("one for each round")?;
        for first in (0..data.len()).step_by(plain.len()) {
            // From the processor's cache, as a cluster is that was just decoded.
            let length = plain.len().min(data.len() - first);
            target.uffd.copy(target.start + first as u64, hint::black_box(&plain[..length]))?;
        }
        Ok(())
    })?;
    Ok([open, decode, copy])
}

/// One after the other: what comes faster than the disk takes it is not cached.
fn fill_cache(sealed: &Sealed) -> Result<()> {
    let cache = sealed.store.cache().context("it has a cache")?;
    for chunk in &sealed.chunks {
        sealed.runtime.block_on(async {
            sealed.store.read(chunk).await?;
            cache.settle().await;
            anyhow::Ok(())
        })?;
    }
    Ok(())
}

fn restore(pid: i32, name: &str, packing: Packing) -> Result<()> {
    let folder = tempfile::tempdir_in("target")?;
    let objects = Objects::open(&Location::Directory(folder.path().join("objects")), RequestOptions::default())?;
    let masters = Arc::new(MasterKeys::parse(&format!("bench:{}", "ab".repeat(32)), "the benchmark")?);
    let keys = RealmKeys::new(objects.clone(), masters, "bench".parse().context("a good name")?);
    let store = Store::new(objects, keys, Some(Cache::open(&folder.path().join("cache"), 8 << 30)?), None);
    let runtime = Runtime::new()?;
    let writer = Some(runtime.block_on(store.write())?);
    let mut sealed = Sealed { runtime, store, writer, chunks: Vec::new() };
    let options = Options { packing, threads: 1 };
    let known = memory::Known::default();
    let dumped = memory::dump(&ProcessPages::open(pid)?, common::scan(pid)?, &mut sealed, options, &known)?;
    let writer = sealed.writer.take().context("it is not finished")?;
    sealed.runtime.block_on(writer.finish())?;

    let memory = common::read(pid)?;
    let reader = PageReader::new(vec![PageImage::open(&dumped.root)?], &sealed)?;
    fill_cache(&sealed)?;
    let mut targets = (0..ROUNDS).map(|_| Absent::new(&memory.runs)).collect::<Result<Vec<_>>>()?;
    let mut filled = 0;
    let whole = common::seconds(ROUNDS, || {
        let target = targets.pop().context("one for each round")?;
        reader.restore(PageRun::ALL, 1, &target)?;
        filled = *target.filled.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(())
    })?;
    let parts = floor(&sealed, &memory, packing)?;
    let million = filled as f64 / 1e6;
    let sum: f64 = parts.iter().sum();
    let [open, decode, copy] = parts.map(|seconds| million / seconds);
    println!(
        "{} {name}: {million:.1} MB of pages; open {open:.0} MB/s, decode {decode:.0}, UFFDIO_COPY {copy:.0}: floor {:.0} MB/s; whole path {:.0} MB/s = {:.0} % of it",
        memory.name,
        million / sum,
        million / whole,
        sum * 100. / whole
    );
    Ok(())
}

fn main() -> Result<()> {
    let pids = common::pids()?;
    let _stopped: Vec<_> = pids.iter().map(|pid| common::Stopped::new(*pid)).collect::<Result<_>>()?;
    for pid in pids {
        for (name, packing) in [("small", Packing::SMALL), ("fast", Packing::FAST)] {
            restore(pid, name, packing)?;
        }
    }
    Ok(())
}
