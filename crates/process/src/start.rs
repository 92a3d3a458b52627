//! One start as scripts: what the zygote, its short-lived helper and the copy do. It owns the copy's side: descriptors ([`files`]), files in
//! memory, threads, clocks and timers are made again here.
//!
//! ```text
//! zygote   receive start number and descriptors; clone(CLONE_VM) the helper; wait for it; close the descriptors; again
//! helper   enter the sandbox's namespaces, with all capabilities in them and none outside; clone3 the copy, with the program's pid, into the sandbox's cgroup; report it; exit
//! copy     clocks, descriptors, shared mappings, threads (each with its own script); drop privileges; seccomp; timers; report; go on
//! ```
//!
//! A program of several processes has one zygote, in which the memory of all lies side by side. The copy of the first process clones the others, each
//! by its parent ([`descend`]).
//!
//! The helper shares the zygote's memory, so nothing is copied for it. The copy's page tables are copied once, by its clone. The helper
//! cannot be the copy, because only children enter a pid namespace.

mod attributes;
mod carried;
mod clocks;
mod copy;
mod descend;
mod files;
mod jobs;
mod memory_files;
mod system_v;
mod terminal;
pub(crate) mod timers;
pub(crate) mod working_set;

use std::mem::size_of;

pub(crate) use copy::limit_bounding_set;
use sys::{
    blob::OP_BYTES,
    namespace::CLOCK_TEXT_BYTES,
    pidfd::PIDFD_GET_CGROUP_NAMESPACE,
    remote::{PAGE, Range},
};

use crate::{
    image::{FileKind, Mapping, ProgramImage, Thread, Tree},
    script::{Arena, Arg, Check, Script},
};

const INIT: i32 = 0;
const CGROUP: i32 = 1;
const FIRST_STREAM: i32 = 2;

const CLONE_INTO_CGROUP: u64 = 1 << 33;
const CLONE_ARGS_BYTES: u64 = size_of::<libc::clone_args>() as u64;
const WAIT_ALL: i32 = 0x4000_0000; // __WALL
/// Largest count that one read takes.
const READ_BYTES_MAX: u64 = 0x7fff_f000;

/// Length of the message that asks for a start: its number, whether the copy parks, and the offsets of its clocks.
pub(crate) const START_BYTES: u64 = 16 + CLOCK_TEXT_BYTES as u64;
/// Length of the message that asks for a branch.
pub(crate) const BRANCH_BYTES: u64 = 8;
/// The second word of a start whose copy goes on in the program at once.
pub(crate) const AT_ONCE: u64 = 0;
/// The second word of a start whose copy waits at its gate.
pub(crate) const PARKED: u64 = 1;

/// Kinds of report on the wire.
pub(crate) mod kind {
    pub(crate) const BUILT: u64 = 0;
    pub(crate) const FORKED: u64 = 1;
    pub(crate) const READY: u64 = 2;
    pub(crate) const FAILED: u64 = 3;
    pub(crate) const FAULTS: u64 = 4;
}

/// Arenas lie in free room of this size, in one half of it: the other half is for the arena of a branch.
pub(crate) const ROOM_BYTES: u64 = 1 << 32;
pub(crate) const HALF_BYTES: u64 = ROOM_BYTES / 2;

/// The end of such a half, through which the vDSO is moved.
pub(crate) const ASIDE_BYTES: u64 = 1 << 20;

/// Where the vDSO lies while a process gives up its address space for another one.
fn vdso_aside(arena: u64) -> u64 {
    arena + HALF_BYTES - ASIDE_BYTES
}

/// The page that the processes of a copy share while they start: how many have not arrived, and 1 until all may go on.
fn common_page(arena: u64) -> u64 {
    vdso_aside(arena) - PAGE
}

/// The room of an arena.
fn room_of(arena: u64) -> Range {
    let start = arena & !(ROOM_BYTES - 1);
    Range { start, end: start + ROOM_BYTES }
}

/// The other half of the room of an arena.
pub(crate) fn other_half(arena: u64) -> u64 {
    arena ^ HALF_BYTES
}

/// Numbers of the descriptors in transit, above all of the program's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transit {
    /// The control socket.
    pub(crate) control: i32,
    /// Streams that a copy is given.
    streams: i32,
    /// Whether copies have a descriptor of the helper, for whose end they wait.
    with_helper: bool,
}

