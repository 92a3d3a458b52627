//! One start as scripts: what the zygote, its short-lived helper and the copy do.
//!
//! ```text
//! zygote   receive start number and descriptors; clone(CLONE_VM) the helper; wait for it; close the descriptors; again
//! helper   enter the sandbox's namespaces; clone3 the copy, with the program's pid, into the sandbox's cgroup; report it; exit
//! copy     descriptors, shared mappings, timers, threads (each with its own script); drop privileges; seccomp; report; go on
//! ```
//!
//! The helper shares the zygote's memory, so nothing is copied for it; the copy's page tables are copied once, by its clone. A pid
//! namespace is entered by children only, which is why the helper cannot be the copy.

use std::mem::size_of;

use sys::{blob::OP_BYTES, ptrace::SignalInfo};

use super::{files, kind};
use crate::{
    frame,
    image::{Image, PosixTimer, Scheduling, Thread},
    script::{Arena, Arg, Check, PAGE, Script},
};

/// Descriptors that come with a request, in this order: pid 1's pidfd, cgroup directory, standard input, output, error.
pub(super) const RECEIVED: usize = 5;

const INIT: i32 = 0;
const CGROUP: i32 = 1;
const FIRST_STREAM: i32 = 2;

const CLONE_INTO_CGROUP: u64 = 1 << 33;
const CLONE_ARGS_BYTES: u64 = size_of::<libc::clone_args>() as u64;
const RLIMIT_NOFILE: usize = 7;
/// What a process has that never asked for another.
const DEFAULT_TIMER_SLACK_NS: u64 = 50_000;
const ARCH_SET_GS: i32 = 0x1001;
const ARCH_SET_FS: i32 = 0x1002;
const PR_TIMER_CREATE_RESTORE_IDS: i32 = 77;
const SECCOMP_SET_MODE_FILTER: i32 = 1;
const SECCOMP_FILTER_FLAG_TSYNC: u64 = 1;
const WAIT_ALL: i32 = 0x4000_0000; // __WALL
/// Largest count that one read takes.
const READ_BYTES_MAX: u64 = 0x7fff_f000;

/// Length of the message that asks for a start: its number.
pub(super) const START_BYTES: u64 = 8;
/// Length of the message that asks for a branch.
pub(super) const BRANCH_BYTES: u64 = 16;

/// Arenas lie in free room of this size, in one half of it: the other half is for the arena of a branch.
pub(super) const ROOM_BYTES: u64 = 1 << 32;
pub(super) const HALF_BYTES: u64 = ROOM_BYTES / 2;

/// The other half of the room of an arena.
pub(super) fn other_half(arena: u64) -> u64 {
    arena ^ HALF_BYTES
}

/// Numbers of the descriptors in transit, above all of the program's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transit {
    /// The control socket.
    pub(super) control: i32,
}

impl Transit {
    pub(super) fn above(image: &Image) -> Self {
        let highest = image.files.iter().flat_map(|file| &file.numbers).map(|(number, _)| *number).max().unwrap_or(0);
        Self { control: highest.max(RECEIVED as i32) + 1 }
    }

    fn streams(self) -> i32 {
        self.control + 1
    }
}

/// The words that reports are made of.
struct Mailbox {
    control: i32,
    /// The start number last received.
    start: u64,
    /// Operation and result of a failed step.
    failure: u64,
}

