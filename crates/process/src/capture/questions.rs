//! Attributes that only a thread can read of itself. The thread's script asks for them.

use procfs::MapLine;
use sys::remote::PAGE;

use crate::{
    image::{ProcessAttributes, SPECULATION_CONTROLS, ThreadAttributes},
    script::{Arena, Arg, Check, Script},
};

const ARCH_GET_CPUID: i32 = 0x1011;
const PR_GET_MDWE: i32 = 66;
const PR_GET_MEMORY_MERGE: i32 = 68;
const PR_TIMER_CREATE_RESTORE_IDS: i32 = 77;
const PR_TIMER_CREATE_RESTORE_IDS_GET: u64 = 2;

/// Addresses that are tried for a page of ours: far from where kernels and runtimes place things.
const PAGE_FIRST: u64 = 0x3e00_0000_0000;
const PAGE_TRIES: u64 = 64;

fn ask(script: &mut Script, option: i32, argument: impl Into<Arg>) -> usize {
    let zero = || 0u64.into();
    script.call(libc::SYS_prctl, [option.into(), argument.into(), zero(), zero(), zero()], Check::Ignore)
}

/// What every thread is asked: steps of its script, and addresses of words that the kernel fills.
pub(super) struct OfThread {
    death_signal: u64,
    time_stamp: u64,
    machine_check: usize,
    secure_bits: usize,
    cpuid: usize,
    speculation: [usize; SPECULATION_CONTROLS],
}

/// Where its answers are.
pub(super) struct ThreadPlaces {
    death_signal: u64,
    time_stamp: u64,
    /// In the order of the questions.
    results: [u64; 3 + SPECULATION_CONTROLS],
}

impl OfThread {
    pub(super) fn add(arena: &mut Arena, script: &mut Script) -> Self {
        let [death_signal, time_stamp] = [0; 2].map(|nothing| arena.words(&[nothing]));
        ask(script, libc::PR_GET_PDEATHSIG, death_signal);
        ask(script, libc::PR_GET_TSC, time_stamp);
        Self {
            death_signal,
            time_stamp,
            machine_check: ask(script, libc::PR_MCE_KILL_GET, 0u64),
            secure_bits: ask(script, libc::PR_GET_SECUREBITS, 0u64),
            cpuid: script.call(libc::SYS_arch_prctl, [ARCH_GET_CPUID.into(), 0u64.into()], Check::Ignore),
            speculation: std::array::from_fn(|which| ask(script, libc::PR_GET_SPECULATION_CTRL, which as u64)),
        }
    }

    /// When the script has its place.
    pub(super) fn placed(self, arena: &mut Arena, script: u64) -> ThreadPlaces {
        let [first, second, third] = self.speculation;
        let steps = [self.machine_check, self.secure_bits, self.cpuid, first, second, third];
        let results = steps.map(|step| arena.keep_result(script, step));
        ThreadPlaces { death_signal: self.death_signal, time_stamp: self.time_stamp, results }
    }
}

impl ThreadPlaces {
    /// The answers. A question that this kernel or processor does not know is answered by an error: then nothing is set.
    pub(super) fn read(&self, word: &dyn Fn(u64) -> u64) -> ThreadAttributes {
        let default = ThreadAttributes::default();
        let answer = |at: u64| u32::try_from(word(at) as i64).ok();
        let [machine_check, secure_bits, cpuid, speculation @ ..] = self.results.map(answer);
        let mut which = 0..SPECULATION_CONTROLS;
        ThreadAttributes {
            death_signal: word(self.death_signal) as u32,
            machine_check: machine_check.unwrap_or(default.machine_check),
            secure_bits: secure_bits.unwrap_or(default.secure_bits),
            time_stamp_traps: word(self.time_stamp) as i32 == libc::PR_TSC_SIGSEGV,
            cpuid_traps: cpuid == Some(0),
            speculation: speculation.map(|state| chosen(which.next().unwrap_or(0), state.unwrap_or(0))),
            ..default
        }
    }
}

/// The state of a control of speculation if the thread has chosen it, 0 if not.
fn chosen(which: usize, state: u32) -> u32 {
    const FLUSHING: usize = 2;
    let may_choose = state & libc::PR_SPEC_PRCTL != 0;
    let enabled = state & libc::PR_SPEC_ENABLE != 0;
    // Speculation is on, and flushing off, unless the thread says otherwise.
    let default = if which == FLUSHING { !enabled } else { enabled };
    if may_choose && !default { state & !libc::PR_SPEC_PRCTL } else { 0 }
}

/// What the main thread is asked of the whole program.
pub(super) struct OfProcess {
    subreaper: u64,
    untold: u64,
    deny_write_exec: usize,
    merges_memory: usize,
    chooses_timer_ids: usize,
    lock_future: LockFuture,
}

/// Where its answers are.
pub(super) struct ProcessPlaces {
    subreaper: u64,
    untold: u64,
    results: [u64; 3],
    lock_future: LockFuture,
}

