//! Further processes of a copy. Each is cloned by its parent, which has the memory of all its descendants until then. It gives up what belongs to
//! others and moves its own into place.

use std::collections::BTreeMap;

use sys::remote::Range;

use super::{
    ASIDE_BYTES, CLONE_ARGS_BYTES, CloneArgs, HALF_BYTES, clone_args, copy::Copy, jobs, set_layout as tell_layout,
    terminal, vdso_aside,
};
use crate::{
    image::{Member, ProgramImage, Tree, Zombie, places},
    script::{Arena, Arg, Check, Script},
};

const RLIMIT_CORE: usize = libc::RLIMIT_CORE as usize;
/// Bytes of a signal mask.
const MASK_BYTES: u64 = 8;

/// What a process clones: its children that go on, and those that have ended, and helpers that clone what has lost its parent.
pub(super) struct Family {
    children: Vec<Child>,
    /// Arguments of each clone, and the child's script, of those that have ended, with their numbers.
    zombies: Vec<(i32, u64, u64)>,
    /// The same of helpers.
    helpers: Vec<(u64, u64)>,
    /// What nothing but children have.
    of_children: Vec<Range>,
}

/// A process that goes on.
struct Child {
    /// Arguments of its clone.
    args: u64,
    /// Its script.
    entry: u64,
    /// What it and its descendants have in the zygote, and no one else.
    memory: Vec<Range>,
}

impl Child {
    /// Adds its clone by a process that has nothing of its children forked but this one's, and does not need that afterwards.
    fn clone(&self, script: &mut Script) {
        advise(script, &self.memory, libc::MADV_DOFORK);
        script.spawn(libc::SYS_clone3, [self.args.into(), CLONE_ARGS_BYTES.into()], self.entry);
        for range in &self.memory {
            unmap(script, *range);
        }
    }
}

/// Places the scripts of all descendants of the process at place `at`.
pub(super) fn place(copy: Copy<'_>, arena: &mut Arena, at: usize) -> Family {
    let tree = copy.tree;
    let mut children = Vec::new();
    let mut orphans: BTreeMap<Option<i32>, Vec<Child>> = BTreeMap::new();
    let (of_children, mut of_child) = memory_of_children(tree, at, half(arena.base()));
    for child in tree.children(at) {
        let entry = copy.place(arena, child);
        let Member { image, kin } = &tree.members[child];
        let args = process_args(arena, image.threads[0].tid, kin.command.is_some());
        let memory = of_child.remove(&child).unwrap_or_default();
        let made = Child { args, entry, memory };
        match &kin.orphan {
            None => children.push(made),
            Some(orphan) => orphans.entry(orphan.leader).or_default().push(made),
        }
    }
    let spare = spare_number(tree) + at as i32;
    let helpers = orphans.iter().map(|(leader, orphans)| place_helper(arena, *leader, spare, orphans)).collect();
    let ended = tree.zombies.iter().filter(|zombie| zombie.parent == at);
    let zombies = ended.map(|zombie| {
        let entry = place_zombie(arena, zombie);
        (zombie.pid, process_args(arena, zombie.pid, false), entry)
    });
    let zombies = zombies.collect();
    Family { children, zombies, helpers, of_children }
}

/// What descendants of the process at place `at` have in the zygote, in few ranges: of all, and of each child with its own descendants.
fn memory_of_children(tree: &Tree, at: usize, arena: Range) -> (Vec<Range>, BTreeMap<usize, Vec<Range>>) {
    let below = |top| {
        let below = (1..tree.members.len()).filter(move |other| tree.descends(*other, top));
        below.flat_map(move |other| tree.members[other].parked())
    };
    let own = tree.members[at].mapped().chain([arena]).map(|range| (range, None));
    let theirs = tree.children(at).flat_map(|child| below(child).map(move |range| (range, Some(child))));
    let mut all: Vec<(Range, Option<usize>)> = own.chain(theirs).collect();
    all.sort_unstable_by_key(|(range, _)| range.start);
    let (mut of_all, mut of_child) = (Vec::new(), BTreeMap::<usize, Vec<Range>>::new());
    for run in all.chunk_by(|(_, one), (_, next)| one.is_some() == next.is_some()).filter(|run| run[0].1.is_some()) {
        of_all.push(around(run));
        for part in run.chunk_by(|(_, one), (_, next)| one == next) {
            of_child.entry(part[0].1.unwrap_or_default()).or_default().push(around(part));
        }
    }
    (of_all, of_child)
}

