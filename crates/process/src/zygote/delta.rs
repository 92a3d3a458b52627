//! A zygote as a fork of another. If a program was itself started from a zygote, its memory differs from that zygote's only where it was
//! written since. Pages that are still the same physical memory are shared further instead of copied.
//!
//! The page maps of the still and of the older zygote show the frame behind each page. Equal frames are one page, shared copy-on-write since
//! the program's start. Both processes stand still, but the kernel may move pages while they are compared. Then frames differ, and a page is
//! copied needlessly. The still is read before and after, because a move could otherwise make two pages look equal.

use std::fs::File;

use procfs::{MapLine, MappingFlags};
use sys::remote::{self, PAGE, Range};

use super::memory::{self, OpenFiles, READ, Rest, WRITE};
use crate::{
    capture::Capture,
    error::{Context, Error},
    image::{Backing, Kin, Mapping, Member, Tree, within},
    observe::sort::{Sort, name_of, sort},
    script::{Arena, Check, Script},
};

/// A zygote to start from.
#[derive(Debug)]
pub(super) struct Base {
    pid: i32,
    lines: Vec<MapLine>,
}

impl Base {
    /// The zygote `pid` with its `arena`, if that of the tree can be made from it: same first program at the same addresses, and room for an arena.
    pub(super) fn of(pid: i32, arena: Range, other: Range, tree: &Tree) -> Result<Option<Self>, Error> {
        let image = tree.first();
        let mut lines = procfs::smaps(pid)?;
        let vdso = lines.iter().filter(|line| sort(line) == Ok(Sort::Vdso)).map(|line| line.range);
        let same_vdso = vdso.eq(image.vdso.iter().map(|(_, range)| *range));
        let same_program = procfs::link(&format!("/proc/{pid}/exe"))? == image.layout.exe;
        let mut taken = tree.members.iter().flat_map(Member::mapped).chain(tree.parked().map(|(_, range)| range));
        let room = taken.all(|range| range.end <= other.start || other.end <= range.start);
        lines.retain(|line| {
            sort(line) != Ok(Sort::Vdso) && (line.range.end <= arena.start || arena.end <= line.range.start)
        });
        Ok((same_vdso && same_program && room).then_some(Self { pid, lines }))
    }
}

/// A mapping, or a part of one, with what the older zygote has there.
enum Piece {
    /// The older zygote has the same mapping.
    Kept(Mapping),
    /// It has none, or another.
    New(Mapping),
}

/// Adds the steps that turn the older zygote's address space into that of the program's zygote. Of the first process the zygote reads what has changed
/// itself, from its still; what others have changed is left to be written from outside.
pub(super) fn plan(
    arena: &mut Arena,
    script: &mut Script,
    capture: &Capture,
    base: &Base,
    root: i32,
) -> Result<Rest, Error> {
    let zygote = open_page_map(base.pid)?;
    let everywhere = Range { start: 0, end: base.lines.last().map_or(0, |line| line.range.end) };
    let guards = remote::guard_pages(&zygote, everywhere).of("scan the page map", base.pid)?;
    let all: Vec<Vec<Piece>> = capture.tree.members.iter().map(|member| pieces_of(capture, member, base)).collect();
    for gone in gone(all.iter().flatten(), &base.lines) {
        unmap(script, gone);
    }
    let mut rest = Rest::default();
    let mut files = OpenFiles::new(root);
    let mut after = Script::default();
    for ((pieces, member), (at, still)) in all.iter().zip(&capture.tree.members).zip(capture.stills.iter().enumerate())
    {
        let Member { image, kin } = member;
        let maps = PageMaps { still: open_page_map(still.pid())?, base: &zygote, pid: still.pid(), kin };
        let own_guards = kin.place_all(&image.guards);
        let mut own = Vec::new();
        for piece in pieces {
            let (mapping, changed, all) = match piece {
                Piece::Kept(mapping) => {
                    let difference = maps.difference(mapping.range)?;
                    for run in difference.dropped {
                        advise_gone(script, run);
                    }
                    let here = |guards: &[Range]| within(guards, mapping.range);
                    let (before, now) = (here(&guards), here(&own_guards));
                    script.advise(&remote::subtract(&before, &now), remote::MADV_GUARD_REMOVE);
                    after.advise(&remote::subtract(&now, &before), remote::MADV_GUARD_INSTALL);
                    (mapping, difference.changed, difference.all_bytes)
                }
                Piece::New(mapping) => {
                    let runs = if mapping.is_private() { maps.private_pages(mapping.range)? } else { Vec::new() };
                    let fills = at == 0 && !runs.is_empty();
                    if !memory::map(arena, script, mapping, fills, &mut files) {
                        continue;
                    }
                    memory::finish(arena, &mut after, mapping, fills, &own_guards);
                    let bytes = runs.iter().map(|run| run.end - run.start).sum();
                    (mapping, runs, bytes)
                }
            };
            rest.memory_bytes += all;
            if at != 0 || mapping.protection & READ == 0 {
                rest.outside.extend(changed);
                continue;
            }
            if let (Piece::Kept(_), false) = (piece, changed.is_empty() || mapping.protection & WRITE != 0) {
                protect(script, mapping.range, READ | WRITE);
                protect(&mut after, mapping.range, mapping.protection);
            }
            own.extend(changed);
        }
        memory::read_memory(script, memory::still_memory(root, at), kin, &own);
    }
    files.close(script);
    script.append(after);
    Ok(rest)
}

