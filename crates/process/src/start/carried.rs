//! What a copy and its threads carry: timers, pending signals, scheduling, attributes.

use std::mem::size_of_val;
use sys::ptrace::{SignalInfo, signal_number};

use super::{
    attributes,
    timers::{self, TimerNumbers},
};
use crate::{
    image::{ProgramImage, ProtectionKeys, Scheduling, Thread, ThreadAttributes, WithKey},
    script::{Arena, Arg, Check, Script},
};

/// What a process has that never asked for another.
const DEFAULT_TIMER_SLACK_NS: u64 = 50_000;
const ARCH_SET_GS: i32 = 0x1001;
/// `rseq_cs` in `struct rseq`.
const RSEQ_CS_OFFSET: u64 = 8;

/// What every thread has of its own, the main one too: addresses that the kernel looks at. Only once it has no privileges.
pub(super) fn thread_attributes(script: &mut Script, thread: &Thread) {
    if thread.registers.gs_base != 0 {
        script.call(libc::SYS_arch_prctl, [ARCH_SET_GS.into(), thread.registers.gs_base.into()], Check::Success);
    }
    if thread.robust.head != 0 {
        script.call(libc::SYS_set_robust_list, [thread.robust.head.into(), thread.robust.len.into()], Check::Success);
    }
    let rseq = &thread.rseq;
    if rseq.address != 0 {
        // No section is under way (`stop::stopped` makes threads leave them): the kernel must not act on what is left of one.
        script.store(rseq.address + RSEQ_CS_OFFSET, 0);
        let args = [rseq.address.into(), u64::from(rseq.size).into(), 0u64.into(), u64::from(rseq.signature).into()];
        script.call(libc::SYS_rseq, args, Check::Success);
    }
    attributes::of_thread(script, &thread.attributes);
}

/// What waits for a thread, which only itself can queue with what came with it.
pub(super) fn queue_own(arena: &mut Arena, script: &mut Script, image: &ProgramImage, thread: &Thread) {
    for info in &thread.pending {
        let whom = [image.threads[0].tid.into(), thread.tid.into()];
        queue_signal(arena, script, libc::SYS_rt_tgsigqueueinfo, &whom, info);
    }
}

/// How a thread is scheduled, and its name.
pub(super) fn scheduling(arena: &mut Arena, script: &mut Script, image: &ProgramImage, thread: &Thread) {
    // A thread begins with the name of the one that created it, the main thread.
    if thread.name != image.threads[0].name {
        let name = arena.text(&thread.name);
        script.call(libc::SYS_prctl, [libc::PR_SET_NAME.into(), name.into()], Check::Success);
    }
    let scheduling = &thread.scheduling;
    policy(arena, script, scheduling.policy, &thread.attributes);
    if scheduling.nice != 0 {
        // A program that came by a negative value has it from its node, and no right to it.
        script.call(
            libc::SYS_setpriority,
            [u64::from(libc::PRIO_PROCESS).into(), 0u64.into(), scheduling.nice.into()],
            Check::Ignore,
        );
    }
    own_scheduling(arena, script, image, scheduling);
}

/// What the scheduler is told beside a nice value.
fn policy(arena: &mut Arena, script: &mut Script, policy: u32, attributes: &ThreadAttributes) {
    const UTILIZATION: u64 = 0x60; // SCHED_FLAG_UTIL_CLAMP_MIN | SCHED_FLAG_UTIL_CLAMP_MAX
    let ThreadAttributes { scheduling_flags, slice_ns, utilization, .. } = *attributes;
    if (policy, scheduling_flags, slice_ns, utilization) == (libc::SCHED_OTHER as u32, 0, 0, None) {
        return;
    }
    let (least, most) = utilization.unwrap_or_default();
    let flags = scheduling_flags | if utilization.is_some() { UTILIZATION } else { 0 };
    // struct sched_attr, second version: size and policy; flags; nice value and priority; three times; least and most utilisation.
    const BYTES: u64 = 7 * 8;
    let (policy, utilization) = (u64::from(policy) << 32, u64::from(least) | u64::from(most) << 32);
    let place = arena.words(&[BYTES | policy, flags, 0, slice_ns, 0, 0, utilization]);
    script.call(libc::SYS_sched_setattr, [0u64.into(), place.into(), 0u64.into()], Check::Success);
}

/// What differs from the main thread's common defaults: most threads need none of it.
fn own_scheduling(arena: &mut Arena, script: &mut Script, image: &ProgramImage, scheduling: &Scheduling) {
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
pub(super) fn queue_signal(arena: &mut Arena, script: &mut Script, nr: i64, whom: &[Arg], info: &SignalInfo) {
    let signal = signal_number(info);
    let place = arena.data(info, 8);
    match *whom {
        [process] => script.call(nr, [process, signal.into(), place.into()], Check::Success),
        [process, thread, ..] => script.call(nr, [process, thread, signal.into(), place.into()], Check::Success),
        [] => 0,
    };
}

pub(super) fn memory_attributes(script: &mut Script, image: &ProgramImage, inherited: &ProtectionKeys) {
    set_keys(script, &image.keys, inherited);
    for range in &image.dont_fork {
        let args = [range.start.into(), (range.end - range.start).into(), libc::MADV_DONTFORK.into()];
        script.call(libc::SYS_madvise, args, Check::Success);
    }
}

/// Adds the allocation of protection keys by their numbers, and their use. The kernel gives the lowest that is free.
fn set_keys(script: &mut Script, keys: &ProtectionKeys, inherited: &ProtectionKeys) {
    if keys.allocated != inherited.allocated {
        let free = |script: &mut Script, key: u32| {
            script.call(libc::SYS_pkey_free, [u64::from(key).into()], Check::Success);
        };
        inherited.all().for_each(|key| free(script, key));
        let highest = keys.all().last().unwrap_or(0);
        for key in 1..=highest {
            script.call(libc::SYS_pkey_alloc, [0u64.into(), 0u64.into()], Check::Equal(i64::from(key)));
        }
        (1..highest).filter(|key| !keys.has(*key)).for_each(|key| free(script, key));
    }
    for WithKey { range, protection, key } in &keys.mappings {
        let length = range.end - range.start;
        let args = [range.start.into(), length.into(), (*protection).into(), u64::from(*key).into()];
        script.call(libc::SYS_pkey_mprotect, args, Check::Success);
    }
}

pub(super) fn timers(arena: &mut Arena, script: &mut Script, image: &ProgramImage) {
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
    timers::make(arena, script, image, TimerNumbers::here());
}