/// From the first of these ranges, which are in order, to the last.
fn around(run: &[(Range, Option<usize>)]) -> Range {
    let (first, last) = (run[0].0, run[run.len() - 1].0);
    Range { start: first.start, end: last.end }
}

/// A helper that shares the memory of the process that clones it. What it clones itself loses its parent when it ends. It is the `leader` of their
/// session, if that has ended in the source, too.
fn place_helper(arena: &mut Arena, leader: Option<i32>, spare: i32, orphans: &[Child]) -> (u64, u64) {
    let mut script = Script::default();
    if leader.is_some() {
        script.call(libc::SYS_setsid, [], Check::Success);
    }
    for orphan in orphans {
        orphan.clone(&mut script);
    }
    script.call(libc::SYS_exit_group, [0u64.into()], Check::Ignore);
    let entry = arena.place(&script);
    // Without a signal at its end, which its parent would be told by.
    let tid = Some(leader.unwrap_or(spare));
    let args = clone_args(arena, CloneArgs { flags: libc::CLONE_VM as u64, tid, ..CloneArgs::default() });
    (args, entry)
}

/// The first number above those of all processes, threads, sessions and groups: what has none of the source's must not take one of these.
pub(super) fn spare_number(tree: &Tree) -> i32 {
    let threads = tree.images().flat_map(|image| &image.threads).map(|thread| thread.tid);
    let kin = tree.members.iter().flat_map(|member| {
        [member.kin.joins, member.kin.orphan.as_ref().and_then(|orphan| orphan.leader)].into_iter().flatten()
    });
    threads.chain(kin).chain(tree.zombies.iter().map(|zombie| zombie.pid)).max().unwrap_or(0) + 1
}

/// Whether the first process clones any that become children of its own parent. That is the keeper only when the helper has ended.
pub(super) fn has_beside(tree: &Tree) -> bool {
    tree.children(0).any(|child| tree.members[child].kin.command.is_some())
}

/// A process `beside` the one that clones it has the same parent, which is told of its end as of that one's.
fn process_args(arena: &mut Arena, pid: i32, beside: bool) -> u64 {
    let (flags, exit_signal) = if beside { (libc::CLONE_PARENT as u64, 0) } else { (0, libc::SIGCHLD as u64) };
    clone_args(arena, CloneArgs { flags, exit_signal, tid: Some(pid), ..CloneArgs::default() })
}

/// A process that ends at once, as the source's did.
fn place_zombie(arena: &mut Arena, zombie: &Zombie) -> u64 {
    let mut script = Script::default();
    let name = arena.text(&zombie.name);
    script.call(libc::SYS_prctl, [libc::PR_SET_NAME.into(), name.into()], Check::Ignore);
    if zombie.process_group_leader {
        script.call(libc::SYS_setpgid, [0u64.into(), 0u64.into()], Check::Success);
    }
    let (signal, code) = (zombie.status & 0x7f, zombie.status >> 8 & 0xff);
    if signal != 0 {
        let nothing = arena.words(&[0; 4]);
        let only_it = arena.words(&[1 << (signal - 1)]);
        super::set_limit(arena, &mut script, RLIMIT_CORE, 0, 0);
        let action = [signal.into(), nothing.into(), 0u64.into(), MASK_BYTES.into()];
        script.call(libc::SYS_rt_sigaction, action, Check::Ignore);
        let unblock = [libc::SIG_UNBLOCK.into(), only_it.into(), 0u64.into(), MASK_BYTES.into()];
        script.call(libc::SYS_rt_sigprocmask, unblock, Check::Ignore);
        script.call(libc::SYS_kill, [zombie.pid.into(), signal.into()], Check::Ignore);
    }
    script.call(libc::SYS_exit_group, [code.into()], Check::Ignore);
    arena.place(&script)
}

