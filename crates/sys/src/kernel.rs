//! What this kernel can do that older ones cannot. Each is asked of the kernel, never of its version: distributions carry features back.

use std::{
    io,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

const PR_TIMER_CREATE_RESTORE_IDS: i32 = 77;

static OLD: AtomicBool = AtomicBool::new(false);

/// For tests: from here on this process takes the ways round what older kernels lack, as far as this kernel has them.
pub fn pretend_old(old: bool) {
    OLD.store(old, Ordering::Relaxed);
}

/// See [`pretend_old`].
pub fn is_old() -> bool {
    OLD.load(Ordering::Relaxed)
}

/// Whether a POSIX timer can be made with a number of the caller's choice (Linux 6.15). Asks the kernel once.
pub fn chooses_timer_numbers() -> bool {
    static CHOOSES: OnceLock<bool> = OnceLock::new();
    const GET: i32 = 2;
    // SAFETY: the question changes nothing.
    !is_old() && *CHOOSES.get_or_init(|| unsafe { libc::prctl(PR_TIMER_CREATE_RESTORE_IDS, GET, 0, 0, 0) } >= 0)
}

/// The highest capability that it has. Asks the kernel once.
pub fn last_capability() -> u32 {
    static LAST: OnceLock<u32> = OnceLock::new();
    /// What every kernel has that can do the rest.
    const CAP_CHECKPOINT_RESTORE: u32 = 40;
    *LAST.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap").ok();
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(CAP_CHECKPOINT_RESTORE)
    })
}

/// Makes and deletes a POSIX timer with a number of its choice. The process must make no other timers meanwhile.
pub fn try_timer_number() -> io::Result<()> {
    let choose = |on: i32| {
        // SAFETY: this changes how the kernel reads one argument of timer_create(2).
        let result = unsafe { libc::prctl(PR_TIMER_CREATE_RESTORE_IDS, on, 0, 0, 0) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    choose(1)?;
    let made = make_timer(1000);
    choose(0)?;
    made
}

fn make_timer(wanted: i32) -> io::Result<()> {
    // SAFETY: all zeros are a valid `struct sigevent`.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_NONE;
    let mut number = wanted;
    let clock = libc::CLOCK_MONOTONIC;
    // SAFETY: the kernel reads the event and writes the number, which both live until the call returns.
    if unsafe { libc::syscall(libc::SYS_timer_create, clock, &raw const event, &raw mut number) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the timer was made above, and nothing else knows it.
    unsafe { libc::syscall(libc::SYS_timer_delete, number) };
    if number == wanted { Ok(()) } else { Err(io::Error::other(format!("it has the number {number}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_capability_is_a_real_one() {
        assert!((40..64).contains(&last_capability()));
    }

    #[test]
    fn the_answer_about_timer_numbers_is_what_making_one_shows() {
        assert_eq!(try_timer_number().is_ok(), chooses_timer_numbers());
    }
}