impl Transit {
    pub(crate) fn above(tree: &Tree) -> Self {
        let files = || tree.images().flat_map(|image| &image.files);
        let numbers = files().flat_map(|file| &file.numbers).map(|(number, _)| *number);
        // Numbers that files had when they were registered are theirs again for a moment.
        let registered = files().flat_map(|file| match &file.kind {
            FileKind::Epoll { entries } => entries.as_slice(),
            _ => &[],
        });
        let kin = || tree.members.iter().map(|member| &member.kin);
        let inherited = kin().flat_map(|kin| &kin.inherited);
        let inherited = inherited.flat_map(|(handed, own)| own.iter().map(|(number, _)| *number).chain([*handed]));
        let handed = kin().flat_map(|kin| &kin.hands_down).map(|(_, number)| *number);
        let numbers = numbers.chain(registered.map(|entry| entry.fd)).chain(inherited).chain(handed);
        let highest = numbers.max().unwrap_or(0);
        let told_of_its_end = tree.first().threads.iter().any(|thread| thread.attributes.death_signal != 0);
        let with_helper = told_of_its_end || descend::has_beside(tree);
        let streams = tree.streams() as i32;
        let received = FIRST_STREAM + streams + 1;
        Self { control: highest.max(received) + 1, streams, with_helper }
    }

    /// Descriptors that come with a request to start, in this order: pid 1's pidfd, cgroup directory, the streams; and the gate at which a parked copy
    /// waits.
    fn received_max(self) -> u64 {
        (FIRST_STREAM + self.streams + 1) as u64
    }

    /// The first stream, in a copy.
    pub(crate) fn streams(self) -> i32 {
        self.control + 1
    }

    /// In a copy that parks.
    fn gate(self) -> i32 {
        self.streams() + self.streams
    }

    /// Where the copy writes the offsets of its clocks.
    fn clock_offsets(self) -> i32 {
        self.gate() + 1
    }

    /// The time namespace that it enters.
    fn clocks(self) -> i32 {
        self.clock_offsets() + 1
    }

    /// In a copy: the helper's pidfd.
    fn helper(self) -> Option<i32> {
        self.with_helper.then_some(self.clocks() + 1)
    }

    /// In a copy, before its gate comes there: the sandbox's cgroup namespace. Not the next number: what is free first may be that.
    fn cgroup_namespace(self) -> i32 {
        self.gate()
    }

    /// The first number that is not in transit.
    pub(crate) fn end(self) -> i32 {
        self.helper().unwrap_or(self.clocks()) + 1
    }
}

/// The words that reports are made of.
struct Mailbox {
    control: i32,
    /// The start last received: its number, whether it parks, and the offsets of the copy's clocks.
    start: u64,
    /// Operation and result of a failed step.
    failure: u64,
}

impl Mailbox {
    fn new(arena: &mut Arena, control: i32) -> Self {
        let start = arena.data(&[0; START_BYTES as usize], 8);
        Self { control, start, failure: arena.words(&[0, 0]) }
    }

    /// Begins steps for a copy that starts in `way` only ([`AT_ONCE`] or [`PARKED`]); they end where [`Script::land`] says.
    fn only(&self, script: &mut Script, way: u64) -> usize {
        script.unless_word(self.start + 8, way)
    }

    /// Where the offsets of the copy's clocks are.
    fn clocks(&self) -> u64 {
        self.start + 16
    }

    fn report(&self, arena: &mut Arena, script: &mut Script, kind: u64, words: u64) {
        let kind = arena.words(&[kind]);
        let vectors = arena.words(&[self.start, 8, kind, 8, words, 16]);
        let message = arena.words(&[0, 0, vectors, 3, 0, 0, 0]);
        script.call(libc::SYS_sendmsg, [self.control.into(), message.into(), libc::MSG_NOSIGNAL.into()], Check::Ignore);
    }

    /// Like [`Self::report`] with the result of a step, whose address [`ResultReport::complete`] fills in when the script has its place.
    fn report_result(&self, arena: &mut Arena, script: &mut Script, kind: u64, step: usize) -> ResultReport {
        let kind = arena.words(&[kind]);
        let vectors = arena.words(&[self.start, 8, kind, 8, 0, 16]);
        let message = arena.words(&[0, 0, vectors, 3, 0, 0, 0]);
        script.call(libc::SYS_sendmsg, [self.control.into(), message.into(), libc::MSG_NOSIGNAL.into()], Check::Ignore);
        ResultReport { words: vectors + 32, step }
    }

