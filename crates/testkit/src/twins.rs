//! Whether two processes have the same memory: every page of every private mapping, byte by byte.
//!
//! What a copy does not have from its source is not looked at: the kernel's own mappings (`[vdso]`, `[vvar]`), shared ones, and the arena of a
//! zygote or copy, which the other does not map.

use std::{collections::BTreeSet, fs::File, os::unix::fs::FileExt};

use anyhow::{Context, Result, bail, ensure};
use sys::remote::{self, Range};

const PAGE: u64 = 4096;
const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

/// What was compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// Pages that one of them has for itself, all of them equal but for `differing`.
    pub pages: u64,
    /// Of these, pages that are not all zeros.
    pub filled: u64,
    /// Mapped in one of them only.
    pub unshared: Vec<Range>,
    /// Where bytes differ: address, length and both contents, at most 64 runs.
    pub differing: Vec<Difference>,
}

/// Bytes that differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Where they begin.
    pub address: u64,
    /// In the first process.
    pub first: Vec<u8>,
    /// In the second.
    pub second: Vec<u8>,
}

/// Compares the memory of processes that stand still, but for the arenas of either, which hold what starts it.
///
/// # Errors
/// A page cannot be read, for instance since a pager has not filled it yet.
pub fn compare(first: i32, second: i32, arenas: &[base::id::Arena]) -> Result<Compared> {
    let arenas: Vec<Range> = arenas.iter().map(|arena| Range { start: arena.start, end: arena.end }).collect();
    let (ours, theirs) = (Memory::of(first, &arenas)?, Memory::of(second, &arenas)?);
    let mut compared = Compared { unshared: without(&ours.mapped, &theirs.mapped), ..Compared::default() };
    compared.unshared.extend(without(&theirs.mapped, &ours.mapped));
    let mut own = BTreeSet::new();
    for memory in [&ours, &theirs] {
        for range in &memory.mapped {
            let runs = remote::private_pages(&memory.pagemap, *range).context("scan a page map")?;
            own.extend(runs.into_iter().flat_map(pages_of));
        }
    }
    let in_both = |page: &u64| [&ours, &theirs].iter().all(|memory| memory.has(*page));
    for page in own.into_iter().filter(in_both) {
        let (a, b) = (ours.page(page)?, theirs.page(page)?);
        compared.pages += 1;
        compared.filled += u64::from(a != ZEROS);
        // Whole pages first: a build without optimisation walks bytes at a hundredth of that speed.
        if a != b {
            compared.note(page, &a, &b);
        }
        ensure!(compared.differing.len() < 64, "too much differs: {:x?}", compared.differing);
    }
    Ok(compared)
}

impl Compared {
    fn note(&mut self, page: u64, first: &[u8], second: &[u8]) {
        let mut at = 0;
        while let Some(from) = (at..first.len()).find(|at| first[*at] != second[*at]) {
            let end = (from..first.len()).find(|at| first[*at] == second[*at]).unwrap_or(first.len());
            let (first, second) = (first[from..end].to_vec(), second[from..end].to_vec());
            self.differing.push(Difference { address: page + from as u64, first, second });
            at = end;
        }
    }
}

/// Of a process: its private mappings, and how to read them.
struct Memory {
    pid: i32,
    mapped: Vec<Range>,
    pagemap: File,
    bytes: File,
}

impl Memory {
    fn of(pid: i32, arenas: &[Range]) -> Result<Self> {
        let open = |name: &str| File::open(format!("/proc/{pid}/{name}")).with_context(|| format!("{name} of {pid}"));
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).with_context(|| format!("maps of {pid}"))?;
        let mapped: Vec<Range> = maps.lines().filter_map(private_mapping).collect();
        Ok(Self { pid, mapped: without(&mapped, arenas), pagemap: open("pagemap")?, bytes: open("mem")? })
    }

    fn has(&self, page: u64) -> bool {
        // Sorted, as `maps` is.
        let after = self.mapped.partition_point(|range| range.start <= page);
        after.checked_sub(1).is_some_and(|at| page < self.mapped[at].end)
    }

    fn page(&self, address: u64) -> Result<Vec<u8>> {
        let mut page = vec![0; PAGE as usize];
        match self.bytes.read_exact_at(&mut page, address) {
            Ok(()) => Ok(page),
            Err(error) => bail!("process {} has no page at {address:#x}: {error}", self.pid),
        }
    }
}

/// The range of a line of `maps`, if it is private and not the kernel's.
fn private_mapping(line: &str) -> Option<Range> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let private = fields.next()?.ends_with('p');
    let kernel = fields.nth(3).is_some_and(|name| name.starts_with("[v"));
    let hex = |text| u64::from_str_radix(text, 16).ok();
    (private && !kernel).then_some(Range { start: hex(start)?, end: hex(end)? })
}

/// What is in `ranges`, which are sorted, and in none of `others`.
fn without(ranges: &[Range], others: &[Range]) -> Vec<Range> {
    let mut left = Vec::new();
    for range in ranges {
        let mut start = range.start;
        for other in others.iter().filter(|other| other.start < range.end && other.end > range.start) {
            left.push(Range { start, end: other.start });
            start = start.max(other.end);
        }
        left.push(Range { start, end: range.end });
    }
    left.retain(|range| range.start < range.end);
    left
}

fn pages_of(range: Range) -> impl Iterator<Item = u64> {
    (range.start..range.end).step_by(PAGE as usize)
}
