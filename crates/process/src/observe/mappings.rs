//! From the kernel's list of mappings to what a zygote maps.

use std::{
    ffi::OsStr,
    fs,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
};

use base::limits;
use procfs::MapLine;
use sys::remote::{self, PAGE, Range};

use crate::{
    error::{Context, Error},
    image::{Backing, Locked, Mapping},
    observe::{
        objects::Object,
        root::{open_inside, open_root},
        sort::{Sort, name_of, sort},
    },
    refusal::Refusal,
};

/// The classified mappings of a process.
#[derive(Debug, Default)]
pub(crate) struct Classified {
    pub(crate) mappings: Vec<Mapping>,
    /// What is in files that the zygote cannot map, privately mapped: memory of no file from here on, when it has been
    /// [taken over](crate::stop::still::Still::take_over).
    pub(crate) taken_over: Vec<Range>,
    /// Runs of guard pages, in order.
    pub(crate) guards: Vec<Range>,
    /// vDSO and its data pages, by name.
    pub(crate) vdso: Vec<(Vec<u8>, Range)>,
    pub(crate) refusals: Vec<Refusal>,
}

/// What is kept from forks (`MADV_DONTFORK`): from the first to the last of mappings that follow each other, with the holes between them.
/// `madvise` goes on behind a hole, and says `ENOMEM` at the end. (Node.js keeps about 600 mappings from forks.)
pub(crate) fn kept_from_forks(lines: &[MapLine]) -> Vec<Range> {
    // A mapped device ends the kernel's walk.
    let goes_on = |line: &MapLine| line.flags.dont_fork && !line.io;
    let runs = lines.chunk_by(|a, b| goes_on(a) && goes_on(b)).filter(|run| run[0].flags.dont_fork);
    runs.map(|run| Range { start: run[0].range.start, end: run[run.len() - 1].range.end }).collect()
}

/// The addresses of an arena.
pub(crate) fn of_arena(arena: base::id::Arena) -> Range {
    Range { start: arena.start, end: arena.end }
}

/// Locked memory, but for the arena that an earlier start has left.
pub(crate) fn locked(lines: &[MapLine], arena: Option<base::id::Arena>) -> Vec<Locked> {
    let arena = arena.map_or(Range { start: 0, end: 0 }, of_arena);
    let locked = lines.iter().filter(|line| line.flags.locked).flat_map(|line| line.clone().without(arena));
    locked.map(|line| Locked { range: line.range, on_fault: line.locked_on_fault }).collect()
}

/// Classifies `lines` of the process whose root and mapped files are those of `pid`. Of files below `elsewhere` the zygote has none.
pub(crate) fn classify(
    pid: i32,
    lines: &[MapLine],
    objects: &[Object],
    elsewhere: &[PathBuf],
) -> Result<Classified, Error> {
    let root = open_root(pid)?;
    let mut classified = Classified::default();
    if lines.len() > limits::MAPPINGS_MAX {
        let max = limits::MAPPINGS_MAX;
        classified.refusals.push(Refusal::TooMany { what: "mappings".into(), found: lines.len(), max });
        return Ok(classified);
    }
    classified.guards = guards(pid, lines)?;
    if classified.guards.len() > limits::GUARDS_MAX {
        let (found, max) = (classified.guards.len(), limits::GUARDS_MAX);
        classified.refusals.push(Refusal::TooMany { what: "guard regions".into(), found, max });
    }
    for line in lines {
        let mut file = (line.dev, line.inode);
        let backing = match sort(line) {
            Err(refusal) => {
                classified.refusals.push(refusal);
                continue;
            }
            Ok(Sort::Vdso) => {
                classified.vdso.push((line.path.clone(), line.range));
                continue;
            }
            Ok(Sort::Anonymous) => Backing::Anonymous,
            Ok(Sort::Segment) => segment(line),
            Ok(Sort::Object) => {
                let Some(object) = objects.iter().position(|object| object.is_mapped_by(line)) else {
                    return Err(Error::Unexpected {
                        pid,
                        what: format!("changed its shared memory at {:#x}", line.range.start),
                    });
                };
                Backing::Object { object, offset: line.offset }
            }
            Ok(sort @ (Sort::PrivateFile | Sort::SharedFile)) => {
                let (path, offset) = (line.path.clone(), line.offset);
                let is_elsewhere =
                    || elsewhere.iter().any(|place| Path::new(OsStr::from_bytes(&path)).starts_with(place));
                let mapped = mapped(pid, line);
                let is_same = mapped.as_ref().is_some_and(|mapped| is_at(root.as_fd(), &path, mapped));
                match (sort, mapped) {
                    (Sort::SharedFile, _) if is_same => Backing::SharedFile { path, offset, writable: line.may_write },
                    (Sort::PrivateFile, _) if is_same && !is_elsewhere() => Backing::File { path, offset },
                    (Sort::PrivateFile, Some(mapped)) => {
                        let shown = part_in_file(line, mapped.size());
                        classified.taken_over.extend(remote::subtract(shown.as_slice(), &classified.guards));
                        file = (0, 0);
                        Backing::Anonymous
                    }
                    _ => {
                        let path = String::from_utf8_lossy(&path).into_owned();
                        classified.refusals.push(Refusal::MappedFile { address: line.range.start, path });
                        continue;
                    }
                }
            }
        };
        classified.mappings.push(Mapping {
            range: line.range,
            protection: line.protection,
            flags: line.flags,
            name: name_of(line).to_vec(),
            backing,
            file,
        });
    }
    let bytes = classified.taken_over.iter().map(|range| range.end - range.start).sum();
    if bytes > limits::TAKEN_OVER_BYTES_MAX {
        let what = "memory that shows files of volumes, or files that are not there any more,".into();
        classified.refusals.push(Refusal::TooMuchContent { what, bytes, max: limits::TAKEN_OVER_BYTES_MAX });
    }
    Ok(classified)
}

