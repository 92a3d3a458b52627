//! A process that stands still: as far as it is filled its memory is the image. Its forks are given what they lack from there: without the
//! store, without decoding, and also if the source is out of reach by then.

use std::{
    fs::File,
    io,
    ops::Range,
    os::{fd::OwnedFd, unix::fs::FileExt},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::process::Process;
use crate::{
    board::borrow,
    limits::PAGE_BYTES,
    pages::{Cluster, Layout},
};

#[derive(Debug)]
pub(super) struct Still {
    /// Its `/proc/PID/mem`, which is of this memory also when the pid is another's.
    memory: File,
    pidfd: OwnedFd,
    process: Weak<Process>,
    /// It has all its pages, and is not served any more.
    whole: AtomicBool,
}

impl Still {
    pub(super) fn of(process: &Arc<Process>) -> io::Result<Self> {
        let pid = process.record.pid().ok_or(io::ErrorKind::NotFound)?;
        let pidfd = borrow(process.record.pidfd())?.try_clone()?;
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let still = Self { memory, pidfd, process: Arc::downgrade(process), whole: AtomicBool::new(false) };
        // It lives, so the pid is its own, and was when the file was opened.
        if still.is_gone() { Err(io::ErrorKind::NotFound.into()) } else { Ok(still) }
    }

    /// If this is the process: it has all its pages.
    pub(super) fn complete(&self, process: &Arc<Process>) {
        if self.process.as_ptr() == Arc::as_ptr(process) {
            self.whole.store(true, Ordering::Release);
        }
    }

    /// Nothing can be had from it any more.
    pub(super) fn is_gone(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// The pages around `place` that it has, within `within`; addresses of the image, which are its own because it changes nothing.
    pub(super) fn cluster(&self, layout: &Layout, place: u64, within: &Range<u64>) -> Option<Cluster> {
        let number = layout.numbers(&(place..place + PAGE_BYTES)).first()?.1.start;
        let (start, numbers) = layout.numbers(within).into_iter().find(|(_, numbers)| numbers.contains(&number))?;
        let whole = self.whole.load(Ordering::Acquire);
        // Held while it is asked: its bits are another's when it is dropped.
        let process = self.process.upgrade().filter(|process| !process.is_over());
        let has = |number: &u64| whole || process.as_ref().is_some_and(|process| !process.missing.has(*number));
        if !has(&number) {
            return None;
        }
        let first = (numbers.start..number).rev().take_while(has).last().unwrap_or(number);
        let end = (number..numbers.end).take_while(has).last()? + 1;
        let start = start + (first - numbers.start) * PAGE_BYTES;
        let mut bytes = vec![0; ((end - first) * PAGE_BYTES) as usize];
        // Not if it ended meanwhile, or has no such mapping.
        self.memory.read_exact_at(&mut bytes, start).ok()?;
        Some(Cluster { start, bytes: Arc::new(bytes) })
    }
}