/// Whether memory that is mapped from now on is locked, which shows only in memory that is mapped now.
struct LockFuture {
    mapped: usize,
    is_locked: usize,
    resident: u64,
    /// Of the results, when the script has its place.
    results: [u64; 2],
}

impl OfProcess {
    pub(super) fn add(arena: &mut Arena, script: &mut Script, lines: &[MapLine]) -> Self {
        let subreaper = arena.words(&[0]);
        ask(script, libc::PR_GET_CHILD_SUBREAPER, subreaper);
        let untold = arena.words(&[0; 16]);
        let options = (libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL) as u64;
        let any = [u64::from(libc::P_ALL).into(), 0u64.into(), untold.into(), options.into(), 0u64.into()];
        script.call(libc::SYS_waitid, any, Check::Ignore);
        Self {
            subreaper,
            untold,
            deny_write_exec: ask(script, PR_GET_MDWE, 0u64),
            merges_memory: ask(script, PR_GET_MEMORY_MERGE, 0u64),
            chooses_timer_ids: ask(script, PR_TIMER_CREATE_RESTORE_IDS, PR_TIMER_CREATE_RESTORE_IDS_GET),
            lock_future: LockFuture::add(arena, script, lines),
        }
    }

    pub(super) fn placed(self, arena: &mut Arena, script: u64) -> ProcessPlaces {
        let steps = [self.deny_write_exec, self.merges_memory, self.chooses_timer_ids];
        let results = steps.map(|step| arena.keep_result(script, step));
        let LockFuture { mapped, is_locked, .. } = self.lock_future;
        let lock_future =
            LockFuture { results: [mapped, is_locked].map(|step| arena.keep_result(script, step)), ..self.lock_future };
        ProcessPlaces { subreaper: self.subreaper, untold: self.untold, results, lock_future }
    }
}

impl ProcessPlaces {
    /// Whether a child of it has stopped for which it has not waited: the signal of a `siginfo_t` is first.
    pub(super) fn is_untold(&self, word: &dyn Fn(u64) -> u64) -> bool {
        word(self.untold) as u32 != 0
    }

    pub(super) fn read(&self, word: &dyn Fn(u64) -> u64) -> ProcessAttributes {
        let [deny_write_exec, merges_memory, chooses_timer_ids] =
            self.results.map(|at| u32::try_from(word(at) as i64).unwrap_or(0));
        ProcessAttributes {
            lock_future: self.lock_future.read(word),
            child_subreaper: word(self.subreaper) as u32 != 0,
            deny_write_exec,
            merges_memory: merges_memory != 0,
            chooses_timer_ids: chooses_timer_ids != 0,
            ..ProcessAttributes::default()
        }
    }
}

impl LockFuture {
    fn add(arena: &mut Arena, script: &mut Script, lines: &[MapLine]) -> Self {
        let page = free_page(lines);
        let resident = arena.words(&[0]);
        let (read, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE);
        let args = [page.into(), PAGE.into(), read.into(), flags.into(), (-1).into(), 0u64.into()];
        let mapped = script.call(libc::SYS_mmap, args, Check::Ignore);
        let not_mapped = script.unless(mapped, page);
        // EBUSY: it is locked.
        let is_locked =
            script.call(libc::SYS_msync, [page.into(), PAGE.into(), libc::MS_INVALIDATE.into()], Check::Ignore);
        script.call(libc::SYS_mincore, [page.into(), PAGE.into(), resident.into()], Check::Ignore);
        script.call(libc::SYS_munmap, [page.into(), PAGE.into()], Check::Ignore);
        script.land(not_mapped);
        Self { mapped, is_locked, resident, results: [0; 2] }
    }

    fn read(&self, word: &dyn Fn(u64) -> u64) -> u32 {
        let [mapped, is_locked] = self.results.map(|at| -(word(at) as i64) as i32);
        let on_fault = if word(self.resident) & 1 == 0 { libc::MCL_ONFAULT } else { 0 };
        match (mapped, is_locked) {
            // More memory must not be locked: that it would be is what the kernel says.
            (libc::EAGAIN, _) => libc::MCL_FUTURE as u32,
            (_, libc::EBUSY) => (libc::MCL_FUTURE | on_fault) as u32,
            _ => 0,
        }
    }
}

/// A page that no mapping has.
fn free_page(lines: &[MapLine]) -> u64 {
    let is_free = |page: &u64| lines.iter().all(|line| line.range.end <= *page || page + PAGE <= line.range.start);
    (0..PAGE_TRIES).map(|n| PAGE_FIRST + (n << 32)).find(is_free).unwrap_or(PAGE_FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_of_speculation_counts_only_where_the_thread_chose_it() {
        let (may, enabled, disabled, forced) = (1, 2, 4, 8);
        for (which, state, expected) in [
            (0, enabled, 0),
            (0, may | enabled, 0),
            (0, may | disabled, disabled),
            (1, may | forced, forced),
            (1, forced, 0),
            (2, may | disabled, 0),
            (2, may | enabled, enabled),
            (2, forced, 0),
        ] {
            assert_eq!(chosen(which, state), expected, "{which} {state:#x}");
        }
    }
}