/// A System V segment, whose number is the inode.
fn segment(line: &MapLine) -> Backing {
    Backing::Segment { number: line.inode as i32, offset: line.offset, writable: line.may_write }
}

/// All guard pages.
fn guards(pid: i32, lines: &[MapLine]) -> Result<Vec<Range>, Error> {
    let path = format!("/proc/{pid}/pagemap");
    let pagemap = fs::File::open(&path).on("open", path)?;
    let all = Range { start: 0, end: lines.last().map_or(0, |line| line.range.end) };
    remote::guard_pages(&pagemap, all).of("scan the page map", pid)
}

/// The mapped file, also if it has no name any more.
fn mapped(pid: i32, line: &MapLine) -> Option<fs::Metadata> {
    fs::metadata(line.link(pid)).ok()
}

/// Whether the mapped file is the one that `path` names in the root filesystem.
///
/// Size and time of change are compared where device and inode differ: on an overlay a mapping shows the file of a layer, which the path
/// leaves behind when the file is opened for writing.
fn is_at(root: BorrowedFd<'_>, path: &[u8], mapped: &fs::Metadata) -> bool {
    let Ok(named) = open_inside(root, path).and_then(rustix::fs::fstat) else { return false };
    let changed = (mapped.size() as i64, mapped.mtime(), mapped.mtime_nsec());
    (mapped.dev(), mapped.ino()) == (named.st_dev, named.st_ino)
        || changed == (named.st_size, named.st_mtime, named.st_mtime_nsec as i64)
}

/// The pages of a mapping that show some of a file of `bytes`. Behind them the kernel raises SIGBUS.
fn part_in_file(line: &MapLine, bytes: u64) -> Option<Range> {
    let shown = bytes.next_multiple_of(PAGE).saturating_sub(line.offset);
    let Range { start, end } = line.range;
    (shown > 0).then(|| Range { start, end: end.min(start.saturating_add(shown)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(start: u64, end: u64, path: &[u8]) -> MapLine {
        MapLine { protection: 3, path: path.to_vec(), ..MapLine::of(Range { start, end }) }
    }

    #[test]
    fn locked_memory_is_what_is_locked_outside_of_the_arena() {
        let mut lines = vec![line(10, 20, b""), line(30, 60, b""), line(70, 80, b"")];
        (lines[1].flags.locked, lines[2].flags.locked, lines[2].locked_on_fault) = (true, true, true);
        let found: Vec<(u64, u64, bool)> = locked(&lines, Some((40, 50).into()))
            .iter()
            .map(|locked| (locked.range.start, locked.range.end, locked.on_fault))
            .collect();
        assert_eq!(found, [(30, 40, false), (50, 60, false), (70, 80, true)]);
    }
}
