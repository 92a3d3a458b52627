//! What other designs make of the pages of a process.

use std::{
    fs,
    io::{self, Write},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use memory::{
    PAGE_BYTES, PageRun, PageSource, ProcessPages,
    scan::{Piece, Scan},
};
use rustix::process::{Pid, Signal, kill_process};
use sys::remote::Range;

/// Read at once: 4 MiB.
const READ_PAGES: u64 = 1024;
/// What `zstd` does without being told.
const ZSTD_LEVEL: i32 = 3;
const STOP_WAIT: Duration = Duration::from_secs(5);

/// Bytes.
#[derive(Debug)]
pub(super) struct Sizes {
    pub(super) raw: u64,
    /// Each page compressed by itself, or as it is if that is shorter.
    pub(super) lz4_pages: u64,
    /// All pages as one stream.
    pub(super) zstd_stream: u64,
    /// On one core.
    pub(super) zstd_took: Duration,
}

/// Looks at the private pages of `pid`, which stands still meanwhile.
pub(super) fn of(pid: i32) -> Result<Sizes> {
    let _stopped = Stopped::new(pid)?;
    let source = ProcessPages::open(pid)?;
    let mut counting = Counting::new()?;
    let mut bytes = Vec::new();
    for piece in Scan::new(pid, private_ranges(pid)?)? {
        let (Piece::Own(run) | Piece::Parent(run)) = piece?;
        for first in (run.first..run.end()).step_by(READ_PAGES as usize) {
            let part = PageRun::between(first, run.end().min(first + READ_PAGES));
            bytes.resize(part.bytes() as usize, 0);
            source.read(&[part], &mut bytes)?;
            counting.add(&bytes)?;
        }
    }
    counting.finish()
}

/// All private mappings but the kernel's own, as in a checkpoint.
fn private_ranges(pid: i32) -> Result<Vec<Range>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let private = maps.lines().filter(|line| line.contains("p ") && !line.contains("[v"));
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        Some(Range { start: number(start)?, end: number(end)? })
    };
    Ok(private.filter_map(range).collect())
}

/// Counts what the codecs give, and keeps nothing.
struct Counting {
    raw: u64,
    lz4_pages: u64,
    lz4: Vec<u8>,
    zstd: zstd::Encoder<'static, Length>,
    zstd_took: Duration,
}

/// A file that keeps its length only.
struct Length(u64);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Counting {
    fn new() -> Result<Self> {
        let lz4 = vec![0; lz4_flex::block::get_maximum_output_size(PAGE_BYTES)];
        let zstd = zstd::Encoder::new(Length(0), ZSTD_LEVEL)?;
        Ok(Self { raw: 0, lz4_pages: 0, lz4, zstd, zstd_took: Duration::ZERO })
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.raw += bytes.len() as u64;
        for page in bytes.chunks(PAGE_BYTES) {
            let packed = lz4_flex::block::compress_into(page, &mut self.lz4)?;
            self.lz4_pages += packed.min(PAGE_BYTES) as u64;
        }
        let began = Instant::now();
        self.zstd.write_all(bytes)?;
        self.zstd_took += began.elapsed();
        Ok(())
    }

    fn finish(self) -> Result<Sizes> {
        let Length(zstd_stream) = self.zstd.finish()?;
        Ok(Sizes { raw: self.raw, lz4_pages: self.lz4_pages, zstd_stream, zstd_took: self.zstd_took })
    }
}

/// A process that stands still until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: i32) -> Result<Self> {
        let pid = Pid::from_raw(pid).context("0 is no process")?;
        kill_process(pid, Signal::STOP)?;
        let stopped = Self(pid);
        let began = Instant::now();
        while !fs::read_to_string(format!("/proc/{pid}/stat"))?.contains(") T ") {
            ensure!(began.elapsed() < STOP_WAIT, "process {pid} does not stop");
            std::thread::yield_now();
        }
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}
