//! A bound on what depends on another process's good will: the kernel ends this process when it takes too long.

use std::time::Duration;

/// While this lives, the kernel ends the process by SIGALRM (its default action) once the time is up. For processes that exist for one
/// job, whose end lets go of everything that the job holds. One at a time.
#[derive(Debug)]
pub struct Deadman(());

impl Deadman {
    /// Sets the time; whole seconds, at least one.
    pub fn arm(limit: Duration) -> Self {
        let seconds = u32::try_from(limit.as_secs()).unwrap_or(u32::MAX).max(1);
        // SAFETY: alarm only sets this process's timer.
        unsafe { libc::alarm(seconds) };
        Self(())
    }
}

impl Drop for Deadman {
    fn drop(&mut self) {
        // SAFETY: as above; 0 takes the timer back.
        unsafe { libc::alarm(0) };
    }
}
