//! Stopping a process whose page cannot be had.
//!
//! A child of a process that was handed over is known by its userfaultfd only, and that names no pid. So it is found by its memory: a page that
//! it lacks is made *poisoned*, and the process whose page table shows that at this address, and did not before, is the one. (The poisoned page
//! also keeps it from ever reading there what it should not, until it is killed.)

use std::{
    collections::HashSet,
    fs::File,
    os::{fd::AsFd, unix::fs::FileExt},
    sync::Arc,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sys::uffd::Outcome;

use super::{
    Server, lock,
    process::{Book, Process},
};
use crate::{
    board::borrow,
    limits::{FAILURE_BYTES_MAX, PAGE_BYTES},
    message::Failure,
};

/// Pages that are tried before it is given up.
const ATTEMPTS: u32 = 32;

/// In a pagemap entry: the page is present; it is a marker (or in swap).
const PRESENT: u64 = 1 << 63;
const MARKER: u64 = 1 << 62;

impl Server {
    /// Answers no fault of the process any more, and has it killed.
    pub(super) fn doom(&self, process: &Arc<Process>, reason: &str) {
        self.doom_locked(process, &mut lock(&process.book), reason);
    }

    /// The same, under the process's lock.
    pub(super) fn doom_locked(&self, process: &Arc<Process>, book: &mut Book, reason: &str) {
        if !book.doomed && !process.is_over() {
            book.doomed = true;
            // Written at once: a pager that comes after this one goes on with it.
            let failure =
                Failure { image: process.image.name.clone(), pid: process.record.pid(), reason: reason.to_owned() };
            tracing::error!(failure.image, failure.pid, failure.reason, "a process is stopped");
            process.record.doom(self.board.record_failure(&encode(failure)));
            self.demand.doom(Arc::clone(process));
        }
    }

    /// Kills a process that is doomed. Its descriptor is closed when it is gone, and not before.
    pub(super) fn kill(&self, process: &Process) {
        if process.is_over() {
            return;
        }
        if let Some(pidfd) = process.record.pidfd() {
            // Gone is as good as killed.
            let _ = borrow(Some(pidfd)).map(|pidfd| pidfd_send_signal(&*pidfd, Signal::KILL));
            return;
        }
        let pids = self.find_and_kill(process);
        let Some(number) = process.record.failure() else { return };
        if let Ok(failure) = serde_json::from_slice::<Failure>(&self.board.read_failure(number)) {
            let failure = Failure { pid: pids.first().copied().or(failure.pid), ..failure };
            self.board.write_failure(number, &encode(failure));
        }
    }

    fn find_and_kill(&self, process: &Process) -> Vec<i32> {
        // One at a time: the marker of another would be taken for this one's.
        let _alone = lock(&self.finding);
        for _ in 0..ATTEMPTS {
            let mut book = lock(&process.book);
            let Some(number) = process.missing.first(&(0..process.image.layout.pages())) else { return Vec::new() };
            let Some(span) = book.space.places(&(number..number + 1)).first().copied() else { return Vec::new() };
            let before: HashSet<i32> = pids().filter(|pid| entry(*pid, span.at) == Some(0)).collect();
            match process.uffd().poison(span.at..span.at + PAGE_BYTES) {
                Ok(Outcome::Done(_)) => {
                    let marked = |pid: &i32| entry(*pid, span.at).is_some_and(|e| e & (MARKER | PRESENT) == MARKER);
                    return before.into_iter().filter(marked).filter(|pid| kill_marked(*pid, span.at)).collect();
                }
                // It is there, or nowhere: the next one.
                Ok(Outcome::Exists | Outcome::NoMapping) => book.left -= process.missing.clear(&(number..number + 1)),
                Ok(Outcome::Gone) => return Vec::new(),
                Ok(Outcome::Again) => {
                    drop(book);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                // A kernel without poison (before 6.6): the process sleeps in its fault for ever, which is not wrong either.
                Err(error) => {
                    tracing::error!(%error, "cannot poison a page");
                    return Vec::new();
                }
            }
        }
        Vec::new()
    }
}

/// A failure's record, with as much of the reason as there is room for.
fn encode(mut failure: Failure) -> Vec<u8> {
    failure.reason = failure.reason.chars().take(FAILURE_BYTES_MAX).collect();
    loop {
        let record = serde_json::to_vec(&failure).unwrap_or_default();
        if record.len() <= FAILURE_BYTES_MAX || failure.reason.pop().is_none() {
            return record;
        }
    }
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The pagemap entry of the page at `address`.
fn entry(pid: i32, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    let file = File::open(format!("/proc/{pid}/pagemap")).ok()?;
    file.read_exact_at(&mut bytes, address / PAGE_BYTES * 8).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// Kills a process if it is still the one with the marker at `address`.
fn kill_marked(pid: i32, address: u64) -> bool {
    let open = |pid| Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let Some(pidfd) = open(pid) else { return false };
    // The number may have passed to another process before it was opened.
    entry(pid, address).is_some_and(|e| e & MARKER != 0) && pidfd_send_signal(pidfd.as_fd(), Signal::KILL).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::NAME_BYTES_MAX;

    #[test]
    fn a_failure_is_readable_however_long_its_reason_is_in_json() {
        for reason in ["x", "\u{1}", "\"", "\u{20ac}"].map(|text| text.repeat(2_000)) {
            let failure = Failure { image: "\"".repeat(NAME_BYTES_MAX), pid: Some(i32::MAX), reason: reason.clone() };
            let record = encode(failure);
            assert!(record.len() <= FAILURE_BYTES_MAX);
            let read: Failure = serde_json::from_slice(&record).unwrap();
            assert!(!read.reason.is_empty() && reason.starts_with(&read.reason));
        }
    }
}
