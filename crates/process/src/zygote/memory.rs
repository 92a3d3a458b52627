//! A zygote's address space as steps: mappings, memory from the still, huge pages.

use std::fs::File;
use sys::remote::{self, Range};

use crate::{
    error::{Context, Error},
    image::{Backing, Kin, Mapping, Member, Tree, within},
    script::{Arena, Check, Script},
    start::seal_one,
    stop::still::Still,
};

const HUGE: u64 = 2 << 20;
/// A block becomes a huge page when at least this much of it is used: below, the memory it adds outweighs the page-table entries it saves.
const HUGE_USED_MIN: u64 = HUGE / 2;

/// Most bytes that one read takes.
const BYTES_MAX: u64 = 0x7fff_f000;

const MADV_COLLAPSE: i32 = 25;
const MAP_DROPPABLE: i32 = 8;
const PR_SET_VMA: i32 = 0x5356_4d41;
pub(super) const READ: u64 = 1;
pub(super) const WRITE: u64 = 2;

/// What the steps cannot do from inside.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Pages to be written from outside, whatever their protection.
    pub(super) outside: Vec<Range>,
    /// Mappings whose pages arrive when they are touched.
    pub(super) by_fault: Vec<Range>,
    pub(super) memory_bytes: u64,
}

/// Where a zygote's pages come from.
pub(super) enum Origin<'a> {
    /// The zygote reads them from the stills of all processes, straight into place.
    Stills(Vec<(&'a Still, File)>),
    /// Those of a checkpoint, in order: anonymous ones arrive by fault, changed pages of private files are written from outside (the kernel
    /// raises no faults for files).
    Checkpoint { pages: &'a [Range], of_files: &'a [Range] },
}

impl<'a> Origin<'a> {
    pub(super) fn stills(stills: &'a [Still]) -> Result<Self, Error> {
        let with_map = |still: &'a Still| -> Result<_, Error> {
            let path = format!("/proc/{}/pagemap", still.pid());
            Ok((still, File::open(&path).on("open", path)?))
        };
        Ok(Self::Stills(stills.iter().map(with_map).collect::<Result<_, _>>()?))
    }

    /// The runs of pages that belong to the process at place `at` alone, where the zygote has them.
    fn pages(&self, at: usize, kin: &Kin, mapping: &Mapping) -> Result<Vec<Range>, Error> {
        if !mapping.is_private() || mapping.flags.wipe_on_fork {
            return Ok(Vec::new());
        }
        match self {
            Self::Stills(stills) => {
                let (still, pagemap) = &stills[at];
                let runs = remote::private_pages(pagemap, mapping.range).of("scan the page map", still.pid())?;
                Ok(runs.into_iter().map(|run| kin.place(run)).collect())
            }
            Self::Checkpoint { pages, of_files } => {
                let runs = if mapping.backing == Backing::Anonymous { pages } else { of_files };
                Ok(within(runs, kin.place(mapping.range)))
            }
        }
    }
}

/// The number of the `/proc/PID/mem` of the still of the process at place `at` while building: they are behind that of the root filesystem.
pub(super) fn still_memory(root: i32, at: usize) -> i32 {
    root + 1 + at as i32
}

