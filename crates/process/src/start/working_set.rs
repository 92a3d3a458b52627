//! The table of pages that a copy touches ahead while it parks.
//!
//! At its start a copy shares all page tables with its zygote, or has none where a file is mapped. Each first write and each first look into
//! a file is a fault. While a copy waits at its gate it can take these faults ahead, if the pages are known (`zygote::learn`). The table
//! lies in the zygote's arena, which every copy inherits:
//!
//! ```text
//! words 0, 1        how many entries of each kind
//! then              WRITTEN_MAX x (address, bytes): pages to make the copy's own
//! then              LOOKED_AT_MAX x (address, bytes): pages of files to map
//! ```
//!
//! The entries are `struct iovec`s of one `process_madvise(MADV_POPULATE_*)` each. The table is advice: a copy that reads it while it is
//! written populates other pages of the same program, which changes nothing but time.

use std::{fs::File, io, os::unix::fs::FileExt};
use sys::remote::Range;

use crate::script::{Arena, Arg, Check, Script};

/// Most ranges of pages that are made the copy's own: the kernel takes 1,024 of them at once.
const WRITTEN_MAX: usize = 1_000;
/// Most ranges of files.
const LOOKED_AT_MAX: usize = 250;
/// Most memory that a parked copy makes its own ahead, in bytes.
const BYTES_MAX: u64 = 4 << 20;

const PIDFD_SELF: i32 = -10_000;
const ENTRY_BYTES: usize = 16;
const TABLE_BYTES: usize = 16 + (WRITTEN_MAX + LOOKED_AT_MAX) * ENTRY_BYTES;

/// Reserves the table, empty.
pub(super) fn reserve(arena: &mut Arena) -> u64 {
    arena.data(&[0; TABLE_BYTES], 8)
}

/// Adds the touching of what the table names. An entry that cannot be touched is no failure: the program may have changed since.
pub(super) fn touch(script: &mut Script, table: u64) {
    let written = table + 16;
    let looked_at = written + (WRITTEN_MAX * ENTRY_BYTES) as u64;
    let lists = [(written, table, libc::MADV_POPULATE_WRITE), (looked_at, table + 8, libc::MADV_POPULATE_READ)];
    for (entries, count, advice) in lists {
        let args = [PIDFD_SELF.into(), entries.into(), Arg::Word(count), advice.into(), 0u64.into()];
        script.call(libc::SYS_process_madvise, args, Check::Ignore);
    }
}

/// What the table names.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct WorkingSet {
    pub(crate) written: Vec<Range>,
    pub(crate) looked_at: Vec<Range>,
}

impl WorkingSet {
    /// The table at this address of a process.
    pub(crate) fn read(memory: &File, at: u64) -> io::Result<Self> {
        let mut bytes = vec![0; TABLE_BYTES];
        memory.read_exact_at(&mut bytes, at)?;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |n: usize| u64::from_le_bytes(words[n]);
        let list = |first: usize, count: u64, most: usize| -> Vec<Range> {
            let entries = (0..(count as usize).min(most)).map(|n| (word(first + n * 2), word(first + n * 2 + 1)));
            entries.map(|(start, bytes)| Range { start, end: start + bytes }).collect()
        };
        Ok(Self {
            written: list(2, word(0), WRITTEN_MAX),
            looked_at: list(2 + WRITTEN_MAX * 2, word(1), LOOKED_AT_MAX),
        })
    }

    /// Writes the table at this address of a process.
    pub(crate) fn write(&self, memory: &File, at: u64) -> io::Result<()> {
        let mut words = vec![self.written.len() as u64, self.looked_at.len() as u64];
        let entries = |ranges: &[Range]| -> Vec<u64> {
            ranges.iter().flat_map(|range| [range.start, range.end - range.start]).collect()
        };
        words.extend(entries(&self.written));
        words.resize(2 + WRITTEN_MAX * 2, 0);
        words.extend(entries(&self.looked_at));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.write_all_at(&bytes, at)
    }

    /// Sorts and joins, and drops what is beyond the bounds.
    pub(crate) fn bound(&mut self) {
        self.written = joined(std::mem::take(&mut self.written));
        self.looked_at = joined(std::mem::take(&mut self.looked_at));
        self.written.truncate(WRITTEN_MAX);
        self.looked_at.truncate(LOOKED_AT_MAX);
        let mut left = BYTES_MAX;
        self.written.retain(|range| {
            let fits = range.end - range.start <= left;
            left -= if fits { range.end - range.start } else { 0 };
            fits
        });
    }
}

fn joined(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(start: u64, count: u64) -> Range {
        Range { start: start << 12, end: (start + count) << 12 }
    }

    #[test]
    fn what_overlaps_or_touches_is_one_range() {
        let set = joined(vec![pages(9, 1), pages(3, 2), pages(4, 3), pages(7, 1)]);
        assert_eq!(set, [pages(3, 5), pages(9, 1)]);
    }

    #[test]
    fn the_bounds_hold_and_small_ranges_come_before_one_that_does_not_fit() {
        let mut set = WorkingSet { written: vec![pages(0, 2_000), pages(3_000, 5)], looked_at: Vec::new() };
        set.written.extend((0..2_000).map(|n| pages(10_000 + n * 2, 1)));
        set.bound();
        assert!(set.written.contains(&pages(3_000, 5)) && !set.written.contains(&pages(0, 2_000)));
        assert!(set.written.len() <= WRITTEN_MAX);
        assert!(set.written.iter().map(|range| range.end - range.start).sum::<u64>() <= BYTES_MAX);
    }

    #[test]
    fn the_table_gives_back_what_was_written() {
        let file = File::from(
            rustix::fs::memfd_create("pando-test", rustix::fs::MemfdFlags::CLOEXEC)
                .expect("memfd_create has no bounds here"),
        );
        file.set_len(TABLE_BYTES as u64 + 64).unwrap();
        let set = WorkingSet { written: vec![pages(1, 1), pages(5, 2)], looked_at: vec![pages(8, 16)] };
        set.write(&file, 64).unwrap();
        assert_eq!(WorkingSet::read(&file, 64).unwrap(), set);
    }
}
