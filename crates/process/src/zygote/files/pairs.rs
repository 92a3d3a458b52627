//! Pipes and socket pairs: two descriptors that exist at once.

use super::{Builder, CLOSE_ON_EXEC};
use crate::{
    image::{End, FileKind, OpenFile},
    script::Check,
};

/// Size of a new pipe, in bytes.
const PIPE_CAPACITY: u32 = 65_536;

/// The files that are the two ends of a pair, by index.
#[derive(Debug, Clone, Copy)]
struct Ends {
    first: Option<usize>,
    second: Option<usize>,
}

impl Ends {
    /// The one that is met first.
    fn either(self) -> Option<usize> {
        match (self.first, self.second) {
            (Some(first), Some(second)) => Some(first.min(second)),
            (first, second) => first.or(second),
        }
    }
}

impl Builder<'_> {
    /// Both ends of a pipe, when the first of its files is met. An end that no file has was closed in the source as well.
    pub(super) fn pipe(&mut self, index: usize, pipe: usize) {
        let ends = self.ends(|kind| match kind {
            FileKind::Pipe { pipe: other, end } if *other == pipe => Some(*end),
            _ => None,
        });
        if ends.either() != Some(index) {
            return;
        }
        let pipe = &self.image.pipes[pipe];
        let place = self.arena.words(&[0]);
        let made = [self.numbers.lowest_from(0), self.numbers.lowest_from(0)];
        let flags = CLOSE_ON_EXEC | if pipe.packets { libc::O_DIRECT } else { 0 };
        self.call(libc::SYS_pipe2, [place.into(), flags.into()]);
        if pipe.capacity != PIPE_CAPACITY {
            self.call(libc::SYS_fcntl, [made[1].into(), libc::F_SETPIPE_SZ.into(), u64::from(pipe.capacity).into()]);
        }
        for message in &pipe.content {
            let bytes = self.arena.data(message, 1);
            let args = [made[1].into(), bytes.into(), (message.len() as u64).into()];
            self.script.call(libc::SYS_write, args, Check::Equal(message.len() as i64));
        }
        self.place_ends(made, ends);
    }

    /// Both ends of a socket pair, likewise.
    pub(super) fn pair(&mut self, index: usize, pair: usize) {
        let ends = self.ends(|kind| match kind {
            FileKind::UnixPair { pair: other, end } if *other == pair => Some(*end),
            _ => None,
        });
        if ends.either() != Some(index) {
            return;
        }
        let pair = &self.image.pairs[pair];
        let place = self.arena.words(&[0]);
        let made = [self.numbers.lowest_from(0), self.numbers.lowest_from(0)];
        let kind = pair.kind | CLOSE_ON_EXEC;
        self.call(libc::SYS_socketpair, [libc::AF_UNIX.into(), kind.into(), 0u64.into(), place.into()]);
        // First of both: what waits must fit into the sender's buffer.
        for (socket, options) in made.into_iter().zip(&pair.options) {
            self.options(socket, options);
        }
        for n in 0..2 {
            // What waits at one end was sent by the other. A full buffer is an error, not a wait.
            for message in &pair.queues[n] {
                let bytes = self.arena.data(message, 1);
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                let length = message.len() as u64;
                let args = [made[1 - n].into(), bytes.into(), length.into(), flags.into(), 0u64.into(), 0u64.into()];
                self.script.call(libc::SYS_sendto, args, Check::Equal(message.len() as i64));
            }
        }
        for (socket, shutdown) in made.into_iter().zip(pair.shutdown).filter(|(_, shutdown)| *shutdown != 0) {
            // RCV_SHUTDOWN 1, SEND_SHUTDOWN 2, as the kernel keeps them; `shutdown` takes one less.
            self.call(libc::SYS_shutdown, [socket.into(), u64::from(shutdown - 1).into()]);
        }
        self.place_ends(made, ends);
    }

    fn ends(&self, end_of: impl Fn(&FileKind) -> Option<End>) -> Ends {
        let find = |wanted| self.image.files.iter().position(|file| end_of(&file.kind) == Some(wanted));
        Ends { first: find(End::First), second: find(End::Second) }
    }

    fn place_ends(&mut self, made: [i32; 2], ends: Ends) {
        let file = |index: usize| &self.image.files[index];
        match (ends.first.map(file), ends.second.map(file)) {
            (Some(first), Some(second)) => {
                self.later_flags(made[0], first.flags);
                self.later_flags(made[1], second.flags);
                self.settle_pair(made, [first, second]);
            }
            (Some(only), None) => self.place_only(made[0], made[1], only),
            (None, Some(only)) => self.place_only(made[1], made[0], only),
            (None, None) => {}
        }
    }

    fn place_only(&mut self, made: i32, closed: i32, file: &OpenFile) {
        self.close(closed);
        self.later_flags(made, file.flags);
        self.settle(made, &file.numbers);
    }

    /// Settles two descriptors that exist at once: one might sit where the other belongs.
    fn settle_pair(&mut self, made: [i32; 2], files: [&OpenFile; 2]) {
        let in_place = |n: usize| files[n].numbers.iter().any(|(number, _)| *number == made[n]);
        let crossed = |n: usize| files[1 - n].numbers.iter().any(|(number, _)| *number == made[n]);
        let blocked = |n: usize| crossed(n) || !in_place(n);
        let aside = if blocked(0) || blocked(1) { made.map(|number| self.move_up(number)) } else { made };
        for n in 0..2 {
            self.settle(aside[n], &files[n].numbers);
        }
    }

    pub(super) fn move_up(&mut self, number: i32) -> i32 {
        let up = self.numbers.lowest_from(self.high);
        let args = [number.into(), libc::F_DUPFD_CLOEXEC.into(), self.high.into()];
        self.script.call(libc::SYS_fcntl, args, Check::Equal(i64::from(up)));
        self.close(number);
        up
    }
}
