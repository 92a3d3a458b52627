//! Pipes and socket pairs: two descriptors that exist at once.
//!
//! Files that wait in a pair's queues (`SCM_RIGHTS`) are sent when all is made.

use super::{Builder, CLOSE_ON_EXEC, Made};
use crate::{
    image::{End, FileKind, OpenFile, Passed, SocketName},
    script::Check,
};

/// Size of a new pipe, in bytes.
const PIPE_CAPACITY: u32 = 65_536;

/// The files that are the two ends of a pair, by index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
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

/// Ends whose queues are filled when all files that wait there are made.
#[derive(Debug, Clone, Copy)]
pub(super) struct LateQueues {
    pair: usize,
    made: [i32; 2],
    /// The end that no file of the program has.
    only_for_this: Option<i32>,
}

impl<'a> Builder<'a> {
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

    /// Both ends of a socket pair, likewise, if neither has a name.
    pub(super) fn pair(&mut self, index: usize, pair: usize) {
        let ends = self.socket_ends(pair);
        if ends.either() != Some(index) || self.names(ends) != [None, None] {
            return;
        }
        let made = self.socketpair(self.image.pairs[pair].kind);
        self.fill_pair(made, pair, ends);
    }

    /// The same of a pair with a name at one end; the file at `index` is the pair's first. A connection gets its names by being made as it was:
    /// from one end to a listener, which accepts the other end.
    pub(super) fn named_pair(&mut self, index: usize) {
        let FileKind::UnixPair { pair, .. } = self.image.files[index].kind else { return };
        let ends = self.socket_ends(pair);
        let names = self.names(ends);
        if ends.either() != Some(index) || names == [None, None] {
            return;
        }
        let kind = self.image.pairs[pair].kind;
        let made = match names {
            [Some(first), Some(second)] if kind == libc::SOCK_DGRAM && self.is_sent_to([first, second]) => {
                let made = self.bound_pair([first, second]);
                self.pair_options(made, pair, ends);
                self.place_ends(made, ends);
                self.open_pairs.push((pair, ends));
                return;
            }
            [Some(first), Some(second)] if kind == libc::SOCK_DGRAM => self.datagram_pair([first, second]),
            _ if kind == libc::SOCK_DGRAM => {
                let made = self.socketpair(kind);
                for (made, name) in made.into_iter().zip(names) {
                    name.into_iter().for_each(|name| self.bind_name(made, name));
                }
                made
            }
            _ => self.connection(kind, names),
        };
        self.fill_pair(made, pair, ends);
    }

    fn socketpair(&mut self, kind: i32) -> [i32; 2] {
        let place = self.arena.words(&[0]);
        let made = [self.numbers.lowest_from(0), self.numbers.lowest_from(0)];
        let kind = kind | CLOSE_ON_EXEC;
        self.call(libc::SYS_socketpair, [libc::AF_UNIX.into(), kind.into(), 0u64.into(), place.into()]);
        made
    }

    /// Options, queues and directions that are shut down; then the ends go where they belong.
    fn fill_pair(&mut self, made: [i32; 2], pair: usize, ends: Ends) {
        // First of both: what waits must fit into the sender's buffer.
        self.pair_options(made, pair, ends);
        if !self.has_passed(pair) {
            self.pair_queues(made, pair);
            return self.place_ends(made, ends);
        }
        let image = self.image;
        let missing = [ends.first, ends.second].iter().position(Option::is_none);
        let own =
            |end: Option<usize>| end.and_then(|file| image.files[file].numbers.first()).map(|(number, _)| *number);
        let mut placed = [own(ends.first), own(ends.second)].map(|number| number.unwrap_or(-1));
        match missing {
            None => self.place_ends(made, ends),
            Some(missing) => {
                placed[missing] = self.move_up(made[missing]);
                let file = [ends.first, ends.second][1 - missing].map(|file| &image.files[file]);
                file.into_iter().for_each(|file| self.place(made[1 - missing], file));
            }
        }
        self.late_queues.push(LateQueues { pair, made: placed, only_for_this: missing.map(|end| placed[end]) });
    }

