//! What `/proc` tells of a process. Sources: Documentation/filesystems/proc.rst, proc(5).

use std::{
    fs, io,
    os::{
        fd::AsFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
};

use serde::{Deserialize, Serialize};
use sys::remote::Range;

use crate::error::{Context, Error};

/// A line of `/proc/PID/maps` with, when read from `smaps`, its flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MapLine {
    pub(crate) range: Range,
    pub(crate) protection: u64,
    pub(crate) shared: bool,
    pub(crate) offset: u64,
    /// Major and minor number of the file's device as one number.
    pub(crate) dev: u64,
    pub(crate) inode: u64,
    pub(crate) path: Vec<u8>,
    pub(crate) flags: MappingFlags,
    pub(crate) huge_tlb: bool,
    /// Pages that are missing are somebody's to bring (userfaultfd): the pager's, or they would read as zeros.
    pub(crate) awaited: bool,
    pub(crate) io: bool,
    /// It may be made writable: a shared mapping's file was open for writing.
    pub(crate) may_write: bool,
    pub(crate) protection_key: u32,
    /// Its locked pages are brought in only when they are touched (`MLOCK_ONFAULT`).
    pub(crate) locked_on_fault: bool,
    pub(crate) shadow_stack: bool,
}

/// Advice and other flags a mapping carries, as in `VmFlags` of `/proc/PID/smaps`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MappingFlags {
    pub(crate) grows_down: bool,
    pub(crate) no_reserve: bool,
    pub(crate) dont_fork: bool,
    pub(crate) wipe_on_fork: bool,
    pub(crate) dont_dump: bool,
    pub(crate) huge: bool,
    pub(crate) no_huge: bool,
    pub(crate) mergeable: bool,
    pub(crate) sequential: bool,
    pub(crate) random: bool,
    /// Of a source only, and of what is locked by it: a still has none. See `image::ProcessAttributes::locked`.
    pub(crate) locked: bool,
    pub(crate) sealed: bool,
    /// `MAP_DROPPABLE`. `image::state::sections` has it.
    #[serde(skip)]
    pub(crate) droppable: bool,
}

/// Reads a file of /proc.
///
/// Such files have no size, so `fs::read` begins with reads of 32 bytes; the kernel gives at most a page or two at once.
pub(crate) fn read(path: &str) -> Result<Vec<u8>, Error> {
    const ROOM: usize = 8 << 10;
    let file = fs::File::open(path).on("read", path)?;
    let mut bytes = Vec::new();
    loop {
        bytes.reserve(ROOM);
        if rustix::io::read(file.as_fd(), rustix::buffer::spare_capacity(&mut bytes)).on("read", path)? == 0 {
            return Ok(bytes);
        }
    }
}