/// Adds the steps that make the zygote's mappings and fill them. `root` is the number of the root filesystem's descriptor.
pub(super) fn plan(
    arena: &mut Arena,
    script: &mut Script,
    tree: &Tree,
    origin: &Origin<'_>,
    root: i32,
    huge_pages: bool,
) -> Result<Rest, Error> {
    let mut rest = Rest::default();
    let mut files = OpenFiles::new(root);
    let mut after = Script::default();
    let mut readable: Vec<Vec<Range>> = Vec::new();
    for (at, Member { image, kin }) in tree.members.iter().enumerate() {
        let guards = kin.place_all(&image.guards);
        let mut own = Vec::new();
        for mapping in &image.mappings {
            let mut runs = origin.pages(at, kin, mapping)?;
            rest.memory_bytes += runs.iter().map(|run| run.end - run.start).sum::<u64>();
            if matches!(origin, Origin::Checkpoint { .. }) && !runs.is_empty() {
                if mapping.backing != Backing::Anonymous {
                    rest.outside.append(&mut runs);
                }
                runs.clear();
            }
            let mut mapping = kin.placed(mapping);
            // Copies seal what they have moved or unmapped the rest of.
            mapping.flags.sealed &= tree.is_single();
            if !map(arena, script, &mapping, !runs.is_empty(), &mut files) {
                continue;
            }
            if huge_pages
                && mapping.backing == Backing::Anonymous
                && !mapping.flags.no_huge
                && mapping.protection & READ != 0
            {
                collapse(&mut after, &runs);
            }
            finish(arena, &mut after, &mapping, !runs.is_empty(), &guards);
            if mapping.protection & READ != 0 { own.extend(runs) } else { rest.outside.extend(runs) }
        }
        readable.push(own);
    }
    files.close(script);
    match origin {
        Origin::Stills(_) => {
            for (at, runs) in readable.iter().enumerate() {
                read_memory(script, still_memory(root, at), &tree.members[at].kin, runs);
            }
        }
        Origin::Checkpoint { pages, .. } => rest.by_fault.extend(tree.by_fault(pages)),
    }
    script.append(after);
    Ok(rest)
}

/// The file last opened: neighbouring mappings often show the same one.
pub(super) struct OpenFiles {
    root: i32,
    open: Option<(Vec<u8>, usize)>,
}

impl OpenFiles {
    pub(super) fn new(root: i32) -> Self {
        Self { root, open: None }
    }

    fn open(&mut self, arena: &mut Arena, script: &mut Script, path: &[u8]) -> usize {
        if let Some((open, step)) = &self.open
            && open == path
        {
            return *step;
        }
        self.close(script);
        let step = open_in_root(arena, script, self.root, path, libc::O_RDONLY | libc::O_CLOEXEC);
        self.open = Some((path.to_vec(), step));
        step
    }

    pub(super) fn close(&mut self, script: &mut Script) {
        if let Some((_, step)) = self.open.take() {
            script.call(libc::SYS_close, [crate::script::Arg::Result(step)], Check::Ignore);
        }
    }
}

/// Adds an `openat2` of `path` that cannot leave the directory `root` and follows no link.
pub(super) fn open_in_root(arena: &mut Arena, script: &mut Script, root: i32, path: &[u8], flags: i32) -> usize {
    let resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
    let how = arena.words(&[flags as u64, 0, resolve]);
    let path = arena.text(path);
    script.call(libc::SYS_openat2, [root.into(), path.into(), how.into(), 24u64.into()], Check::Success)
}

/// Adds one mapping; false for those that only a copy maps.
pub(super) fn map(
    arena: &mut Arena,
    script: &mut Script,
    mapping: &Mapping,
    has_pages: bool,
    files: &mut OpenFiles,
) -> bool {
    let Range { start, end } = mapping.range;
    let protection = first_protection(mapping, has_pages);
    let sharing = if mapping.flags.droppable { MAP_DROPPABLE } else { libc::MAP_PRIVATE };
    let mut flags = sharing | libc::MAP_FIXED_NOREPLACE;
    if mapping.flags.grows_down {
        flags |= libc::MAP_GROWSDOWN;
    }
    if mapping.flags.no_reserve {
        flags |= libc::MAP_NORESERVE;
    }
    let place = [start.into(), (end - start).into(), protection.into()];
    let [address, length, protection] = place;
    match &mapping.backing {
        Backing::Anonymous => {
            let args = [address, length, protection, (flags | libc::MAP_ANONYMOUS).into(), (-1).into(), 0u64.into()];
            script.call(libc::SYS_mmap, args, Check::Equal(start as i64));
        }
        Backing::File { path, offset } => {
            let file = files.open(arena, script, path);
            let args = [address, length, protection, flags.into(), crate::script::Arg::Result(file), (*offset).into()];
            script.call(libc::SYS_mmap, args, Check::Equal(start as i64));
        }
        Backing::SharedFile { .. } | Backing::Object { .. } | Backing::Handed { .. } | Backing::Segment { .. } => {
            return false;
        }
    }
    true
}

/// Memory is read into a mapping while it is writable; its own protection follows.
fn first_protection(mapping: &Mapping, has_pages: bool) -> u64 {
    if has_pages && mapping.protection & READ != 0 { READ | WRITE } else { mapping.protection }
}

