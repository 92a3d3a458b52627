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
use serde_json::json;
use sys::uffd::Outcome;

use super::{Server, lock, process::Process};
use crate::{
    board::{borrow, process::State},
    limits::PAGE_BYTES,
};

/// Pages that are tried before it is given up.
const ATTEMPTS: u32 = 32;

/// Longest text of a reason, so that a failure's record holds it with all else.
const REASON_BYTES_MAX: usize = 240;

/// In a pagemap entry: the page is present; it is a marker (or in swap).
const PRESENT: u64 = 1 << 63;
const MARKER: u64 = 1 << 62;

impl Server {
    /// Answers no fault of the process any more, and has it killed.
    pub(super) fn doom(&self, process: &Arc<Process>, reason: &str) {
        let mut book = lock(&process.book);
        if !book.doomed && !process.is_over() {
            book.doomed = true;
            process.record.set_state(State::Doomed);
            self.demand.doom(Arc::clone(process), reason.to_owned());
        }
    }

    /// Kills the process. Its descriptor is closed when it is gone, and not before.
    pub(super) fn end(&self, process: &Arc<Process>, reason: &str) {
        {
            let mut book = lock(&process.book);
            if process.is_over() {
                return;
            }
            book.doomed = true;
            process.record.set_state(State::Doomed);
        }
        let pids = match (process.record.pidfd(), process.record.pid()) {
            (Some(pidfd), Some(pid)) => {
                let killed = borrow(Some(pidfd)).map(|pidfd| pidfd_send_signal(&*pidfd, Signal::KILL));
                if matches!(killed, Ok(Ok(()))) { vec![pid] } else { Vec::new() }
            }
            _ => self.find_and_kill(process),
        };
        let reason: String = reason.chars().take(REASON_BYTES_MAX / 4).collect();
        let record = json!({ "image": process.image.name, "pid": pids.first(), "reason": reason });
        tracing::error!(image = process.image.name, ?pids, reason, "a process is stopped");
        self.board.record_failure(record.to_string().as_bytes());
    }

    fn find_and_kill(&self, process: &Process) -> Vec<i32> {
        for _ in 0..ATTEMPTS {
            let mut book = lock(&process.book);
            let Some(number) = process.missing.first(&(0..process.image.layout.pages())) else { return Vec::new() };
            let Some(span) = book.space.places(&(number..number + 1)).first().copied() else { return Vec::new() };
            let before: HashSet<i32> = pids().filter(|pid| entry(*pid, span.at) == Some(0)).collect();
            match process.uffd().poison(span.at..span.at + PAGE_BYTES) {
                Ok(Outcome::Done(_)) => {
                    let marked = |pid: &i32| entry(*pid, span.at).is_some_and(|e| e & (MARKER | PRESENT) == MARKER);
                    return before.into_iter().filter(marked).filter(|pid| kill(*pid, span.at)).collect();
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
fn kill(pid: i32, address: u64) -> bool {
    let open = |pid| Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let Some(pidfd) = open(pid) else { return false };
    // The number may have passed to another process before it was opened.
    entry(pid, address).is_some_and(|e| e & MARKER != 0) && pidfd_send_signal(pidfd.as_fd(), Signal::KILL).is_ok()
}