fn open_page_map(pid: i32) -> Result<File, Error> {
    let path = format!("/proc/{pid}/pagemap");
    File::open(&path).on("open", path)
}

/// What is mapped of a process, in pieces, where the zygote has it.
fn pieces_of(capture: &Capture, member: &Member, base: &Base) -> Vec<Piece> {
    let mappings = member.image.mappings.iter().filter(|mapping| mapping.is_private());
    let placed = mappings.map(|mapping| {
        let mut mapping = member.kin.placed(mapping);
        // Copies seal what they have moved or unmapped the rest of.
        mapping.flags.sealed &= capture.tree.is_single();
        mapping
    });
    placed.flat_map(|mapping| pieces(&mapping, &base.lines)).collect()
}

fn unmap(script: &mut Script, range: Range) {
    script.call(libc::SYS_munmap, [range.start.into(), (range.end - range.start).into()], Check::Success);
}

fn protect(script: &mut Script, range: Range, protection: u64) {
    script.call(
        libc::SYS_mprotect,
        [range.start.into(), (range.end - range.start).into(), protection.into()],
        Check::Success,
    );
}

/// The program gave these pages back: they are empty (or the file's) again.
fn advise_gone(script: &mut Script, range: Range) {
    let args = [range.start.into(), (range.end - range.start).into(), libc::MADV_DONTNEED.into()];
    script.call(libc::SYS_madvise, args, Check::Success);
}

/// Cuts a mapping where the older zygote's mappings begin and end.
fn pieces(mapping: &Mapping, lines: &[MapLine]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = mapping.range.start;
    let from = lines.partition_point(|line| line.range.end <= at);
    for line in lines[from..].iter().take_while(|line| line.range.start < mapping.range.end) {
        let overlap = Range { start: line.range.start.max(at), end: line.range.end.min(mapping.range.end) };
        if !is_same(mapping, line) {
            continue;
        }
        if at < overlap.start {
            pieces.push(Piece::New(cut(mapping, Range { start: at, end: overlap.start })));
        }
        at = overlap.end;
        pieces.push(Piece::Kept(cut(mapping, overlap)));
    }
    if at < mapping.range.end {
        pieces.push(Piece::New(cut(mapping, Range { start: at, end: mapping.range.end })));
    }
    pieces
}

fn cut(mapping: &Mapping, range: Range) -> Mapping {
    let mut piece = mapping.clone();
    let skipped = range.start - mapping.range.start;
    piece.range = range;
    match &mut piece.backing {
        Backing::Anonymous => {}
        Backing::File { offset, .. }
        | Backing::SharedFile { offset, .. }
        | Backing::Object { offset, .. }
        | Backing::Handed { offset, .. }
        | Backing::Segment { offset, .. } => *offset += skipped,
    }
    piece
}

/// Whether the older zygote's mapping shows the same thing in the same way where both overlap.
fn is_same(mapping: &Mapping, line: &MapLine) -> bool {
    // What a zygote never has: it sets these in its copies.
    let comparable = |flags: MappingFlags| MappingFlags { dont_fork: false, locked: false, ..flags };
    if mapping.protection != line.protection || comparable(mapping.flags) != comparable(line.flags) {
        return false;
    }
    match (&mapping.backing, sort(line)) {
        (Backing::Anonymous, Ok(Sort::Anonymous)) => mapping.name == name_of(line),
        (Backing::File { path, offset }, Ok(Sort::PrivateFile)) => {
            let same_place = offset.wrapping_sub(mapping.range.start) == line.offset.wrapping_sub(line.range.start);
            same_place && *path == line.path && mapping.file == (line.dev, line.inode)
        }
        _ => false,
    }
}