impl Mailbox {
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
pub(super) fn place(arena: &mut Arena, image: &Image, seccomp: &[u64], transit: Transit) -> Entries {
    let mailbox = Mailbox { control: transit.control, start: arena.words(&[0, 0]), failure: arena.words(&[0, 0]) };
    let handler = mailbox.failure_handler(arena);
    arena.on_fail(handler);
    let copy = place_copy(arena, image, seccomp, transit, &mailbox);
    let helper = place_helper(arena, image, copy, &mailbox);
    let (zygote, receive) = place_loop(arena, helper, transit, &mailbox);
    Entries { zygote, receive, handler }
}

/// Where the placed scripts begin.
pub(super) struct Entries {
    /// The zygote's loop after building.
    pub(super) zygote: u64,
    /// Its receiving step.
    pub(super) receive: u64,
    /// The handler for steps of the building.
    pub(super) handler: u64,
}

fn place_loop(arena: &mut Arena, helper: u64, transit: Transit, mailbox: &Mailbox) -> (u64, u64) {
    // struct msghdr { name, namelen, iov, iovlen, control, controllen, flags }
    const CONTROL_BYTES: u64 = 16 + (RECEIVED as u64 * 4).next_multiple_of(8);
    let vector = arena.words(&[mailbox.start, BRANCH_BYTES]);
    let control = arena.data(&[0; CONTROL_BYTES as usize], 8);
    let message = arena.words(&[0, 0, vector, 1, control, CONTROL_BYTES, 0]);
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
    let again = script.store(message + 40, CONTROL_BYTES);
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
    // The keeper is gone: nothing to report to.
    script.call(libc::SYS_exit_group, [0u64.into()], Check::Ignore);
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
/// its new control socket, the arena's file and the root filesystem as descriptors 0, 1 and 2.
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
pub(super) fn vm_child() -> [Arg; 5] {
    let flags = (libc::CLONE_VM | libc::SIGCHLD) as u64;
    [flags.into(), 0u64.into(), 0u64.into(), 0u64.into(), 0u64.into()]
}

fn clone_args(arena: &mut Arena, args: CloneArgs) -> u64 {
    let tid = arena.words(&[args.tid as u32 as u64]);
    // flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup
    arena.words(&[args.flags, 0, args.child_tid, 0, args.exit_signal, 0, 0, args.tls, tid, 1, args.cgroup])
}

#[derive(Default)]
struct CloneArgs {
    flags: u64,
    child_tid: u64,
    exit_signal: u64,
    tls: u64,
    tid: i32,
    cgroup: u64,
}

fn place_helper(arena: &mut Arena, image: &Image, copy: u64, mailbox: &Mailbox) -> u64 {
    let namespaces =
        libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let args = clone_args(
        arena,
        CloneArgs {
            flags: CLONE_INTO_CGROUP,
            exit_signal: libc::SIGCHLD as u64,
            tid: image.threads[0].tid,
            cgroup: CGROUP as u64,
            ..CloneArgs::default()
        },
    );
    let mut script = Script::default();
    script.call(libc::SYS_setns, [INIT.into(), namespaces.into()], Check::Success);
    let clone = script.spawn(libc::SYS_clone3, [args.into(), CLONE_ARGS_BYTES.into()], copy);
    let report = mailbox.report_result(arena, &mut script, kind::FORKED, clone);
    script.call(libc::SYS_exit, [0u64.into()], Check::Ignore);
    let placed = arena.place(&script);
    report.complete(arena, placed);
    placed
}

/// Words through which the threads of a copy wait for each other.
struct Gates {
    /// Threads that have not dropped their privileges.
    arriving: u64,
    /// 1 until all may go on.
    closed: u64,
}

fn place_copy(arena: &mut Arena, image: &Image, seccomp: &[u64], transit: Transit, mailbox: &Mailbox) -> u64 {
    let gates = Gates { arriving: arena.words(&[image.threads.len() as u64 - 1]), closed: arena.words(&[1]) };
    let threads: Vec<(u64, u64)> =
        image.threads[1..].iter().map(|thread| place_thread(arena, image, thread, &gates)).collect();
    let mut script = Script::default();
    receive_streams(&mut script, transit);
    let cwd = arena.text(&image.cwd);
    script.call(libc::SYS_chdir, [cwd.into()], Check::Success);
    if image.session_leader {
        script.call(libc::SYS_setsid, [], Check::Success);
    } else if image.process_group_leader {
        script.call(libc::SYS_setpgid, [0u64.into(), 0u64.into()], Check::Success);
    }
    files::Builder::new(arena, &mut script, image, transit.control, transit.streams()).build();
    memory_attributes(&mut script, image);
    let name = arena.text(&image.threads[0].name);
    script.call(libc::SYS_prctl, [libc::PR_SET_NAME.into(), name.into()], Check::Success);
    for (args, entry) in &threads {
        script.spawn(libc::SYS_clone3, [(*args).into(), CLONE_ARGS_BYTES.into()], *entry);
    }
    timers(arena, &mut script, image);
    let main = &image.threads[0];
    script.call(libc::SYS_set_tid_address, [main.tid_address.into()], Check::Ignore);
    script.call(libc::SYS_arch_prctl, [ARCH_SET_FS.into(), main.registers.fs_base.into()], Check::Success);
    thread_attributes(arena, &mut script, image, main);
    for info in &image.pending {
        queue_signal(arena, &mut script, libc::SYS_rt_sigqueueinfo, &[main.tid.into()], info);
    }
    if let Some((soft, hard)) = image.limits.get(RLIMIT_NOFILE) {
        // Only now: the transit numbers may be above the program's limit.
        set_limit(arena, &mut script, RLIMIT_NOFILE, *soft, *hard);
    }
    drop_privileges(&mut script, image);
    script.wait_zero(gates.arriving);
    // A thread's change of user makes a process undumpable, which would hide its own /proc entries from it.
    script.call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 1u64.into()], Check::Success);
    let program = arena.words(seccomp);
    let filter = arena.words(&[seccomp.len() as u64, program]);
    let args = [SECCOMP_SET_MODE_FILTER.into(), SECCOMP_FILTER_FLAG_TSYNC.into(), filter.into()];
    script.call(libc::SYS_seccomp, args, Check::Equal(0));
    let nothing = arena.words(&[0, 0]);
    mailbox.report(arena, &mut script, kind::READY, nothing);
    script.call(
        libc::SYS_close_range,
        [transit.control.into(), u64::from(u32::MAX).into(), 0u64.into()],
        Check::Success,
    );
    script.count_down(gates.closed);
    let stack = place_frame(arena, main);
    script.sigreturn(stack);
    arena.place(&script)
}