impl MapLine {
    /// Private memory of no file, of which nothing is said and nothing is allowed.
    pub(crate) fn of(range: Range) -> Self {
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

    /// By which the mapped file can be opened, also if it has no name any more. Whose mapping it is has to be said.
    pub(crate) fn link(&self, pid: i32) -> String {
        format!("/proc/{pid}/map_files/{:x}-{:x}", self.range.start, self.range.end)
    }

    /// What is left of it outside of `hole`. Offsets stay: whatever adjoins memory of ours so closely that both are one line has no file.
    pub(crate) fn without(self, hole: Range) -> impl Iterator<Item = Self> {
        let Range { start, end } = self.range;
        let parts = [Range { start, end: end.min(hole.start) }, Range { start: start.max(hole.end), end }];
        parts.into_iter().filter(|part| part.start < part.end).map(move |range| Self { range, ..self.clone() })
    }
}

pub(crate) fn link(path: &str) -> Result<Vec<u8>, Error> {
    Ok(fs::read_link(path).on("read link", path)?.into_os_string().into_vec())
}

/// What a file of one line says.
pub(crate) fn text(path: &str) -> Result<String, Error> {
    Ok(String::from_utf8_lossy(&read(path)?).trim().to_owned())
}

/// The nice value of a process's group of the scheduler; 0 on a kernel without such groups. "/autogroup-123 nice 5"
pub(crate) fn autogroup_nice(pid: i32) -> i32 {
    let line = text(&format!("/proc/{pid}/autogroup")).unwrap_or_default();
    line.rsplit(' ').next().and_then(|nice| nice.parse().ok()).unwrap_or(0)
}

/// Numeric entries of a directory such as `/proc/PID/task`, in order.
pub(crate) fn numbers(path: &str) -> Result<Vec<i32>, Error> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).on("list", path)? {
        let entry = entry.on("list", path)?;
        if let Some(number) = std::str::from_utf8(entry.file_name().as_bytes()).ok().and_then(|name| name.parse().ok())
        {
            found.push(number);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The children that a thread has begun (`CONFIG_PROC_CHILDREN`).
pub(crate) fn children(pid: i32, tid: i32) -> Result<Vec<i32>, Error> {
    let children = read(&format!("/proc/{pid}/task/{tid}/children"))?;
    Ok(String::from_utf8_lossy(&children).split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// The mappings of `maps` or `smaps`, without `[vsyscall]`, which is not part of the address space.
pub(crate) fn mappings(pid: i32, file: &str) -> Result<Vec<MapLine>, Error> {
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

/// What `/proc/PID/stat` tells.
#[derive(Debug)]
pub(crate) struct Stat {
    state: u8,
    /// By their number in proc(5), from 4 on.
    fields: Vec<i64>,
}

impl Stat {
    /// Of a process, or with `task` "PID/task/TID" of a thread.
    pub(crate) fn read(task: &str) -> Result<Self, Error> {
        let path = format!("/proc/{task}/stat");
        let text = read(&path)?;
        let parsed = Self::parse(&text);
        parsed.ok_or_else(|| Error::Format { path, line: String::from_utf8_lossy(&text).into_owned() })
    }

    /// "42 (name) S 1 ...": the name may itself have brackets and spaces in it.
    fn parse(text: &[u8]) -> Option<Self> {
        let start = text.iter().position(|byte| *byte == b'(')?;
        let end = text.iter().rposition(|byte| *byte == b')').filter(|end| *end > start)?;
        let mut fields = std::str::from_utf8(&text[end + 1..]).ok()?.split_ascii_whitespace();
        let state = fields.next()?.bytes().next()?;
        // Addresses above i64::MAX do not occur in user space; unparsable fields read as 0.
        let fields = fields.map(|field| field.parse().unwrap_or(0)).collect();
        Some(Self { state, fields })
    }

    /// Field number `n` of proc(5), 4 or more.
    pub(crate) fn field(&self, n: usize) -> i64 {
        self.fields.get(n - 4).copied().unwrap_or(0)
    }

    /// Whether it is a zombie or has begun to exit.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_dead() || self.is_on_its_way_out()
    }

    /// Whether it has begun to exit (`PF_EXITING` in field 9) and is no zombie yet.
    pub(crate) fn is_on_its_way_out(&self) -> bool {
        const PF_EXITING: i64 = 4;
        !self.is_dead() && self.field(9) & PF_EXITING != 0
    }

    /// Whether a process's main thread is dead and there is no other one (field 20 counts those that have not been reaped).
    pub(crate) fn is_last_dead(&self) -> bool {
        self.is_dead() && self.field(20) <= 1
    }

    /// Whether it is the kernel's own (`PF_KTHREAD` in field 9).
    pub(crate) fn is_kernel_thread(&self) -> bool {
        const PF_KTHREAD: i64 = 0x0020_0000;
        self.field(9) & PF_KTHREAD != 0
    }

    fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// R, S, D, T, t, Z ...
    pub(crate) fn state(&self) -> u8 {
        self.state
    }
}

/// The `Name:\tvalue` lines of `/proc/PID/status`, `fdinfo` and the like.
#[derive(Debug)]
pub(crate) struct Fields {
    path: String,
    text: String,
}

impl Fields {
    pub(crate) fn read(path: String) -> Result<Self, Error> {
        let text = String::from_utf8_lossy(&read(&path)?).into_owned();
        Ok(Self { path, text })
    }

    /// These lines.
    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self { path: String::new(), text: text.into() }
    }

    /// The value after `name:`.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// All lines.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.text.lines()
    }

    /// The value after `name:` as numbers in this base.
    pub(crate) fn numbers(&self, name: &str, radix: u32) -> Result<Vec<u64>, Error> {
        let bad = |line: &str| Error::Format { path: self.path.clone(), line: line.to_owned() };
        let value = self.get(name).ok_or_else(|| bad(name))?;
        value
            .split_ascii_whitespace()
            .map(|number| u64::from_str_radix(number, radix).map_err(|_| bad(value)))
            .collect()
    }

    /// `(1, 500)` after `name:` as two numbers; 0 for one that is not there.
    pub(crate) fn pair(&self, name: &str) -> (u64, u64) {
        let text = self.get(name).unwrap_or("");
        let mut numbers = text.trim_matches(['(', ')']).split(',').map(|number| number.trim().parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    /// The first number after `name:` in this base; a unit may follow.
    pub(crate) fn number(&self, name: &str, radix: u32) -> Result<u64, Error> {
        let first = self.get(name).and_then(|value| value.split_ascii_whitespace().next());
        let number = first.and_then(|first| u64::from_str_radix(first, radix).ok());
        number.ok_or_else(|| Error::Format {
            path: self.path.clone(),
            line: format!("{name}: {}", self.get(name).unwrap_or_default()),
        })
    }
}

/// Number of resource limits Linux has (RLIM_NLIMITS).
const LIMITS: usize = 16;

/// Soft and hard limits of a process in the order of their numbers (RLIMIT_CPU = 0 ...).
pub(crate) fn limits(pid: i32) -> Result<Vec<(u64, u64)>, Error> {
    let text = String::from_utf8_lossy(&read(&format!("/proc/{pid}/limits"))?).into_owned();
    let mut found = Vec::with_capacity(LIMITS);
    for line in text.lines().skip(1) {
        // "Max cpu time              unlimited            unlimited            seconds": the name is 25 columns wide.
        let mut values =
            line.get(25..).unwrap_or("").split_ascii_whitespace().map(|value| value.parse().unwrap_or(u64::MAX));
        found.push((values.next().unwrap_or(u64::MAX), values.next().unwrap_or(u64::MAX)));
    }
    found.truncate(LIMITS);
    Ok(found)
}

/// Whether an error says that the process or thread is gone.
pub(crate) fn is_gone(error: &Error) -> bool {
    let (Error::Process { source, .. } | Error::File { source, .. }) = error else { return false };
    matches!(source.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) || source.kind() == io::ErrorKind::NotFound
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
    fn a_name_may_look_like_the_end_of_a_name() {
        let stat = Stat::parse(b"42 (a) R (b) S 1 7 8\n").unwrap();
        assert_eq!((stat.state(), stat.field(5)), (b'S', 7));
        assert!(Stat::parse(b"42 )(").is_none());
    }

    #[test]
    fn our_own_mappings_and_limits_are_readable() {
        let pid = std::process::id() as i32;
        let lines = mappings(pid, "smaps").unwrap();
        assert!(lines.iter().any(|line| line.path == b"[stack]" && line.flags.grows_down));
        assert_eq!(limits(pid).unwrap().len(), 16);
    }
}