    /// A handler of failed steps: reports, then ends the process.
    fn failure_handler(&self, arena: &mut Arena) -> u64 {
        let mut script = Script::default();
        script.record(self.failure);
        self.report(arena, &mut script, kind::FAILED, self.failure);
        script.call(libc::SYS_exit_group, [1u64.into()], Check::Ignore);
        arena.place(&script)
    }
}

/// A report that waits for the place of its script.
struct ResultReport {
    /// Where the address of the words goes.
    words: u64,
    step: usize,
}

impl ResultReport {
    /// The words are the step's result and what follows it, which the reader ignores.
    fn complete(self, arena: &mut Arena, script: u64) {
        let result = arena.keep_result(script, self.step);
        arena.write_words(self.words, &[result]);
    }
}

/// Places all scripts of a start; gives the address of the zygote's loop, which begins by reporting that the zygote is built.
pub(crate) fn place(arena: &mut Arena, tree: &Tree, seccomp: &[u64], transit: Transit, memory: CopyMemory) -> Entries {
    let mailbox = Mailbox::new(arena, transit.control);
    let handler = mailbox.failure_handler(arena);
    arena.on_fail(handler);
    let working_set = working_set::reserve(arena);
    let common = common_page(arena.base());
    let copy = copy::Copy { tree, seccomp, transit, mailbox: &mailbox, working_set, common }.place(arena, 0);
    let helper = place_helper(arena, tree.first(), copy, transit, &mailbox, memory);
    let (zygote, receive) = place_loop(arena, helper, transit, &mailbox);
    Entries { zygote, receive, handler, working_set }
}

/// Where a copy takes the memory from that is not the zygote's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyMemory {
    /// By the policy of the process that built the zygote.
    Inherited,
    /// Where it runs: the zygote has a policy for its own memory that is not for what copies write.
    Local,
}

/// Where the placed scripts begin.
pub(crate) struct Entries {
    /// The zygote's loop after building.
    pub(crate) zygote: u64,
    /// Its receiving step.
    pub(crate) receive: u64,
    /// The handler for steps of the building.
    pub(crate) handler: u64,
    /// The table of what copies touch ahead.
    pub(crate) working_set: u64,
}

fn place_loop(arena: &mut Arena, helper: u64, transit: Transit, mailbox: &Mailbox) -> (u64, u64) {
    // struct msghdr { name, namelen, iov, iovlen, control, controllen, flags }
    let control_bytes: u64 = 16 + (transit.received_max() * 4).next_multiple_of(8);
    let vector = arena.words(&[mailbox.start, START_BYTES]);
    let control = arena.data(&vec![0; control_bytes as usize], 8);
    let message = arena.words(&[0, 0, vector, 1, control, control_bytes, 0]);
    let branch = place_branch(arena);
    let mut failed = Script::default();
    failed.record(mailbox.failure);
    mailbox.report(arena, &mut failed, kind::FAILED, mailbox.failure);
    close_received(&mut failed, transit);
    let back = failed.go(0);
    let failed = arena.place(&failed);
    let mut script = Script::default();
    let pid = script.call(libc::SYS_getpid, [], Check::Ignore);
    let report = mailbox.report_result(arena, &mut script, kind::BUILT, pid);
    // The kernel overwrites the length of the control buffer with what it filled.
    let again = script.store(message + 40, control_bytes);
    let receive = script.call(libc::SYS_recvmsg, [transit.control.into(), message.into(), 0u64.into()], Check::Ignore);
    let not_start = script.unless(receive, START_BYTES);
    // A helper that cannot be forked (a process limit) is that start's failure, not the zygote's.
    let clone = script.spawn(libc::SYS_clone, vm_child(), helper);
    script.call(libc::SYS_wait4, [Arg::Result(clone), 0u64.into(), WAIT_ALL.into(), 0u64.into()], Check::Ignore);
    close_received(&mut script, transit);
    script.again(again);
    script.land(not_start);
    let not_branch = script.unless(receive, BRANCH_BYTES);
    let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as u64;
    script.try_spawn(libc::SYS_clone, [flags.into(), 0u64.into(), 0u64.into(), 0u64.into(), 0u64.into()], branch);
    close_received(&mut script, transit);
    script.again(again);
    script.land(not_branch);
    // An error, of memory for example, passes; the end of the socket means that the keeper is gone.
    let not_end = script.unless(receive, 0);
    script.call(libc::SYS_exit_group, [0u64.into()], Check::Ignore);
    script.land(not_end);
    script.again(again);
    let before = arena.on_fail(failed);
    let placed = arena.place(&script);
    arena.on_fail(before);
    arena.set_target(failed, back, placed + (again * OP_BYTES) as u64);
    report.complete(arena, placed);
    (placed, placed + (receive * OP_BYTES) as u64)
}