impl Family {
    pub(super) fn is_empty(&self) -> bool {
        self.children.is_empty() && self.zombies.is_empty() && self.helpers.is_empty()
    }

    /// Clones all of them, and gives up their memory and what was handed down.
    pub(super) fn begin(&self, copy: Copy<'_>, arena: &mut Arena, script: &mut Script, at: usize) {
        let tree = copy.tree;
        if self.is_empty() {
            return;
        }
        // A clone copies the page tables of all that may be forked: of one child at a time.
        advise(script, &self.of_children, libc::MADV_DONTFORK);
        for child in &self.children {
            child.clone(script);
        }
        for (args, entry) in &self.helpers {
            let helper = script.spawn(libc::SYS_clone3, [(*args).into(), CLONE_ARGS_BYTES.into()], *entry);
            let options = (libc::WEXITED | libc::__WALL) as u64;
            let pid = Arg::Result(helper);
            let args = [u64::from(libc::P_PID).into(), pid, 0u64.into(), options.into(), 0u64.into()];
            script.call(libc::SYS_waitid, args, Check::Success);
        }
        if !self.zombies.is_empty() {
            self.end_zombies(arena, script, &tree.members[at].image);
        }
        close_handed_down(copy, script);
    }
}

/// Adds the closing of what was handed down, when the process has it by its own numbers and its children have been cloned.
pub(super) fn close_handed_down(copy: Copy<'_>, script: &mut Script) {
    let (first, last) = (copy.tree.handed_from, copy.transit.control - 1);
    // There may be nothing of this kind, and no number left below the control socket's.
    if (1..=last).contains(&first) {
        script.call(libc::SYS_close_range, [first.into(), last.into(), 0u64.into()], Check::Success);
    }
}

impl Family {
    /// Clones what has ended, without a word to the program.
    fn end_zombies(&self, arena: &mut Arena, script: &mut Script, image: &ProgramImage) {
        let told = &image.actions[libc::SIGCHLD as usize - 1];
        // A process that ignores the ends of its children by now would have none that wait for it.
        set_action(arena, script, libc::SIGCHLD, &[0; 4]);
        for (pid, args, entry) in &self.zombies {
            script.spawn(libc::SYS_clone3, [(*args).into(), CLONE_ARGS_BYTES.into()], *entry);
            let options = (libc::WEXITED | libc::WNOWAIT) as u64;
            let args = [u64::from(libc::P_PID).into(), (*pid).into(), 0u64.into(), options.into(), 0u64.into()];
            script.call(libc::SYS_waitid, args, Check::Success);
        }
        // What the program was told of their ends is among its own signals.
        let (waited, no_time) = (arena.words(&[1 << (libc::SIGCHLD - 1)]), arena.words(&[0, 0]));
        let args = [waited.into(), 0u64.into(), no_time.into(), MASK_BYTES.into()];
        script.call(libc::SYS_rt_sigtimedwait, args, Check::Ignore);
        set_action(arena, script, libc::SIGCHLD, told);
    }
}

/// The half of a room in which an arena lies.
fn half(arena: u64) -> Range {
    Range { start: arena, end: arena + HALF_BYTES }
}

/// Adds a piece of advice about ranges that have gaps, for which the kernel says ENOMEM when it has done the rest.
fn advise(script: &mut Script, ranges: &[Range], advice: i32) {
    for Range { start, end } in ranges {
        script.call(libc::SYS_madvise, [(*start).into(), (end - start).into(), advice.into()], Check::Ignore);
    }
}

