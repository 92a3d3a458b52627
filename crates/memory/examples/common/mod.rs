//! A process, stopped while it is looked at.
#![allow(dead_code)] // each example uses its part

use std::{fs, time::Instant};

use anyhow::{Context, Result};
use memory::{
    PAGE_BYTES, PageRun, PageSource, ProcessPages,
    codec::{Decoder, Encoder, Packing},
    scan::{Piece, Scan},
};
use rustix::process::{Pid, Signal, kill_process};
use sys::remote::Range;

/// The own pages of a stopped process.
pub(crate) struct Memory {
    pub(crate) name: String,
    pub(crate) runs: Vec<PageRun>,
    pub(crate) bytes: Vec<u8>,
}

/// Runs again when dropped.
pub(crate) struct Stopped(Pid);

impl Stopped {
    pub(crate) fn new(pid: i32) -> Result<Self> {
        let pid = Pid::from_raw(pid).context("0 is no process")?;
        kill_process(pid, Signal::STOP)?;
        while !fs::read_to_string(format!("/proc/{pid}/stat"))?.contains(") T ") {
            std::thread::yield_now();
        }
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

pub(crate) fn pids() -> Result<Vec<i32>> {
    let pids: Result<Vec<i32>, _> = std::env::args().skip(1).map(|arg| arg.parse()).collect();
    let pids = pids.context("give ids of processes")?;
    anyhow::ensure!(!pids.is_empty(), "give ids of processes");
    Ok(pids)
}

pub(crate) fn scan(pid: i32) -> Result<impl Iterator<Item = Result<Piece, memory::Error>> + Send> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let private = maps.lines().filter(|line| !line.contains("[v") && line.contains("p "));
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        Some(Range { start: number(start)?, end: number(end)? })
    };
    let ranges: Vec<Range> = private.filter_map(range).collect();
    Ok(Scan::new(pid, ranges)?)
}

pub(crate) fn read(pid: i32) -> Result<Memory> {
    let mut runs = Vec::new();
    for piece in scan(pid)? {
        match piece? {
            Piece::Own(run) | Piece::Parent(run) => runs.push(run),
        }
    }
    let mut bytes = vec![0; runs.iter().map(|run| run.bytes() as usize).sum()];
    ProcessPages::open(pid)?.read(&runs, &mut bytes)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm"))?.trim().to_owned();
    Ok(Memory { name, runs, bytes })
}

/// First page of each run, and where it begins when they lie one behind the other.
pub(crate) fn places(runs: &[PageRun]) -> Vec<(u64, usize)> {
    let mut at = 0;
    let place = |run: &PageRun| {
        at += run.bytes() as usize;
        (run.first, at - run.bytes() as usize)
    };
    runs.iter().map(place).collect()
}

/// Pages that are not all zeros.
pub(crate) fn data(memory: &Memory) -> Vec<u8> {
    let pages = memory.bytes.chunks(PAGE_BYTES).filter(|page| **page != [0; PAGE_BYTES]);
    pages.collect::<Vec<_>>().concat()
}

/// Seconds to decode every cluster of `data`, and the last of them.
pub(crate) fn decode(data: &[u8], packing: Packing, times: usize) -> Result<(f64, Vec<u8>)> {
    let cluster = usize::from(packing.cluster_pages) * PAGE_BYTES;
    let mut encoder = Encoder::new(packing.codec)?;
    let pack = |plain: &[u8]| {
        let mut packed = Vec::new();
        (encoder.encode(plain, &mut packed), packed, plain.len())
    };
    let clusters: Vec<_> = data.chunks(cluster).map(pack).collect();
    let (mut decoder, mut plain) = (Decoder::new()?, vec![0; cluster]);
    let decode = seconds(times, || {
        for (codec, packed, length) in &clusters {
            decoder.decode(*codec, packed, &mut plain[..*length])?;
        }
        Ok(())
    })?;
    Ok((decode, plain))
}

/// Seconds that `work` takes: the shortest of so many times, because other work on the machine only ever adds.
pub(crate) fn seconds(times: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::MAX;
    for _ in 0..times {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}
