//! The end of a command: its status, and the output that is left.

use std::{
    os::fd::AsFd,
    sync::atomic::Ordering,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use procfs::Stat;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::{CapabilitySet, capabilities},
};
use tokio::time::Instant;

use super::{Held, lock};
use crate::{
    limits::{DRAIN_BYTES_MAX, DRAIN_MAX, REAPED_LOOK, REAPED_MAX},
    record::Status,
};

/// How long the kernel's answer is waited for before `/proc` is asked: a parent usually reaps within a millisecond.
const ZOMBIE_AFTER: Duration = Duration::from_millis(500);

impl Held {
    /// Returns when the command has ended and its record is complete.
    pub(crate) async fn until_end(&self) {
        if self.record.end().is_some() {
            return;
        }
        let status = self.status().await;
        self.drain().await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        self.record.set_end(status, now);
        self.news.notify_waiters();
        self.room.notify_waiters();
        *lock(&self.input) = None;
    }

    /// What the keeper says counts where the kernel does not keep the status (before Linux 6.15).
    pub(crate) fn report(&self, status: Status) {
        *lock(&self.reported) = Some(status);
        self.news.notify_waiters();
    }

    async fn status(&self) -> Status {
        if let Ok(mut ready) = self.pidfd.readable().await {
            // The next wake-up is that of the reaping.
            ready.clear_ready();
        }
        let ended = Instant::now();
        loop {
            if let Some(status) = self.known(ended.elapsed()) {
                return status;
            }
            if ended.elapsed() > REAPED_MAX {
                return Status::Unknown;
            }
            tokio::select! {
                ready = self.pidfd.readable() => if let Ok(mut ready) = ready { ready.clear_ready() },
                () = self.news.notified() => {}
                () = tokio::time::sleep(REAPED_LOOK) => {}
            }
        }
    }

    fn known(&self, since: Duration) -> Option<Status> {
        match sys::pidfd::exit_status(self.pidfd.get_ref().as_fd()) {
            Ok(Some(status)) => Some(Status::of_wait(status)),
            Ok(None) | Err(_) => {
                lock(&self.reported).or_else(|| (since > ZOMBIE_AFTER).then(|| self.of_zombie()).flatten())
            }
        }
    }

    /// The status of a process that no parent reaps, or not soon. Without the right to trace, the kernel shows 0 to
    /// everyone.
    fn of_zombie(&self) -> Option<Status> {
        let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
        let process = self.record.process();
        let stat = Stat::read(&process.outside.to_string()).ok()?;
        let is_it = may && stat.state() == b'Z' && stat.start_ticks() == process.start_ticks;
        is_it.then(|| Status::of_wait(stat.field(52) as i32))
    }

    /// Takes what the command has left in its outputs. A process that it left behind may keep them open, or write on.
    async fn drain(&self) {
        let before: u64 = self.totals();
        let mut idle = Duration::ZERO;
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            let open = || self.outputs.iter().filter(|output| !output.closed.load(Ordering::Acquire));
            if open().next().is_none() || self.totals() - before > DRAIN_BYTES_MAX {
                return;
            }
            let waits = open().any(|output| is_readable(output.source.get_ref()));
            if !waits && idle >= DRAIN_MAX {
                return;
            }
            let began = Instant::now();
            tokio::select! {
                () = news => {}
                () = tokio::time::sleep(DRAIN_MAX.saturating_sub(idle).max(REAPED_LOOK)) => {}
            }
            if !waits {
                idle += began.elapsed();
            }
        }
    }

    fn totals(&self) -> u64 {
        (0..self.outputs.len()).map(|number| self.record.total(number)).sum()
    }
}

pub(super) fn is_readable(fd: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::IN)
}