/// Adds what makes a filled mapping like the program's own. `guards` are the guard pages of the whole program.
pub(super) fn finish(arena: &mut Arena, script: &mut Script, mapping: &Mapping, has_pages: bool, guards: &[Range]) {
    let Range { start, end } = mapping.range;
    let (address, length) = (start, end - start);
    if first_protection(mapping, has_pages) != mapping.protection {
        script.call(libc::SYS_mprotect, [address.into(), length.into(), mapping.protection.into()], Check::Success);
    }
    let flags = &mapping.flags;
    let advice = [
        (flags.wipe_on_fork, libc::MADV_WIPEONFORK),
        (flags.dont_dump, libc::MADV_DONTDUMP),
        (flags.huge, libc::MADV_HUGEPAGE),
        (flags.no_huge, libc::MADV_NOHUGEPAGE),
        (flags.mergeable, libc::MADV_MERGEABLE),
        (flags.sequential, libc::MADV_SEQUENTIAL),
        (flags.random, libc::MADV_RANDOM),
    ];
    for (_, advice) in advice.into_iter().filter(|(set, _)| *set) {
        script.call(libc::SYS_madvise, [address.into(), length.into(), advice.into()], Check::Success);
    }
    if !mapping.name.is_empty() {
        let name = arena.text(&mapping.name);
        // A kernel without such names does not show them.
        let args = [PR_SET_VMA.into(), 0u64.into(), address.into(), length.into(), name.into()];
        script.call(libc::SYS_prctl, args, Check::Ignore);
    }
    // Only now: a guard page cannot be joined into a huge one, and a sealed mapping takes none.
    script.advise(&within(guards, mapping.range), remote::MADV_GUARD_INSTALL);
    if flags.sealed {
        seal_one(script, mapping);
    }
}

/// Adds the reading of a still's memory into these places, from its `/proc/PID/mem` at descriptor `memory`.
///
/// Not by `process_vm_readv`: that pins pages, for which the kernel first gives the still a page of its own instead of each one that it
/// shares with the source. It takes twice the time, and the memory once more (`FAULT_FLAG_UNSHARE` in mm/gup.c).
pub(super) fn read_memory(script: &mut Script, memory: i32, kin: &Kin, runs: &[Range]) {
    for run in runs {
        let mut start = run.start;
        while start < run.end {
            let bytes = (run.end - start).min(BYTES_MAX);
            let args = [memory.into(), start.into(), bytes.into(), kin.origin(start).into()];
            script.call(libc::SYS_pread64, args, Check::Equal(bytes as i64));
            start += bytes;
        }
    }
}

/// Adds the joining of well-used blocks into huge pages. It is only advice: where it fails, small pages remain. A step for each block,
/// because the kernel gives up a whole range at its first failure.
fn collapse(script: &mut Script, runs: &[Range]) {
    for block in used_blocks(runs) {
        script.call(
            libc::SYS_madvise,
            [block.start.into(), (block.end - block.start).into(), MADV_COLLAPSE.into()],
            Check::Ignore,
        );
    }
}

/// The aligned 2 MiB blocks that are used enough.
fn used_blocks(runs: &[Range]) -> impl Iterator<Item = Range> {
    let mut blocks: Vec<(u64, u64)> = Vec::new();
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            let block = at / HUGE * HUGE;
            let end = run.end.min(block + HUGE);
            match blocks.last_mut() {
                Some((last, used)) if *last == block => *used += end - at,
                _ => blocks.push((block, end - at)),
            }
            at = end;
        }
    }
    let enough = |(_, used): &(u64, u64)| *used >= HUGE_USED_MIN;
    blocks.into_iter().filter(enough).map(|(start, _)| Range { start, end: start + HUGE })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::remote::PAGE;

    #[test]
    fn only_well_used_blocks_become_huge() {
        let runs = [
            Range { start: HUGE, end: 3 * HUGE },
            Range { start: 3 * HUGE, end: 3 * HUGE + HUGE_USED_MIN },
            Range { start: 5 * HUGE, end: 5 * HUGE + PAGE },
        ];
        let used: Vec<u64> = used_blocks(&runs).map(|block| block.start).collect();
        assert_eq!(used, [HUGE, 2 * HUGE, 3 * HUGE]);
    }
}