fn unmap(script: &mut Script, range: Range) {
    script.call(libc::SYS_munmap, [range.start.into(), (range.end - range.start).into()], Check::Success);
}

fn remap(script: &mut Script, from: u64, to: u64, length: u64) {
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    let args = [from.into(), length.into(), length.into(), flags.into(), to.into()];
    script.call(libc::SYS_mremap, args, Check::Equal(to as i64));
}

/// Adds what a process does first that was cloned by its parent: of the parent's descriptors only what is handed down stays, of its memory what is
/// its own, and that of its own descendants.
pub(super) fn enter(copy: Copy<'_>, arena: &mut Arena, script: &mut Script, at: usize) {
    let tree = copy.tree;
    let (member, parent) = (&tree.members[at], &tree.members[tree.members[at].kin.parent].image);
    if tree.handed_from > 0 {
        script.call(libc::SYS_close_range, [0u64.into(), (tree.handed_from - 1).into(), 0u64.into()], Check::Success);
    }
    move_in(tree, arena, script, at);
    inherit(arena, script, &member.image, parent);
}

fn move_in(tree: &Tree, arena: &Arena, script: &mut Script, at: usize) {
    let member = &tree.members[at];
    let parent = &tree.members[member.kin.parent].image;
    let (theirs, own) = (base_of_vdso(parent), base_of_vdso(&member.image));
    let aside = vdso_aside(arena.base());
    let stays = theirs == own;
    if !stays {
        for (_, range) in &parent.vdso {
            remap(script, range.start, aside + (range.start - theirs), range.end - range.start);
        }
    }
    let below = (1..tree.members.len()).filter(|other| tree.descends(*other, at));
    let mut kept: Vec<Range> = below.flat_map(|other| tree.members[other].parked()).collect();
    kept.push(half(arena.base()));
    if stays {
        kept.extend(parent.vdso.iter().map(|(_, range)| *range));
    }
    for range in places::between(&places::joined(kept.into_iter()), places::USER_END) {
        unmap(script, range);
    }
    if !stays {
        for (_, range) in &parent.vdso {
            remap(script, aside + (range.start - theirs), own + (range.start - theirs), range.end - range.start);
        }
    }
    if member.kin.displaced != 0 {
        for mapping in member.image.mappings.iter().filter(|mapping| mapping.is_private()) {
            let Range { start, end } = mapping.range;
            remap(script, member.kin.place(mapping.range).start, start, end - start);
        }
    }
}

fn base_of_vdso(image: &ProgramImage) -> u64 {
    image.vdso.first().map_or(0, |(_, range)| range.start)
}

pub(super) fn set_action(arena: &mut Arena, script: &mut Script, signal: i32, action: &[u64]) {
    let action = arena.words(action);
    let args = [signal.into(), action.into(), 0u64.into(), MASK_BYTES.into()];
    script.call(libc::SYS_rt_sigaction, args, Check::Success);
}

/// What a process has of its parent and the source's did not.
fn inherit(arena: &mut Arena, script: &mut Script, image: &ProgramImage, parent: &ProgramImage) {
    for (signal, (action, theirs)) in (1..).zip(image.actions.iter().zip(&parent.actions)) {
        if action != theirs && signal != libc::SIGKILL && signal != libc::SIGSTOP {
            set_action(arena, script, signal, action);
        }
    }
    let missing = image.membarrier & !parent.membarrier;
    for bit in (0..64).filter(|bit| missing >> bit & 1 != 0) {
        script.call(libc::SYS_membarrier, [(1u64 << bit).into(), 0u64.into(), 0u64.into()], Check::Success);
    }
    if image.umask != parent.umask {
        script.call(libc::SYS_umask, [u64::from(image.umask).into()], Check::Ignore);
    }
    if image.personality != parent.personality {
        script.call(libc::SYS_personality, [image.personality.into()], Check::Ignore);
    }
    if image.no_huge_pages != parent.no_huge_pages {
        let (off, but) = (image.no_huge_pages & 1, image.no_huge_pages & !1);
        let args = [libc::PR_SET_THP_DISABLE.into(), off.into(), but.into(), 0u64.into(), 0u64.into()];
        script.call(libc::SYS_prctl, args, Check::Ignore);
    }
}

