//! Starting the pager and the spare, and taking the guardian's place.

use std::{
    collections::HashSet,
    io,
    os::fd::{IntoRawFd, OwnedFd, RawFd},
    sync::Arc,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, waitpid},
};

use super::Guardian;
use crate::{
    board::{Board, Word, borrow, from_descriptor, process::State},
    error::chain,
    server,
};

/// A pager that ends at once is not started faster than this.
const RESPAWN_PAUSE: Duration = Duration::from_millis(5);

/// Between two looks of a newborn process whether its parent has entered it.
const NEWBORN_PAUSE: Duration = Duration::from_micros(50);

/// All descriptors of this process but the one used for listing them.
pub(super) fn open_descriptors() -> io::Result<Vec<RawFd>> {
    let listed: io::Result<Vec<_>> = std::fs::read_dir("/proc/self/fd")?.collect();
    let numbers = listed?.into_iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // The listing's own is closed by now.
    Ok(numbers.filter(|number| borrow(Some(*number)).is_ok()).collect())
}

pub(super) fn own_pidfd() -> io::Result<OwnedFd> {
    Ok(pidfd_open(getpid(), PidfdFlags::empty())?)
}

/// Whether the process of the pidfd in `word` has ended, or there is none.
fn is_dead(board: Board, word: Word) -> bool {
    let Ok(pidfd) = borrow(board.descriptor(word)) else { return true };
    let mut polled = [PollFd::new(&*pidfd, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// Empties a word that holds a pidfd, and closes it.
fn bury(board: Board, word: Word) {
    if let Some(number) = board.descriptor(word) {
        board.set(word, 0);
        drop(sys::share::adopt(number));
    }
}

/// Whether the kernel may not choose this process when memory runs out; its children inherit that. Of the three, the pager is the one that takes
/// memory, and the one that is replaced without loss: it is to be chosen. All three at once would be lost memory.
pub(super) fn spare_when_memory_is_short(spare: bool) {
    if let Err(error) = sys::oom::set(if spare { -1000 } else { 0 }) {
        // Not permitted in some containers.
        tracing::debug!(%error, "the out-of-memory killer chooses among the pager's processes as it likes");
    }
}

fn pid_of(board: Board, word: Word) -> Option<Pid> {
    Pid::from_raw(board.get(word) as i32)
}

impl Guardian {
    /// Starts who is missing.
    pub(super) fn keep_family(&mut self) {
        let board = self.board;
        if is_dead(board, Word::Spare) {
            bury_child(board, Word::SparePid, Word::Spare);
            self.start(Word::SparePid, Word::Spare, Self::be_spare);
        }
        if is_dead(board, Word::Pager) {
            bury_child(board, Word::PagerPid, Word::Pager);
            self.close_leftovers();
            if board.get(Word::PagerStarts) > 0 {
                std::thread::sleep(RESPAWN_PAUSE);
            }
            board.add(Word::PagerStarts, 1);
            self.start(Word::PagerPid, Word::Pager, Self::be_pager);
        }
    }

    /// Forks a process and enters it. Until it is entered it does nothing, and ends with this one.
    fn start(&mut self, pid_word: Word, pidfd_word: Word, body: fn(&mut Self) -> i32) {
        let board = self.board;
        let entered = || {
            let own = getpid().as_raw_nonzero().get() as u64;
            while board.get(pid_word) != own {
                std::thread::sleep(NEWBORN_PAUSE);
            }
            sys::share::outlive_parent();
            board.set(Word::Grown, own);
            body(self)
        };
        let pid = match sys::share::fork_sharing_descriptors(entered) {
            Ok(pid) => pid,
            // Tried again at the next tick.
            Err(error) => return tracing::error!(%error, "cannot fork"),
        };
        let pidfd = Pid::from_raw(pid).ok_or(rustix::io::Errno::SRCH).and_then(|p| pidfd_open(p, PidfdFlags::empty()));
        match pidfd {
            Ok(pidfd) => {
                board.set(pidfd_word, from_descriptor(pidfd.into_raw_fd()));
                board.set(pid_word, pid as u64);
                // Only then can it do without this one.
                while board.get(Word::Grown) != pid as u64 && !is_dead(board, pidfd_word) {
                    std::thread::sleep(NEWBORN_PAUSE);
                }
            }
            Err(error) => {
                tracing::error!(%error, "cannot open a pidfd");
                if let Some(pid) = Pid::from_raw(pid) {
                    // Not entered, so it has done nothing; and not reaped, so the number is still its.
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                    let _ = waitpid(Some(pid), WaitOptions::empty());
                }
            }
        }
    }

    fn be_pager(&mut self) -> i32 {
        spare_when_memory_is_short(false);
        match server::run(self.board, Arc::clone(&self.opener), self.config.pager.clone()) {
            Ok(()) => 0,
            Err(error) => {
                tracing::error!(error = chain(&error), "the pager ends");
                1
            }
        }
    }

    /// Waits for the guardian's end, and goes on in its place.
    fn be_spare(&mut self) -> i32 {
        let board = self.board;
        let dead_guardian = board.get(Word::Guardian);
        loop {
            match borrow(board.descriptor(Word::Guardian)) {
                Err(_) => break,
                Ok(guardian) => {
                    let mut polled = [PollFd::new(&*guardian, PollFlags::IN)];
                    if poll(&mut polled, None).is_ok_and(|ready| ready > 0) {
                        break;
                    }
                }
            }
        }
        match own_pidfd() {
            Ok(own) => board.set(Word::Guardian, from_descriptor(own.into_raw_fd())),
            Err(error) => {
                tracing::error!(%error, "the spare cannot take over");
                return 1;
            }
        }
        if let Some(number) = dead_guardian.checked_sub(1) {
            drop(sys::share::adopt(number as RawFd));
        }
        // Its place is free now; the pidfd in it is of this process.
        bury(board, Word::Spare);
        board.set(Word::SparePid, 0);
        board.add(Word::Takeovers, 1);
        // What the old one was writing when it died.
        board.processes().filter(|record| record.state() == State::TakenByGuardian).for_each(|record| record.free());
        self.forget_halves();
        match self.guard() {
            Ok(()) => 0,
            Err(error) => {
                tracing::error!(error = chain(&error), "the guardian ends");
                1
            }
        }
    }

    /// Closes what a dead pager had open for itself. Only while there is none.
    fn close_leftovers(&self) {
        let known: HashSet<RawFd> =
            self.board.descriptors().into_iter().chain(self.inherited.iter().copied()).collect();
        for number in open_descriptors().unwrap_or_default() {
            if !known.contains(&number) {
                drop(sys::share::adopt(number));
            }
        }
    }

    /// Ends all but this process.
    pub(super) fn end_family(&self) {
        for (pid_word, word) in [(Word::SparePid, Word::Spare), (Word::PagerPid, Word::Pager)] {
            if let Ok(pidfd) = borrow(self.board.descriptor(word)) {
                let _ = pidfd_send_signal(&*pidfd, Signal::KILL);
            }
            // A child of an earlier guardian is reaped by somebody else.
            let _ = pid_of(self.board, pid_word).map(|pid| waitpid(Some(pid), WaitOptions::empty()));
        }
        let _ = std::fs::remove_file(&self.config.socket);
    }
}

fn bury_child(board: Board, pid_word: Word, pidfd_word: Word) {
    let _ = pid_of(board, pid_word).map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
    board.set(pid_word, 0);
    bury(board, pidfd_word);
}