/// What the older zygote has mapped and the pieces do not keep.
fn gone<'a>(pieces: impl Iterator<Item = &'a Piece>, lines: &[MapLine]) -> Vec<Range> {
    let range = |piece: &Piece| match piece {
        Piece::Kept(mapping) => Some(mapping.range),
        Piece::New(_) => None,
    };
    let mut kept: Vec<Range> = pieces.filter_map(range).collect();
    kept.sort_unstable_by_key(|range| range.start);
    let mut gone = Vec::new();
    for line in lines {
        let mut at = line.range.start;
        let from = kept.partition_point(|range| range.end <= at);
        for range in kept[from..].iter().take_while(|range| range.start < line.range.end) {
            if at < range.start {
                gone.push(Range { start: at, end: range.start });
            }
            at = range.end;
        }
        if at < line.range.end {
            gone.push(Range { start: at, end: line.range.end });
        }
    }
    gone
}

struct PageMaps<'a> {
    still: File,
    base: &'a File,
    /// The still's.
    pid: i32,
    kin: &'a Kin,
}

/// What to do about a mapping that both have.
struct Difference {
    /// Pages of the still that the older zygote has not, or has in another state.
    changed: Vec<Range>,
    /// Pages of the older zygote that the still has not.
    dropped: Vec<Range>,
    /// All private memory of the still here.
    all_bytes: u64,
}

impl PageMaps<'_> {
    /// What the still has of a range of the zygote.
    fn private_pages(&self, range: Range) -> Result<Vec<Range>, Error> {
        let runs = remote::private_pages(&self.still, self.origin(range)).of("scan the page map", self.pid)?;
        Ok(runs.into_iter().map(|run| self.kin.place(run)).collect())
    }

    /// Where the process has it.
    fn origin(&self, range: Range) -> Range {
        let start = self.kin.origin(range.start);
        Range { start, end: start + (range.end - range.start) }
    }

    fn difference(&self, range: Range) -> Result<Difference, Error> {
        let pid = self.pid;
        let ours = self.private_pages(range)?;
        let theirs = remote::private_pages(self.base, range).of("scan the page map", pid)?;
        let mut changed = Vec::new();
        for run in &ours {
            let own = self.origin(*run);
            let before = remote::page_entries(&self.still, own).of("read the page map", pid)?;
            let base = remote::page_entries(self.base, *run).of("read the page map", pid)?;
            let after = remote::page_entries(&self.still, own).of("read the page map", pid)?;
            for n in 0..before.len() {
                let same = before[n] != 0 && before[n] == base[n] && before[n] == after[n];
                if !same {
                    let start = run.start + n as u64 * PAGE;
                    join(&mut changed, Range { start, end: start + PAGE });
                }
            }
        }
        let all_bytes = ours.iter().map(|run| run.end - run.start).sum();
        Ok(Difference { changed, dropped: remote::subtract(&theirs, &ours), all_bytes })
    }
}

fn join(runs: &mut Vec<Range>, next: Range) {
    match runs.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => runs.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    fn anonymous(start: u64, end: u64, protection: u64) -> Mapping {
        let backing = Backing::Anonymous;
        let (flags, name) = (MappingFlags::default(), Vec::new());
        Mapping { range: range(start, end), protection, flags, backing, file: (0, 0), name }
    }

    fn line(start: u64, end: u64, protection: u64) -> MapLine {
        MapLine { protection, ..MapLine::of(range(start, end)) }
    }

    fn described(pieces: &[Piece]) -> Vec<(&'static str, u64, u64)> {
        let describe = |piece: &Piece| match piece {
            Piece::Kept(mapping) => ("kept", mapping.range.start, mapping.range.end),
            Piece::New(mapping) => ("new", mapping.range.start, mapping.range.end),
        };
        pieces.iter().map(describe).collect()
    }

    #[test]
    fn a_mapping_that_grew_keeps_its_old_part() {
        let lines = [line(10, 20, 3), line(40, 50, 3)];
        let pieces = pieces(&anonymous(10, 30, 3), &lines);
        assert_eq!(described(&pieces), [("kept", 10, 20), ("new", 20, 30)]);
        assert_eq!(gone(pieces.iter(), &lines), [range(40, 50)]);
    }

    #[test]
    fn another_protection_is_another_mapping() {
        let lines = [line(10, 20, 1)];
        let pieces = pieces(&anonymous(5, 30, 3), &lines);
        assert_eq!(described(&pieces), [("new", 5, 30)]);
        assert_eq!(gone(pieces.iter(), &lines), [range(10, 20)]);
    }

    #[test]
    fn what_lies_between_is_new_and_what_is_left_over_goes() {
        let lines = [line(0, 12, 3), line(15, 20, 3), line(28, 40, 3)];
        let pieces = pieces(&anonymous(10, 30, 3), &lines);
        assert_eq!(
            described(&pieces),
            [("kept", 10, 12), ("new", 12, 15), ("kept", 15, 20), ("new", 20, 28), ("kept", 28, 30)]
        );
        assert_eq!(gone(pieces.iter(), &lines), [range(0, 10), range(30, 40)]);
    }
}
