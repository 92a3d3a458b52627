//! The mappings of a process: `/proc/PID/maps` and `smaps`.

use sys::remote::Range;

use crate::{error::Error, read::read};

/// Advice and other flags a mapping carries, as in `VmFlags` of `/proc/PID/smaps`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MappingFlags {
    /// `MAP_GROWSDOWN`.
    pub grows_down: bool,
    /// `MAP_NORESERVE`.
    pub no_reserve: bool,
    /// `MADV_DONTFORK`.
    pub dont_fork: bool,
    /// `MADV_WIPEONFORK`.
    pub wipe_on_fork: bool,
    /// `MADV_DONTDUMP`.
    pub dont_dump: bool,
    /// `MADV_HUGEPAGE`.
    pub huge: bool,
    /// `MADV_NOHUGEPAGE`.
    pub no_huge: bool,
    /// `MADV_MERGEABLE`.
    pub mergeable: bool,
    /// `MADV_SEQUENTIAL`.
    pub sequential: bool,
    /// `MADV_RANDOM`.
    pub random: bool,
    /// `mlock`. A fork has none of its parent's locks.
    pub locked: bool,
    /// `mseal`.
    pub sealed: bool,
    /// `MAP_DROPPABLE`.
    pub droppable: bool,
}

/// A line of `/proc/PID/maps` with, when read from `smaps`, its flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapLine {
    /// Its addresses.
    pub range: Range,
    /// `PROT_READ` 1, `PROT_WRITE` 2, `PROT_EXEC` 4.
    pub protection: u64,
    /// `MAP_SHARED`.
    pub shared: bool,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// Major and minor number of the file's device as one number.
    pub dev: u64,
    /// 0 without a file.
    pub inode: u64,
    /// The path of the file as the kernel shows it (` (deleted)` may follow), a name in brackets such as `[stack]`, or nothing.
    pub path: Vec<u8>,
    /// Advice and the like.
    pub flags: MappingFlags,
    /// Pages of hugetlbfs.
    pub huge_tlb: bool,
    /// Another process fills its missing pages (userfaultfd).
    pub awaited: bool,
    /// Memory of a device, or page frames without the kernel's bookkeeping.
    pub io: bool,
    /// It may be made writable: a shared mapping's file was open for writing.
    pub may_write: bool,
    /// `pkey_mprotect`; 0: the usual one.
    pub protection_key: u32,
    /// Its locked pages are brought in only when they are touched (`MLOCK_ONFAULT`).
    pub locked_on_fault: bool,
    /// A shadow stack for return addresses.
    pub shadow_stack: bool,
}

impl MapLine {
    /// Private memory of no file, with no flags and no access.
    pub fn of(range: Range) -> Self {
        Self {
            range,
            protection: 0,
            shared: false,
            offset: 0,
            dev: 0,
            inode: 0,
            path: Vec::new(),
            flags: MappingFlags::default(),
            huge_tlb: false,
            awaited: false,
            io: false,
            may_write: false,
            protection_key: 0,
            locked_on_fault: false,
            shadow_stack: false,
        }
    }

    /// The path by which the mapped file of process `pid` can be opened, also if it has no name any more.
    pub fn link(&self, pid: i32) -> String {
        format!("/proc/{pid}/map_files/{:x}-{:x}", self.range.start, self.range.end)
    }

    /// What is left of it outside of `hole`. Offsets stay: whatever adjoins memory of ours so closely that both are one line has no file.
    pub fn without(self, hole: Range) -> impl Iterator<Item = Self> {
        let Range { start, end } = self.range;
        let parts = [Range { start, end: end.min(hole.start) }, Range { start: start.max(hole.end), end }];
        parts.into_iter().filter(|part| part.start < part.end).map(move |range| Self { range, ..self.clone() })
    }
}

/// The mappings of a process in the order of their addresses, without `[vsyscall]`, which is not part of the address space. Nothing is known of
/// [`MapLine::flags`] and of what follows it: [`smaps`] reads these, for which the kernel walks the whole address space.
pub fn maps(pid: i32) -> Result<Vec<MapLine>, Error> {
    mappings(pid, "maps")
}

/// As [`maps`], with flags, protection keys and all else that `VmFlags` says.
pub fn smaps(pid: i32) -> Result<Vec<MapLine>, Error> {
    mappings(pid, "smaps")
}

fn mappings(pid: i32, file: &str) -> Result<Vec<MapLine>, Error> {
    let path = format!("/proc/{pid}/{file}");
    let text = read(&path)?;
    let mut lines: Vec<MapLine> = Vec::new();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        if let Some(flags) = line.strip_prefix(b"VmFlags: ") {
            if let Some(last) = lines.last_mut() {
                apply_flags(last, flags);
            }
        } else if let Some(key) = line.strip_prefix(b"ProtectionKey:") {
            if let Some(last) = lines.last_mut() {
                last.protection_key = String::from_utf8_lossy(key).trim().parse().unwrap_or(0);
            }
        } else if line[0].is_ascii_digit() || matches!(line[0], b'a'..=b'f') {
            let parsed = map_line(line);
            lines.push(
                parsed
                    .ok_or_else(|| Error::Format { path: path.clone(), line: String::from_utf8_lossy(line).into() })?,
            );
        }
    }
    lines.retain(|line| line.path != b"[vsyscall]");
    Ok(lines)
}

