//! Sets again the attributes that the program had set for itself and its threads. A program with the defaults needs no step.

use sys::remote::{self, Range};

use super::Transit;
use crate::{
    image::{MACHINE_CHECK_DEFAULT, ProgramImage, ThreadAttributes, within},
    script::{Arena, Arg, Check, Script},
};

const ARCH_SET_CPUID: i32 = 0x1012;
const PR_SET_MDWE: i32 = 65;
const PR_SET_MEMORY_MERGE: i32 = 67;
const KEEP_CAPABILITIES: u32 = 1 << 4;

fn set(script: &mut Script, option: i32, arguments: [u64; 2], check: Check) {
    let [first, second] = arguments;
    script.call(libc::SYS_prctl, [option.into(), first.into(), second.into(), 0u64.into(), 0u64.into()], check);
}

/// The nice value of its scheduling group. Gives whether it has begun its session.
pub(super) fn of_group(arena: &mut Arena, script: &mut Script, image: &ProgramImage) -> bool {
    let nice = image.attributes.autogroup_nice;
    if nice == 0 || !image.session_leader {
        return false;
    }
    script.call(libc::SYS_setsid, [], Check::Success);
    // The scheduler takes one in 100 ms, from all users of the host together. Not every kernel has the file.
    const PAUSE_NS: u64 = 10_000_000;
    let pause = arena.words(&[0, PAUSE_NS]);
    let file = open(arena, script, b"/proc/self/autogroup", Check::Ignore);
    let wrote = write_number(arena, script, file, nice, Check::Ignore);
    let taken = script.unless(wrote, -i64::from(libc::EAGAIN) as u64);
    script.call(libc::SYS_nanosleep, [pause.into(), 0u64.into()], Check::Ignore);
    script.again(wrote);
    script.land(taken);
    script.call(libc::SYS_close, [Arg::Result(file)], Check::Ignore);
    true
}

/// While it is privileged, because its files in /proc are root's until it is the program: the copy is killed before the host's own processes when
/// memory is short, and before other copies if the program asked for that.
pub(super) fn be_killed_first(arena: &mut Arena, script: &mut Script, image: &ProgramImage) {
    let least = i32::from(base::limits::OOM_SCORE_PROGRAM);
    let adjustment = image.attributes.oom_score_adj.map_or(least, |own| own.max(least));
    let file = open(arena, script, b"/proc/self/oom_score_adj", Check::Success);
    write_number(arena, script, file, adjustment, Check::Success);
    script.call(libc::SYS_close, [Arg::Result(file)], Check::Ignore);
}

/// As the program's user, when all of its memory is there.
pub(super) fn of_process(script: &mut Script, image: &ProgramImage) {
    let attributes = &image.attributes;
    for locked in &attributes.locked {
        // A fork unlocks memory. It is locked in any case, also where not all of it can be brought in: nothing may be allowed there.
        let Range { start, end } = locked.range;
        let on_fault = u64::from(libc::MLOCK_ONFAULT);
        script.call(libc::SYS_mlock2, [start.into(), (end - start).into(), on_fault.into()], Check::Success);
        if !locked.on_fault {
            // Bringing pages in stops at a guard page: only what lies between them is brought in.
            for Range { start, end } in remote::subtract(&[locked.range], &within(&image.guards, locked.range)) {
                script.call(libc::SYS_mlock, [start.into(), (end - start).into()], Check::Ignore);
            }
        }
    }
    if attributes.lock_future != 0 {
        script.call(libc::SYS_mlockall, [u64::from(attributes.lock_future).into()], Check::Success);
    }
    if attributes.child_subreaper {
        set(script, libc::PR_SET_CHILD_SUBREAPER, [1, 0], Check::Success);
    }
    if attributes.merges_memory {
        // Not on every kernel.
        set(script, PR_SET_MEMORY_MERGE, [1, 0], Check::Ignore);
    }
}

/// When nothing is mapped any more.
pub(super) fn deny_write_exec(script: &mut Script, image: &ProgramImage) {
    if image.attributes.deny_write_exec != 0 {
        set(script, PR_SET_MDWE, [image.attributes.deny_write_exec.into(), 0], Check::Success);
    }
}

/// Opens a file of /proc for writing; gives the step.
fn open(arena: &mut Arena, script: &mut Script, path: &[u8], check: Check) -> usize {
    let (path, flags) = (arena.text(path), libc::O_WRONLY | libc::O_CLOEXEC);
    script.call(libc::SYS_openat, [libc::AT_FDCWD.into(), path.into(), flags.into()], check)
}

/// Writes a number into the file that the step `file` opened; gives the step.
fn write_number(arena: &mut Arena, script: &mut Script, file: usize, number: i32, check: Check) -> usize {
    let text = number.to_string();
    let bytes = arena.data(text.as_bytes(), 1);
    script.call(libc::SYS_write, [Arg::Result(file), bytes.into(), (text.len() as u64).into()], check)
}

/// Waits until the helper is gone and the keeper is the copy's parent, if that matters: a thread wants to be told of its parent's end, or the copy
/// clones children of its parent.
pub(super) fn wait_for_helper(arena: &mut Arena, script: &mut Script, transit: Transit) {
    let Some(helper) = transit.helper() else { return };
    // struct pollfd { fd, events, revents }
    let poll = arena.words(&[u64::from(helper as u32) | (libc::POLLIN as u64) << 32]);
    let args = [poll.into(), 1u64.into(), 0u64.into(), 0u64.into(), 0u64.into()];
    script.call(libc::SYS_ppoll, args, Check::Equal(1));
}

/// Last of what a thread does, without privileges.
pub(super) fn of_thread(script: &mut Script, attributes: &ThreadAttributes) {
    if attributes.death_signal != 0 {
        set(script, libc::PR_SET_PDEATHSIG, [attributes.death_signal.into(), 0], Check::Success);
    }
    if attributes.machine_check != MACHINE_CHECK_DEFAULT {
        let args = [libc::PR_MCE_KILL_SET as u64, attributes.machine_check.into()];
        set(script, libc::PR_MCE_KILL, args, Check::Success);
    }
    if attributes.secure_bits & KEEP_CAPABILITIES != 0 {
        set(script, libc::PR_SET_KEEPCAPS, [1, 0], Check::Success);
    }
    if attributes.secure_bits & !KEEP_CAPABILITIES != 0 {
        set(script, libc::PR_SET_SECUREBITS, [attributes.secure_bits.into(), 0], Check::Success);
    }
    for (which, state) in (0u64..).zip(attributes.speculation).filter(|(_, state)| *state != 0) {
        // A processor that needs it not refuses it.
        set(script, libc::PR_SET_SPECULATION_CTRL, [which, state.into()], Check::Ignore);
    }
    if attributes.time_stamp_traps {
        set(script, libc::PR_SET_TSC, [libc::PR_TSC_SIGSEGV as u64, 0], Check::Success);
    }
    if attributes.cpuid_traps {
        script.call(libc::SYS_arch_prctl, [ARCH_SET_CPUID.into(), 0u64.into()], Check::Success);
    }
}