/// Adds what the kernel is told of the address space, when nothing of the parent's program is mapped any more.
pub(super) fn set_layout(copy: Copy<'_>, arena: &mut Arena, script: &mut Script, at: usize) {
    let tree = copy.tree;
    let member = &tree.members[at];
    if member.image.layout.exe == tree.members[member.kin.parent].image.layout.exe {
        return tell_layout(arena, script, &member.image, None);
    }
    let path = arena.text(&member.image.layout.exe);
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let made = script.call(libc::SYS_openat, [libc::AT_FDCWD.into(), path.into(), flags.into()], Check::Success);
    // A number that nothing has, for the kernel to be told of it.
    let number = copy.transit.end() + 1;
    script.call(libc::SYS_dup3, [Arg::Result(made), number.into(), libc::O_CLOEXEC.into()], Check::Success);
    script.call(libc::SYS_close, [Arg::Result(made)], Check::Success);
    tell_layout(arena, script, &member.image, Some(number));
    script.call(libc::SYS_close, [number.into()], Check::Success);
}

/// Adds the page through which the first process and all others wait for each other.
pub(super) fn make_common_page(copy: Copy<'_>, script: &mut Script) {
    let (page, others) = (copy.common, copy.tree.members.len() - 1);
    if others == 0 {
        return;
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    let fixed = flags | libc::MAP_FIXED_NOREPLACE;
    let args = [page.into(), sys::remote::PAGE.into(), protection.into(), fixed.into(), (-1).into(), 0u64.into()];
    script.call(libc::SYS_mmap, args, Check::Equal(page as i64));
    script.store(page, others as u64);
    script.store(page + 8, 1);
    script.store(page + 16, others as u64 + 1);
    script.store(page + 24, 1);
    script.store(page + 32, jobs::waiting(copy.tree));
}

/// Adds the waiting of all processes until the last has come here. Then each that has to joins its group, whose leader is there by now, and all wait
/// once more: of them, the first can be told by then that the others are there.
pub(super) fn meet(copy: Copy<'_>, arena: &mut Arena, script: &mut Script, at: usize) {
    let [arriving, closed, joining] = [0, 8, 16].map(|offset| copy.common + offset);
    if copy.tree.members.len() == 1 {
        return;
    }
    if at == 0 {
        script.wait_zero(arriving);
        script.count_down(closed);
    } else {
        script.count_down(arriving);
        script.wait_zero(closed);
    }
    if let Some(group) = copy.tree.members[at].kin.joins {
        script.call(libc::SYS_setpgid, [0u64.into(), group.into()], Check::Success);
    }
    // Leaders of groups lead them since they came to be.
    terminal::set_foreground(arena, script, &copy.tree.members[at].image, copy.transit);
    script.count_down(joining);
    script.wait_zero(joining);
}

/// Adds the word of the first process upon which all go on.
pub(super) fn release(copy: Copy<'_>, script: &mut Script, at: usize) {
    let held = copy.common + 24;
    match (copy.tree.members.len(), at) {
        (1, _) => {}
        // It stops itself, which its parent waits for.
        (_, _) if copy.tree.members[at].image.job.is_some() => {}
        (_, 0) => script.count_down(held),
        (_, _) => script.wait_zero(held),
    }
}

/// Adds the giving up of the page through which they waited.
pub(super) fn part(copy: Copy<'_>, script: &mut Script) {
    if copy.tree.members.len() > 1 {
        unmap(script, Range { start: copy.common, end: copy.common + sys::remote::PAGE });
    }
}

const _: () = assert!(ASIDE_BYTES >= 64 * sys::remote::PAGE);