fn close_received(script: &mut Script, transit: Transit) {
    script.call(libc::SYS_close_range, [0u64.into(), (transit.control - 1).into(), 0u64.into()], Check::Ignore);
}

/// What a branch does first: a fork of the zygote that becomes another zygote maps the arena that it received and goes on there, with
/// its new control socket, the arena's file, the root filesystem and the still's memory as descriptors 0 to 3.
fn place_branch(arena: &mut Arena) -> u64 {
    let other = other_half(arena.base());
    let (rw, rx) = (libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ | libc::PROT_EXEC);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let mut script = Script::default();
    let args = [other.into(), HALF_BYTES.into(), rw.into(), flags.into(), (-1).into(), 0u64.into()];
    script.call(libc::SYS_mmap, args, Check::Equal(other as i64));
    script.call(libc::SYS_read, [1u64.into(), other.into(), READ_BYTES_MAX.into()], Check::Success);
    script.call(libc::SYS_mprotect, [other.into(), PAGE.into(), rx.into()], Check::Success);
    script.enter(other);
    arena.place(&script)
}

/// Arguments of a clone that shares memory and nothing else.
pub(crate) fn vm_child() -> [Arg; 5] {
    let flags = (libc::CLONE_VM | libc::SIGCHLD) as u64;
    [flags.into(), 0u64.into(), 0u64.into(), 0u64.into(), 0u64.into()]
}

fn clone_args(arena: &mut Arena, args: CloneArgs) -> u64 {
    let (tid, count) = match args.tid {
        Some(tid) => (arena.words(&[tid as u32 as u64]), 1),
        None => (0, 0),
    };
    // flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup
    arena.words(&[args.flags, 0, args.child_tid, 0, args.exit_signal, 0, 0, args.tls, tid, count, args.cgroup])
}

#[derive(Default)]
struct CloneArgs {
    flags: u64,
    child_tid: u64,
    exit_signal: u64,
    tls: u64,
    /// None: any.
    tid: Option<i32>,
    cgroup: u64,
}

fn place_helper(
    arena: &mut Arena,
    image: &ProgramImage,
    copy: u64,
    transit: Transit,
    mailbox: &Mailbox,
    memory: CopyMemory,
) -> u64 {
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    let args = clone_args(
        arena,
        CloneArgs {
            flags: CLONE_INTO_CGROUP,
            exit_signal: libc::SIGCHLD as u64,
            tid: Some(image.threads[0].tid),
            cgroup: CGROUP as u64,
            ..CloneArgs::default()
        },
    );
    let mut script = Script::default();
    if memory == CopyMemory::Local {
        script.call(libc::SYS_set_mempolicy, [libc::MPOL_DEFAULT.into(), 0u64.into(), 0u64.into()], Check::Success);
    }
    if let Some(helper) = transit.helper() {
        let pid = script.call(libc::SYS_getpid, [], Check::Ignore);
        let made = script.call(libc::SYS_pidfd_open, [Arg::Result(pid), 0u64.into()], Check::Success);
        let args = [Arg::Result(made), helper.into(), libc::O_CLOEXEC.into()];
        script.call(libc::SYS_dup3, args, Check::Success);
    }
    // For the copy, which enters it when it is in its group. In the sandbox's user namespace neither may look at pid 1.
    let request = [INIT.into(), PIDFD_GET_CGROUP_NAMESPACE.into(), 0u64.into()];
    let made = script.call(libc::SYS_ioctl, request, Check::Success);
    let place = [Arg::Result(made), transit.cgroup_namespace().into(), libc::O_CLOEXEC.into()];
    script.call(libc::SYS_dup3, place, Check::Success);
    script.call(libc::SYS_setns, [INIT.into(), namespaces.into()], Check::Success);
    let clone = script.spawn(libc::SYS_clone3, [args.into(), CLONE_ARGS_BYTES.into()], copy);
    let report = mailbox.report_result(arena, &mut script, kind::FORKED, clone);
    script.call(libc::SYS_exit, [0u64.into()], Check::Ignore);
    let placed = arena.place(&script);
    report.complete(arena, placed);
    placed
}

