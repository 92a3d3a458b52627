//! Bounded waiting on a descriptor.

use std::{
    io,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A moment by which something has to have happened.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    began: Instant,
    limit: Duration,
}

impl Deadline {
    pub(crate) fn after_ms(limit_ms: u64) -> Self {
        Self { began: Instant::now(), limit: Duration::from_millis(limit_ms) }
    }

    pub(crate) fn left(self) -> Duration {
        self.limit.saturating_sub(self.began.elapsed())
    }

    pub(crate) fn limit_ms(self) -> u64 {
        self.limit.as_millis() as u64
    }

    /// Waits until `fd` has one of `events`; `false` when the time is up.
    pub(crate) fn poll(self, fd: BorrowedFd<'_>, events: PollFlags) -> io::Result<bool> {
        self.poll_at_most(fd, events, self.limit)
    }

    /// The same, for no longer than `slice`.
    pub(crate) fn poll_at_most(self, fd: BorrowedFd<'_>, events: PollFlags, slice: Duration) -> io::Result<bool> {
        loop {
            let left = self.left().min(slice);
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut [PollFd::from_borrowed_fd(fd, events)], Some(&timeout)) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