/// Streams move above the program's numbers, which are then all free.
fn receive_streams(script: &mut Script, transit: Transit) {
    script.call(libc::SYS_setns, [INIT.into(), libc::CLONE_NEWCGROUP.into()], Check::Success);
    for n in 0..3 {
        let number = transit.streams() + n;
        let args = [(FIRST_STREAM + n).into(), number.into(), libc::O_CLOEXEC.into()];
        script.call(libc::SYS_dup3, args, Check::Equal(i64::from(number)));
    }
    script.call(libc::SYS_close_range, [0u64.into(), (transit.control - 1).into(), 0u64.into()], Check::Success);
}

fn place_frame(arena: &mut Arena, thread: &Thread) -> u64 {
    let registers = frame::user_registers(&thread.registers);
    frame::place(arena, &registers, &thread.xsave, thread.mask, &thread.alternate)
}

/// Places one thread's script and the arguments of its clone.
fn place_thread(arena: &mut Arena, image: &Image, thread: &Thread, gates: &Gates) -> (u64, u64) {
    let shared = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM;
    let flags = (shared | libc::CLONE_SETTLS | libc::CLONE_CHILD_CLEARTID) as u64;
    let tls = thread.registers.fs_base;
    let args = clone_args(
        arena,
        CloneArgs { flags, child_tid: thread.tid_address, tls, tid: thread.tid, ..CloneArgs::default() },
    );
    let mut script = Script::default();
    thread_attributes(arena, &mut script, image, thread);
    drop_privileges(&mut script, image);
    script.count_down(gates.arriving);
    script.wait_zero(gates.closed);
    let stack = place_frame(arena, thread);
    script.sigreturn(stack);
    (args, arena.place(&script))
}

/// What every thread has of its own, the main one too.
fn thread_attributes(arena: &mut Arena, script: &mut Script, image: &Image, thread: &Thread) {
    if thread.registers.gs_base != 0 {
        script.call(libc::SYS_arch_prctl, [ARCH_SET_GS.into(), thread.registers.gs_base.into()], Check::Success);
    }
    if thread.robust.head != 0 {
        script.call(libc::SYS_set_robust_list, [thread.robust.head.into(), thread.robust.len.into()], Check::Success);
    }
    let rseq = &thread.rseq;
    if rseq.address != 0 {
        let args = [rseq.address.into(), u64::from(rseq.size).into(), 0u64.into(), u64::from(rseq.signature).into()];
        script.call(libc::SYS_rseq, args, Check::Success);
    }
    let main = &image.threads[0];
    // A thread begins with the name of the one that created it, the main thread.
    if thread.name != main.name {
        let name = arena.text(&thread.name);
        script.call(libc::SYS_prctl, [libc::PR_SET_NAME.into(), name.into()], Check::Success);
    }
    let scheduling = &thread.scheduling;
    if scheduling.policy != libc::SCHED_OTHER as u32 {
        let priority = arena.words(&[0]);
        script.call(
            libc::SYS_sched_setscheduler,
            [0u64.into(), u64::from(scheduling.policy).into(), priority.into()],
            Check::Success,
        );
    }
    if scheduling.nice != 0 {
        script.call(
            libc::SYS_setpriority,
            [u64::from(libc::PRIO_PROCESS).into(), 0u64.into(), scheduling.nice.into()],
            Check::Success,
        );
    }
    own_scheduling(arena, script, image, scheduling);
    for info in &thread.pending {
        let whom = [main.tid.into(), thread.tid.into()];
        queue_signal(arena, script, libc::SYS_rt_tgsigqueueinfo, &whom, info);
    }
}