    /// Sends what files wait with.
    pub(in crate::start) fn send_passed(mut self) -> Made {
        let image = self.image;
        for LateQueues { pair, made, only_for_this } in std::mem::take(&mut self.late_queues) {
            self.pair_queues(made, pair);
            only_for_this.into_iter().for_each(|number| self.close(number));
            for (index, state) in &image.added.sockets {
                if let FileKind::UnixPair { pair: other, end } = image.files[*index].kind
                    && other == pair
                {
                    self.complete_socket(made[end as usize], state);
                }
            }
        }
        self.made()
    }

    /// Whether the file at this place is an end whose queue is filled later.
    pub(super) fn is_late(&self, index: usize) -> bool {
        let of = |late: &LateQueues| matches!(self.image.files[index].kind, FileKind::UnixPair { pair, .. } if pair == late.pair);
        self.late_queues.iter().any(of)
    }

    fn has_passed(&self, pair: usize) -> bool {
        self.image.added.passed.iter().any(|passed| passed.pair == pair)
    }

    fn pair_options(&mut self, made: [i32; 2], pair: usize, ends: Ends) {
        let pair = &self.image.pairs[pair];
        for (socket, (options, file)) in made.into_iter().zip(pair.options.iter().zip([ends.first, ends.second])) {
            self.integer_options(socket, options);
            file.into_iter().for_each(|file| self.options(socket, file, Check::Success));
        }
    }