fn map_line(line: &[u8]) -> Option<MapLine> {
    // The path, last, may itself contain spaces.
    let mut rest = line;
    let mut field = || {
        let start = rest.iter().position(|byte| *byte != b' ').unwrap_or(rest.len());
        let end = rest[start..].iter().position(|byte| *byte == b' ').map_or(rest.len(), |at| start + at);
        let found = &rest[start..end];
        rest = &rest[end..];
        std::str::from_utf8(found).ok()
    };
    let (start, end) = field()?.split_once('-')?;
    let permissions = field()?.as_bytes();
    let offset = u64::from_str_radix(field()?, 16).ok()?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?.parse().ok()?;
    let path = rest.iter().position(|byte| *byte != b' ').map_or(&[][..], |at| &rest[at..]);
    let bit = |at: usize, letter: u8, value: u64| if permissions.get(at) == Some(&letter) { value } else { 0 };
    Some(MapLine {
        protection: bit(0, b'r', 1) | bit(1, b'w', 2) | bit(2, b'x', 4),
        shared: permissions.get(3) == Some(&b's'),
        offset,
        dev: rustix::fs::makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode,
        path: unescape(path),
        ..MapLine::of(Range { start: u64::from_str_radix(start, 16).ok()?, end: u64::from_str_radix(end, 16).ok()? })
    })
}

/// `maps` shows a newline in a path as `\012`.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut at = 0;
    while at < path.len() {
        if path[at..].starts_with(b"\\012") {
            plain.push(b'\n');
            at += 4;
        } else {
            plain.push(path[at]);
            at += 1;
        }
    }
    plain
}

fn apply_flags(line: &mut MapLine, flags: &[u8]) {
    for flag in flags.split(|byte| *byte == b' ') {
        let known = &mut line.flags;
        match flag {
            b"gd" => known.grows_down = true,
            b"nr" => known.no_reserve = true,
            b"dc" => known.dont_fork = true,
            b"wf" => known.wipe_on_fork = true,
            b"dd" => known.dont_dump = true,
            b"hg" => known.huge = true,
            b"nh" => known.no_huge = true,
            b"mg" => known.mergeable = true,
            b"sr" => known.sequential = true,
            b"rr" => known.random = true,
            b"lo" => known.locked = true,
            b"sl" => known.sealed = true,
            b"mw" => line.may_write = true,
            b"dp" => known.droppable = true,
            b"lf" => line.locked_on_fault = true,
            b"ss" => line.shadow_stack = true,
            b"ht" => line.huge_tlb = true,
            b"um" => line.awaited = true,
            b"io" | b"pf" => line.io = true,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_line_is_understood() {
        let line = map_line(b"7f00a000-7f00c000 r-xp 00001000 fe:01 42                 /usr/lib/a b.so").unwrap();
        assert_eq!(line.range, Range { start: 0x7f00_a000, end: 0x7f00_c000 });
        assert_eq!((line.protection, line.shared, line.offset, line.inode), (5, false, 0x1000, 42));
        assert_eq!(line.path, b"/usr/lib/a b.so");
    }

    #[test]
    fn an_anonymous_map_line_has_no_path() {
        assert!(map_line(b"7f00a000-7f00c000 rw-p 00000000 00:00 0 ").unwrap().path.is_empty());
    }

    #[test]
    fn flags_are_understood() {
        let mut line = map_line(b"7f00a000-7f00c000 rw-p 00000000 00:00 0 ").unwrap();
        apply_flags(&mut line, b"rd wr mr mw me lo lf ss nr wf dd dp ");
        let flags = line.flags;
        assert!(flags.locked && flags.droppable && flags.no_reserve && flags.wipe_on_fork && flags.dont_dump);
        assert!(line.locked_on_fault && line.shadow_stack && !flags.sealed && !flags.mergeable);
    }

    #[test]
    fn a_hole_leaves_what_is_around_it() {
        let line = map_line(b"1000-5000 rw-p 00000000 00:00 0 ").unwrap();
        let left = |start, end| -> Vec<(u64, u64)> {
            line.clone().without(Range { start, end }).map(|line| (line.range.start, line.range.end)).collect()
        };
        assert_eq!(left(0x2000, 0x3000), [(0x1000, 0x2000), (0x3000, 0x5000)]);
        assert_eq!(left(0, 0x3000), [(0x3000, 0x5000)]);
        assert_eq!(left(0, 0x1000), [(0x1000, 0x5000)]);
        assert_eq!(left(0x5000, 0x6000), [(0x1000, 0x5000)]);
        assert!(left(0, 0x9000).is_empty());
    }

    #[test]
    fn a_foreign_line_is_refused() {
        for bad in [&b"nonsense"[..], b"12-", b"7f-80 rwxp zz 0:0 1"] {
            assert!(map_line(bad).is_none());
        }
    }

    #[test]
    fn our_own_mappings_are_readable() {
        let lines = smaps(std::process::id() as i32).unwrap();
        assert!(lines.iter().any(|line| line.path == b"[stack]" && line.flags.grows_down));
    }
}