/// What differs from the main thread's common defaults: most threads need none of it.
fn own_scheduling(arena: &mut Arena, script: &mut Script, image: &Image, scheduling: &Scheduling) {
    const PR_SET_TIMERSLACK: i32 = 29;
    const IOPRIO_WHO_PROCESS: i32 = 1;
    if scheduling.affinity != image.own_affinity {
        let mask = arena.words(&scheduling.affinity.0);
        let bytes = size_of_val(&scheduling.affinity.0) as u64;
        // A processor of the source may be absent here; the copy then runs on all.
        script.call(libc::SYS_sched_setaffinity, [0u64.into(), bytes.into(), mask.into()], Check::Ignore);
    }
    if scheduling.timer_slack_ns != DEFAULT_TIMER_SLACK_NS {
        script.call(libc::SYS_prctl, [PR_SET_TIMERSLACK.into(), scheduling.timer_slack_ns.into()], Check::Success);
    }
    if scheduling.io_priority != 0 {
        let args = [IOPRIO_WHO_PROCESS.into(), 0u64.into(), u64::from(scheduling.io_priority).into()];
        script.call(libc::SYS_ioprio_set, args, Check::Success);
    }
}

/// Queues a signal that was pending; it stays blocked until the frame restores the mask.
fn queue_signal(arena: &mut Arena, script: &mut Script, nr: i64, whom: &[Arg], info: &SignalInfo) {
    let signal = i32::from_le_bytes([info[0], info[1], info[2], info[3]]);
    let place = arena.data(info, 8);
    match *whom {
        [process] => script.call(nr, [process, signal.into(), place.into()], Check::Success),
        [process, thread, ..] => script.call(nr, [process, thread, signal.into(), place.into()], Check::Success),
        [] => 0,
    };
}

fn memory_attributes(script: &mut Script, image: &Image) {
    for mapping in image.mappings.iter().filter(|mapping| mapping.flags.locked) {
        // A fork unlocks memory.
        let range = mapping.range;
        script.call(libc::SYS_mlock, [range.start.into(), (range.end - range.start).into()], Check::Success);
    }
    for range in &image.dont_fork {
        let args = [range.start.into(), (range.end - range.start).into(), libc::MADV_DONTFORK.into()];
        script.call(libc::SYS_madvise, args, Check::Success);
    }
}

fn timers(arena: &mut Arena, script: &mut Script, image: &Image) {
    for (which, timer) in image.interval_timers.iter().enumerate() {
        let mut timer = *timer;
        if timer == [0; 4] {
            continue;
        }
        if timer[2..] == [0, 0] {
            // Between its expiry and the delivery of its signal the kernel has not armed it again: it is due at once.
            timer[3] = 1;
        }
        let place = arena.words(&timer);
        script.call(libc::SYS_setitimer, [(which as u64).into(), place.into(), 0u64.into()], Check::Success);
    }
    if image.posix_timers.is_empty() {
        return;
    }
    // With this the kernel gives each timer the number asked for (6.15).
    script.call(
        libc::SYS_prctl,
        [PR_TIMER_CREATE_RESTORE_IDS.into(), 1u64.into(), 0u64.into(), 0u64.into(), 0u64.into()],
        Check::Success,
    );
    for timer in &image.posix_timers {
        posix_timer(arena, script, timer);
    }
    script.call(
        libc::SYS_prctl,
        [PR_TIMER_CREATE_RESTORE_IDS.into(), 0u64.into(), 0u64.into(), 0u64.into(), 0u64.into()],
        Check::Success,
    );
}

fn posix_timer(arena: &mut Arena, script: &mut Script, timer: &PosixTimer) {
    let pair = |low: i32, high: i32| u64::from(low as u32) | u64::from(high as u32) << 32;
    // struct sigevent { value, signo, notify, tid, ... } of 64 bytes
    let event = arena.words(&[
        timer.sigev_value,
        pair(timer.signal, timer.notify),
        timer.notify_tid as u32 as u64,
        0,
        0,
        0,
        0,
        0,
    ]);
    let id = arena.words(&[timer.id as u32 as u64]);
    script.call(libc::SYS_timer_create, [timer.clock.into(), event.into(), id.into()], Check::Success);
    let value = &timer.value;
    if value.remaining != (0, 0) {
        let place = arena.words(&[value.interval.0, value.interval.1, value.remaining.0, value.remaining.1]);
        script.call(libc::SYS_timer_settime, [timer.id.into(), 0u64.into(), place.into(), 0u64.into()], Check::Success);
    }
}

/// Adds the setting of one resource limit of the process itself.
pub(super) fn set_limit(arena: &mut Arena, script: &mut Script, resource: usize, soft: u64, hard: u64) {
    let place = arena.words(&[soft, hard]);
    script.call(
        libc::SYS_prlimit64,
        [0u64.into(), (resource as u64).into(), place.into(), 0u64.into()],
        Check::Success,
    );
}

/// The thread becomes the program's user; leaving uid 0 clears every capability (capabilities(7)). Groups, the bounding set and
/// no_new_privs are inherited from the zygote, which needs none of them.
fn drop_privileges(script: &mut Script, image: &Image) {
    script.call(libc::SYS_setresuid, image.credentials.uids.map(|id| u64::from(id).into()), Check::Success);
}