    fn pair_queues(&mut self, made: [i32; 2], index: usize) {
        let image = self.image;
        let pair = &image.pairs[index];
        for n in 0..2 {
            // What waits at one end was sent by the other. A full buffer is an error, not a wait.
            for (at, message) in pair.queues[n].iter().enumerate() {
                let end = [End::First, End::Second][n];
                let is_it = |passed: &&Passed| (passed.pair, passed.end, passed.message) == (index, end, at);
                if let Some(passed) = image.added.passed.iter().find(is_it) {
                    self.send_files(made[1 - n], message, &passed.files);
                    continue;
                }
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
    }

    /// Sends a message, and descriptors of these files with it.
    fn send_files(&mut self, by: i32, message: &[u8], files: &[usize]) {
        let image = self.image;
        let numbers = files.iter().map(|file| image.files[*file].numbers.first().map_or(-1, |(number, _)| *number));
        // struct cmsghdr: length, level and type; the descriptors follow.
        let rights = (libc::SOL_SOCKET as u64) | (libc::SCM_RIGHTS as u64) << 32;
        let length = 16 + size_of::<i32>() * files.len();
        let head = [length as u64, rights].into_iter().flat_map(u64::to_ne_bytes);
        let control: Vec<u8> = head.chain(numbers.flat_map(i32::to_ne_bytes)).collect();
        let control = self.arena.data(&control, 8);
        let bytes = self.arena.data(message, 1);
        // struct iovec, and struct msghdr: name, vector, control, flags.
        let vector = self.arena.words(&[bytes, message.len() as u64]);
        let header = self.arena.words(&[0, 0, vector, 1, control, length as u64, 0]);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let args = [by.into(), header.into(), flags.into()];
        self.script.call(libc::SYS_sendmsg, args, Check::Equal(message.len() as i64));
    }

    fn socket_ends(&self, pair: usize) -> Ends {
        self.ends(|kind| match kind {
            FileKind::UnixPair { pair: other, end } if *other == pair => Some(*end),
            _ => None,
        })
    }

    fn names(&self, ends: Ends) -> [Option<&'a SocketName>; 2] {
        let image = self.image;
        [ends.first, ends.second].map(|file| image.added.socket(file?)?.name.as_ref())
    }

    /// Two datagram sockets that send to each other.
    fn datagram_pair(&mut self, names: [&SocketName; 2]) -> [i32; 2] {
        let made = self.bound_pair(names);
        self.join(made, names);
        made
    }

    /// Joins the pairs that were left open until the sockets outside that send to them are connected: an end that has a peer can become the peer
    /// of no other.
    pub(super) fn join_pairs(&mut self) {
        let image = self.image;
        let number = |file: Option<usize>| {
            file.and_then(|file| image.files[file].numbers.first()).map_or(-1, |(number, _)| *number)
        };
        for (pair, ends) in std::mem::take(&mut self.open_pairs) {
            let made = [ends.first, ends.second].map(number);
            if let [Some(first), Some(second)] = self.names(ends) {
                self.join(made, [first, second]);
                match self.has_passed(pair) {
                    true => self.late_queues.push(LateQueues { pair, made, only_for_this: None }),
                    false => self.pair_queues(made, pair),
                }
            }
        }
    }

    /// Whether a socket that is no end of a pair sends to one of these.
    fn is_sent_to(&self, names: [&SocketName; 2]) -> bool {
        self.image.files.iter().any(|file| match &file.kind {
            FileKind::Socket(socket) if (socket.family, socket.kind) == (libc::AF_UNIX, libc::SOCK_DGRAM) => {
                names.iter().any(|name| socket.peer.as_ref() == Some(&name.address))
            }
            _ => false,
        })
    }

    fn bound_pair(&mut self, names: [&SocketName; 2]) -> [i32; 2] {
        let made = [self.make_socket(libc::SOCK_DGRAM), self.make_socket(libc::SOCK_DGRAM)];
        for (made, name) in made.into_iter().zip(names) {
            self.bind(made, &name.address, name.path.as_ref());
        }
        made
    }

    fn join(&mut self, made: [i32; 2], names: [&SocketName; 2]) {
        for n in 0..2 {
            let address = &names[1 - n].address;
            let place = self.arena.data(address, 8);
            self.call(libc::SYS_connect, [made[n].into(), place.into(), (address.len() as u64).into()]);
        }
        names.into_iter().for_each(|name| self.remove_name(name));
    }

    /// A connection to the listener that has the name of one of the ends, or to one that is made for this.
    fn connection(&mut self, kind: i32, names: [Option<&SocketName>; 2]) -> [i32; 2] {
        let listener = |name: Option<&SocketName>| name.and_then(|name| self.listener(kind, name));
        let [first, second] = names.map(listener);
        let accepted = usize::from(first.is_none() && (second.is_some() || names[0].is_none()));
        let own = self.make_socket(kind);
        names[1 - accepted].into_iter().for_each(|name| self.bind_name(own, name));
        let Some(name) = names[accepted] else { return [own, own] };
        let listener = first.or(second).unwrap_or_else(|| {
            let made = self.make_socket(kind);
            self.bind(made, &name.address, name.path.as_ref());
            self.call(libc::SYS_listen, [made.into(), 1u64.into()]);
            made
        });
        let place = self.arena.data(&name.address, 8);
        self.call(libc::SYS_connect, [own.into(), place.into(), (name.address.len() as u64).into()]);
        let other = self.make(libc::SYS_accept4, [listener.into(), 0u64.into(), 0u64.into(), CLOSE_ON_EXEC.into()]);
        if first.or(second).is_none() {
            self.remove_name(name);
            self.close(listener);
        }
        if accepted == 0 { [other, own] } else { [own, other] }
    }

    fn make_socket(&mut self, kind: i32) -> i32 {
        let kind = kind | CLOSE_ON_EXEC;
        self.make(libc::SYS_socket, [libc::AF_UNIX.into(), kind.into(), 0u64.into()])
    }

    /// The descriptor of the program's listener of this name.
    fn listener(&self, kind: i32, name: &SocketName) -> Option<i32> {
        let is_it = |file: &&OpenFile| match &file.kind {
            FileKind::Socket(socket) => {
                let listens = socket.listening.is_some() && (socket.family, socket.kind) == (libc::AF_UNIX, kind);
                listens && socket.address.as_ref() == Some(&name.address)
            }
            _ => false,
        };
        Some(self.image.files.iter().find(is_it)?.numbers.first()?.0)
    }

    fn bind_name(&mut self, made: i32, name: &SocketName) {
        self.bind(made, &name.address, name.path.as_ref());
        self.remove_name(name);
    }

    /// Removes the file of a name that had none.
    fn remove_name(&mut self, name: &SocketName) {
        let is_path = name.address.get(2).is_some_and(|first| *first != 0);
        if is_path && name.path.is_none() {
            let path = self.arena.text(name.address[2..].split(|byte| *byte == 0).next().unwrap_or_default());
            self.call(libc::SYS_unlinkat, [libc::AT_FDCWD.into(), path.into(), 0u64.into()]);
        }
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
        self.place(made, file);
    }

    fn place(&mut self, made: i32, file: &OpenFile) {
        self.later_flags(made, file.flags);
        self.settle(made, &file.numbers);
    }

    /// Settles two descriptors that exist at once: one might sit where the other belongs.
    pub(super) fn settle_pair(&mut self, made: [i32; 2], files: [&OpenFile; 2]) {
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
