//! A checkpoint without a store: the page image lies in memory.

use std::{os::fd::OwnedFd, sync::Mutex, time::Duration};

use anyhow::{Result, anyhow};
use memory::{
    BoxError, ChunkId, ChunkSink, ChunkSource, Options, PAGE_BYTES, PageImage, PageReader, PageRun, PageTarget,
    ProcessPages, codec::Packing, scan::Scan,
};
use process::ProgramState;
use sys::{
    remote::Range,
    uffd::{Outcome, Uffd},
};

/// Chunks by their place.
#[derive(Default)]
pub(super) struct Chunks(Mutex<Vec<Vec<u8>>>);

impl Chunks {
    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl ChunkSink for Chunks {
    fn append(&mut self, bytes: &[u8]) -> Result<ChunkId, BoxError> {
        let mut chunks = self.all();
        chunks.push(bytes.to_vec());
        ChunkId::new(&(chunks.len() as u64 - 1).to_le_bytes()).ok_or_else(|| "too long".into())
    }
}

impl ChunkSource for Chunks {
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, BoxError> {
        let number = u64::from_le_bytes(id.as_bytes().try_into()?) as usize;
        self.all().get(number).cloned().ok_or_else(|| "no such chunk".into())
    }
}

/// The memory of a zygote as an image.
pub(super) fn image(state: &ProgramState, zygote: i32) -> Result<PageReader<Chunks>> {
    let ranges = state.memory_ranges().into_iter().map(|(start, end)| Range { start, end });
    let scan = Scan::new(zygote, ranges)?;
    let mut chunks = Chunks::default();
    let options = Options { packing: Packing::SMALL, threads: 2 };
    let dump = memory::dump(&ProcessPages::open(zygote)?, scan, &mut chunks, options, &memory::Known::default())?;
    wait_for_threads()?;
    Ok(PageReader::new(vec![PageImage::open(&dump.root)?], chunks)?)
}

/// Fills a restored zygote; then no pager watches its memory any more.
pub(super) fn fill(reader: &PageReader<Chunks>, faults: OwnedFd) -> Result<()> {
    reader.restore(PageRun::ALL, 2, &Zygote(faults.into())).map_err(|error| anyhow!(error))?;
    wait_for_threads()
}

/// Only a process of one thread forks. A scope ends when its threads have done their work; the kernel may count them a moment longer.
fn wait_for_threads() -> Result<()> {
    let alone = || std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    super::wait_until("end of the other threads", Duration::from_secs(10), alone)
}

struct Zygote(Uffd);

impl PageTarget for Zygote {
    fn data(&self, first: u64, bytes: &[u8]) -> Result<(), BoxError> {
        for (n, page) in bytes.chunks(PAGE_BYTES).enumerate() {
            let address = (first + n as u64) * PAGE_BYTES as u64;
            match self.0.copy(address, page)? {
                // Arguments and environment are there from the start.
                Outcome::Done(_) | Outcome::Exists => {}
                other => return Err(format!("page {address:#x}: {other:?}").into()),
            }
        }
        Ok(())
    }

    fn zero(&self, _pages: PageRun) -> Result<(), BoxError> {
        Ok(())
    }
}
