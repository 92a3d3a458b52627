//! Looking after what tells nobody: processes that are gone, images that nobody uses, guardians that died.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::uffd::Outcome;

use super::{Server, lock, process::Process};
use crate::board::{Word, borrow, to_descriptor};

/// Between two rounds.
const ROUND: Duration = Duration::from_millis(500);
/// In so many rounds in a row nobody else has to be there.
const ROUNDS_ALONE: u32 = 2;

impl Server {
    /// Returns when neither guardian nor spare is left, nor a process to serve.
    pub(super) fn watch_loop(self: &Arc<Self>) {
        let mut rounds_alone = 0;
        loop {
            std::thread::sleep(ROUND);
            let processes = self.processes(None);
            for process in processes.iter().filter(|process| is_gone(process)) {
                self.retire(process);
            }
            let opening = lock(&self.opening).clone();
            lock(&self.images).retain(|index, image| image.processes() > 0 || opening.contains(index));
            // In this order: a spare that takes over is in the guardian's place before it leaves its own. And twice: what is looked at may be closed meanwhile.
            let alone = [Word::Spare, Word::Guardian].into_iter().all(|word| self.is_dead(word));
            rounds_alone = if alone { rounds_alone + 1 } else { 0 };
            if rounds_alone == ROUNDS_ALONE {
                self.end_alone();
            }
            if rounds_alone >= ROUNDS_ALONE && processes.is_empty() {
                return;
            }
            // Should all have been held up at the moment when the last one looked.
            if self.idle.load(Ordering::Relaxed) == 0 {
                self.add_event_thread();
            }
        }
    }

    /// Guardian and spare are gone, and nobody makes others: clients hear that, so that another family can begin in the place of this one, and what is
    /// still awaited is brought unasked, so that this one ends soon.
    fn end_alone(&self) {
        tracing::error!("guardian and spare were killed: the pager brings what is awaited, and takes nothing new");
        let listener = self.board.take_descriptor(Word::Listener);
        let clients = self.board.clients().iter().filter_map(|word| to_descriptor(word.swap(0, Ordering::AcqRel)));
        // Theirs are in the table that this process has alone now.
        listener.into_iter().chain(clients).for_each(|number| drop(sys::share::adopt(number)));
        self.board.images().filter(|image| image.is_used()).for_each(|image| image.hurry());
    }

    fn is_dead(&self, word: Word) -> bool {
        let Ok(pidfd) = borrow(self.board.descriptor(word)) else { return true };
        let mut polled = [PollFd::new(&*pidfd, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }
}

/// Whether the memory of the process is gone: it has ended, or executes another program.
fn is_gone(process: &Process) -> bool {
    matches!(process.probe(), Ok(Outcome::Gone))
}