/// Whether copies need more of a resource while they start than the program may have any more, or the zygote does, or its processes may have
/// different amounts: copies limit it themselves then, and the zygote leaves it to them.
pub(crate) fn is_set_late(resource: usize, tree: &Tree) -> bool {
    let of_first = tree.first().limits.get(resource);
    tree.images().any(|image| image.limits.get(resource) != of_first || is_set_late_by(resource, image))
        || matches!(resource as u32, libc::RLIMIT_NPROC | libc::RLIMIT_AS) && !tree.is_single()
}

fn is_set_late_by(resource: usize, image: &ProgramImage) -> bool {
    let shares = |mapping: &Mapping| !mapping.is_private();
    match resource as u32 {
        // The transit numbers may be above the limit.
        libc::RLIMIT_NOFILE => true,
        libc::RLIMIT_MEMLOCK => !image.attributes.locked.is_empty() || image.attributes.lock_future != 0,
        libc::RLIMIT_NPROC => image.threads.len() > 1,
        libc::RLIMIT_AS => image.mappings.iter().any(shares),
        // The zygote would be killed for the time that it takes itself.
        libc::RLIMIT_CPU => image.limits[resource] != (u64::MAX, u64::MAX),
        libc::RLIMIT_SIGPENDING => is_set_last(resource, image),
        libc::RLIMIT_FSIZE => !image.objects.is_empty() || !image.memory_files.is_empty(),
        _ => false,
    }
}

/// Of [`is_set_late`], whether the last steps of a start still need it: the kernel counts timers and signals that wait.
fn is_set_last(resource: usize, image: &ProgramImage) -> bool {
    let waits = |thread: &Thread| !thread.pending.is_empty();
    resource as u32 == libc::RLIMIT_SIGPENDING
        && (!image.posix_timers.is_empty() || !image.pending.is_empty() || image.threads.iter().any(waits))
}

/// Adds the sealing of mappings: nothing can be moved or unmapped any more.
pub(crate) fn seal(script: &mut Script, image: &ProgramImage) {
    for mapping in image.mappings.iter().filter(|mapping| mapping.flags.sealed && mapping.is_private()) {
        seal_one(script, mapping);
    }
}

/// The same of one mapping.
pub(crate) fn seal_one(script: &mut Script, mapping: &Mapping) {
    const SYS_MSEAL: i64 = 462;
    let (start, length) = (mapping.range.start, mapping.range.end - mapping.range.start);
    script.call(SYS_MSEAL, [start.into(), length.into(), 0u64.into()], Check::Success);
}

/// Adds what the kernel is told of the address space. `program` is the descriptor of the program's file (none: it is what it was).
pub(crate) fn set_layout(arena: &mut Arena, script: &mut Script, image: &ProgramImage, program: Option<i32>) {
    const PR_SET_MM_MAP: i32 = 14;
    let auxv = arena.data(&image.layout.auxv, 8);
    // struct prctl_mm_map: eleven addresses, auxv, and two 32-bit words: its size and the program's descriptor, or -1.
    let mut map = image.layout.fields.to_vec();
    map.push(auxv);
    map.push(image.layout.auxv.len() as u64 | u64::from(program.unwrap_or(-1) as u32) << 32);
    let map = arena.words(&map);
    let args =
        [libc::PR_SET_MM.into(), PR_SET_MM_MAP.into(), map.into(), ((11 * 8 + 8 + 8) as u64).into(), 0u64.into()];
    script.call(libc::SYS_prctl, args, Check::Success);
}

/// Adds the lifting of a limit, as far as the zygote has a right to that.
pub(crate) fn lift_limit(arena: &mut Arena, script: &mut Script, resource: usize) {
    let place = arena.words(&[u64::MAX, u64::MAX]);
    script.call(libc::SYS_prlimit64, [0u64.into(), (resource as u64).into(), place.into(), 0u64.into()], Check::Ignore);
}

/// Adds the setting of one resource limit of the process itself.
pub(crate) fn set_limit(arena: &mut Arena, script: &mut Script, resource: usize, soft: u64, hard: u64) {
    let place = arena.words(&[soft, hard]);
    script.call(
        libc::SYS_prlimit64,
        [0u64.into(), (resource as u64).into(), place.into(), 0u64.into()],
        Check::Success,
    );
}
