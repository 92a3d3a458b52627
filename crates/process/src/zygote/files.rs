//! A copy's descriptors as steps.
//!
//! The kernel gives each new descriptor the lowest free number, and a copy begins with none below the transit numbers. So what each step
//! will get is known here (`Numbers`), most files are made right where they belong, and every step checks that it was so.

use std::collections::BTreeSet;

use crate::{
    image::{Backing, End, FileKind, Image, OpenFile, SharedObject, Socket, SocketOption, Stream, TimerValue},
    script::{Arena, Arg, Check, Script},
};

const CLOSE_ON_EXEC: i32 = libc::O_CLOEXEC;
/// `_IOW('T', 0, u64)` of timerfd.
const TFD_IOC_SET_TICKS: u64 = 0x4008_5400;
/// `_IOW('I', 0, s32)` of inotify.
const INOTIFY_IOC_SETNEXTWD: u64 = 0x4004_4900;
/// Flags of an open file that are set after it was made.
const LATER_FLAGS: i32 = libc::O_APPEND | libc::O_NONBLOCK | libc::O_ASYNC | libc::O_NOATIME;
/// Flags with which a path is opened again.
const OPEN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_DIRECTORY
    | libc::O_PATH
    | libc::O_DSYNC
    | libc::O_SYNC
    | libc::O_NOATIME;

/// Numbers in use, as the kernel will see them.
#[derive(Debug)]
struct Numbers(BTreeSet<i32>);

impl Numbers {
    fn lowest_from(&mut self, from: i32) -> i32 {
        let mut number = from;
        while !self.0.insert(number) {
            number += 1;
        }
        number
    }
}

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

/// Adds the steps of descriptors and shared mappings to a copy's script.
pub(super) struct Builder<'a> {
    arena: &'a mut Arena,
    script: &'a mut Script,
    image: &'a Image,
    numbers: Numbers,
    /// First number above everything of the program and in transit.
    high: i32,
    streams: i32,
}

impl<'a> Builder<'a> {
    /// `streams` is the first of three numbers that hold the sandbox's streams; from `control` on everything is in transit.
    pub(super) fn new(
        arena: &'a mut Arena,
        script: &'a mut Script,
        image: &'a Image,
        control: i32,
        streams: i32,
    ) -> Self {
        let high = streams + 3;
        let numbers = Numbers((control..high).collect());
        Self { arena, script, image, numbers, high, streams }
    }

    /// Adds everything.
    pub(super) fn build(mut self) {
        for (index, object) in self.image.objects.iter().enumerate() {
            self.object(index, object);
        }
        self.shared_files();
        for (index, file) in self.image.files.iter().enumerate() {
            self.file(index, file);
        }
        // Sets may watch each other, so registrations follow when all numbers are in place.
        for file in &self.image.files {
            self.registrations(file);
        }
    }

    fn call<const N: usize>(&mut self, nr: i64, args: [Arg; N]) {
        self.script.call(nr, args, Check::Success);
    }

    /// A call that makes one descriptor, at the returned number.
    fn make<const N: usize>(&mut self, nr: i64, args: [Arg; N]) -> i32 {
        let number = self.numbers.lowest_from(0);
        self.script.call(nr, args, Check::Equal(i64::from(number)));
        number
    }

    fn close(&mut self, number: i32) {
        self.call(libc::SYS_close, [number.into()]);
        self.numbers.0.remove(&number);
    }

    /// Moves what was made at `made` to the numbers of its file.
    fn settle(&mut self, made: i32, numbers: &[(i32, bool)]) {
        for (number, close_on_exec) in numbers.iter().filter(|(number, _)| *number != made) {
            let flags = if *close_on_exec { CLOSE_ON_EXEC } else { 0 };
            self.call(libc::SYS_dup3, [made.into(), (*number).into(), flags.into()]);
            self.numbers.0.insert(*number);
        }
        match numbers.iter().find(|(number, _)| *number == made) {
            // Everything is made with close-on-exec.
            Some((_, true)) => {}
            Some((_, false)) => self.call(libc::SYS_fcntl, [made.into(), libc::F_SETFD.into(), 0u64.into()]),
            None => self.close(made),
        }
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

    fn move_up(&mut self, number: i32) -> i32 {
        let up = self.numbers.lowest_from(self.high);
        let args = [number.into(), libc::F_DUPFD_CLOEXEC.into(), self.high.into()];
        self.script.call(libc::SYS_fcntl, args, Check::Equal(i64::from(up)));
        self.close(number);
        up
    }

    fn later_flags(&mut self, number: i32, flags: i32) {
        if flags & LATER_FLAGS != 0 {
            self.call(libc::SYS_fcntl, [number.into(), libc::F_SETFL.into(), (flags & LATER_FLAGS).into()]);
        }
    }

    fn file(&mut self, index: usize, file: &OpenFile) {
        let nonblock = file.flags & libc::O_NONBLOCK;
        let made = match &file.kind {
            FileKind::Stream(stream) => return self.stream(*stream, file),
            FileKind::Pipe { pipe, .. } => return self.pipe(index, *pipe),
            FileKind::UnixPair { pair, .. } => return self.pair(index, *pair),
            // Made with their mappings.
            FileKind::Memfd { .. } => return,
            FileKind::Path { path, offset } => self.path(path, *offset, file.flags),
            FileKind::Fifo { path, content } => self.fifo(path, content, file.flags),
            FileKind::Eventfd { count, semaphore } => self.eventfd(*count, *semaphore, nonblock),
            FileKind::Timerfd { clock, ticks, value } => self.timerfd(*clock, *ticks, value, nonblock),
            FileKind::Signalfd { mask } => {
                let mask = self.arena.words(&[*mask]);
                let flags = CLOSE_ON_EXEC | nonblock;
                self.make(libc::SYS_signalfd4, [(-1).into(), mask.into(), 8u64.into(), flags.into()])
            }
            FileKind::Epoll { .. } => self.make(libc::SYS_epoll_create1, [CLOSE_ON_EXEC.into()]),
            FileKind::Inotify { watches } => {
                let made = self.make(libc::SYS_inotify_init1, [(CLOSE_ON_EXEC | nonblock).into()]);
                for watch in watches {
                    self.call(libc::SYS_ioctl, [made.into(), INOTIFY_IOC_SETNEXTWD.into(), watch.wd.into()]);
                    let path = self.arena.text(&watch.path);
                    let args = [made.into(), path.into(), u64::from(watch.mask).into()];
                    self.script.call(libc::SYS_inotify_add_watch, args, Check::Equal(i64::from(watch.wd)));
                }
                made
            }
            FileKind::Socket(socket) => self.socket(socket, file.flags),
            FileKind::ResetConnection { family } => self.reset_connection(*family, file.flags),
        };
        self.settle(made, &file.numbers);
    }

    fn stream(&mut self, stream: Stream, file: &OpenFile) {
        for (number, close_on_exec) in &file.numbers {
            let flags = if *close_on_exec { CLOSE_ON_EXEC } else { 0 };
            self.call(libc::SYS_dup3, [(self.streams + stream as i32).into(), (*number).into(), flags.into()]);
            self.numbers.0.insert(*number);
        }
    }

    /// Opens a path of the sandbox's root filesystem, which is this process's own root; follows no link.
    fn open(&mut self, path: &[u8], flags: i32) -> i32 {
        let resolve = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
        let how = self.arena.words(&[(flags | CLOSE_ON_EXEC) as u64, 0, resolve]);
        let path = self.arena.text(path);
        self.make(libc::SYS_openat2, [libc::AT_FDCWD.into(), path.into(), how.into(), 24u64.into()])
    }

    fn path(&mut self, path: &[u8], offset: u64, flags: i32) -> i32 {
        let made = self.open(path, flags & OPEN_FLAGS);
        if offset != 0 {
            self.call(libc::SYS_lseek, [made.into(), offset.into(), libc::SEEK_SET.into()]);
        }
        made
    }

    fn fifo(&mut self, path: &[u8], content: &[u8], flags: i32) -> i32 {
        // A reader and writer at once never waits for a peer, and keeps the FIFO alive until the real one is open.
        let keeper = self.open(path, libc::O_RDWR | libc::O_NONBLOCK);
        let keeper = self.move_up(keeper);
        let made = self.open(path, flags & OPEN_FLAGS);
        if !content.is_empty() {
            let bytes = self.arena.data(content, 1);
            let args = [keeper.into(), bytes.into(), (content.len() as u64).into()];
            self.script.call(libc::SYS_write, args, Check::Equal(content.len() as i64));
        }
        self.close(keeper);
        made
    }

    /// Both ends of a pipe, when the first of its files is met. An end that no file has was closed in the source as well.
    fn pipe(&mut self, index: usize, pipe: usize) {
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
    fn pair(&mut self, index: usize, pair: usize) {
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
        for n in 0..2 {
            self.options(made[n], &pair.options[n]);
            // What waits at one end was sent by the other. A full buffer is an error, not a wait.
            for message in &pair.queues[n] {
                let bytes = self.arena.data(message, 1);
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                let length = message.len() as u64;
                let args = [made[1 - n].into(), bytes.into(), length.into(), flags.into(), 0u64.into(), 0u64.into()];
                self.script.call(libc::SYS_sendto, args, Check::Equal(message.len() as i64));
            }
        }
        for n in 0..2 {
            // RCV_SHUTDOWN 1, SEND_SHUTDOWN 2, as the kernel keeps them; `shutdown` takes one less.
            if pair.shutdown[n] != 0 {
                self.call(libc::SYS_shutdown, [made[n].into(), u64::from(pair.shutdown[n] - 1).into()]);
            }
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

    fn options(&mut self, socket: i32, options: &[SocketOption]) {
        for (level, name, value) in options {
            let place = self.arena.words(&[*value as u32 as u64]);
            self.call(
                libc::SYS_setsockopt,
                [socket.into(), (*level).into(), (*name).into(), place.into(), 4u64.into()],
            );
        }
    }

    fn eventfd(&mut self, count: u64, semaphore: bool, nonblock: i32) -> i32 {
        let flags = CLOSE_ON_EXEC | nonblock | if semaphore { libc::EFD_SEMAPHORE } else { 0 };
        let made = self.make(libc::SYS_eventfd2, [0u64.into(), flags.into()]);
        if count != 0 {
            let place = self.arena.words(&[count]);
            self.call(libc::SYS_write, [made.into(), place.into(), 8u64.into()]);
        }
        made
    }

    fn timerfd(&mut self, clock: i32, ticks: u64, value: &TimerValue, nonblock: i32) -> i32 {
        let made = self.make(libc::SYS_timerfd_create, [clock.into(), (CLOSE_ON_EXEC | nonblock).into()]);
        // The kernel shows what remains, also of absolute timers: relative from here on.
        let TimerValue { interval, mut remaining } = *value;
        if remaining == (0, 0) && interval != (0, 0) {
            // A periodic timer that fired and was not read yet: the kernel goes on counting when it is read.
            remaining = (0, 1);
        }
        let place = self.arena.words(&[interval.0, interval.1, remaining.0, remaining.1]);
        self.call(libc::SYS_timerfd_settime, [made.into(), 0u64.into(), place.into(), 0u64.into()]);
        if ticks != 0 {
            let place = self.arena.words(&[ticks]);
            self.call(libc::SYS_ioctl, [made.into(), TFD_IOC_SET_TICKS.into(), place.into()]);
        }
        made
    }

    fn socket(&mut self, socket: &Socket, flags: i32) -> i32 {
        let kind = socket.kind | CLOSE_ON_EXEC;
        let made = self.make(libc::SYS_socket, [socket.family.into(), kind.into(), socket.protocol.into()]);
        self.options(made, &socket.options);
        if let Some(address) = &socket.address {
            self.bind(made, address, socket);
        }
        if let Some(backlog) = socket.listening {
            self.call(libc::SYS_listen, [made.into(), u64::from(backlog).into()]);
        }
        if let Some(peer) = &socket.peer {
            let place = self.arena.data(peer, 8);
            self.call(libc::SYS_connect, [made.into(), place.into(), (peer.len() as u64).into()]);
        }
        self.later_flags(made, flags);
        made
    }

    fn bind(&mut self, made: i32, address: &[u8], socket: &Socket) {
        let place = self.arena.data(address, 8);
        let path = socket.path.as_ref().map(|(path, ..)| self.arena.text(path));
        if let Some(path) = path {
            // The root filesystem has the source's socket file, to which nothing listens any more.
            self.script.call(libc::SYS_unlinkat, [libc::AT_FDCWD.into(), path.into(), 0u64.into()], Check::Ignore);
        }
        self.call(libc::SYS_bind, [made.into(), place.into(), (address.len() as u64).into()]);
        if let (Some(path), Some((_, uid, gid, mode))) = (path, &socket.path) {
            let owner = [
                libc::AT_FDCWD.into(),
                path.into(),
                u64::from(*uid).into(),
                u64::from(*gid).into(),
                libc::AT_SYMLINK_NOFOLLOW.into(),
            ];
            self.call(libc::SYS_fchownat, owner);
            self.call(libc::SYS_fchmodat, [libc::AT_FDCWD.into(), path.into(), u64::from(*mode).into()]);
        }
    }

    /// A connection whose peer has reset it: made to a listener of our own on loopback, which closes it with no lingering.
    fn reset_connection(&mut self, family: i32, flags: i32) -> i32 {
        let address: Vec<u8> = if family == libc::AF_INET6 {
            let mut address = vec![0u8; 28];
            (address[0], address[23]) = (libc::AF_INET6 as u8, 1);
            address
        } else {
            vec![libc::AF_INET as u8, 0, 0, 0, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
        };
        let place = self.arena.data(&address, 8);
        let length = self.arena.words(&[address.len() as u64]);
        let no_linger = self.arena.words(&[1]); // struct linger { on: 1, seconds: 0 }
        let kind = libc::SOCK_STREAM | CLOSE_ON_EXEC;
        let bytes = address.len() as u64;
        let made = self.make(libc::SYS_socket, [family.into(), kind.into(), 0u64.into()]);
        let listener = self.make(libc::SYS_socket, [family.into(), kind.into(), 0u64.into()]);
        self.call(libc::SYS_bind, [listener.into(), place.into(), bytes.into()]);
        self.call(libc::SYS_listen, [listener.into(), 1u64.into()]);
        self.call(libc::SYS_getsockname, [listener.into(), place.into(), length.into()]);
        self.call(libc::SYS_connect, [made.into(), place.into(), bytes.into()]);
        let accepted = self.make(libc::SYS_accept4, [listener.into(), 0u64.into(), 0u64.into(), CLOSE_ON_EXEC.into()]);
        let linger = [accepted.into(), libc::SOL_SOCKET.into(), libc::SO_LINGER.into(), no_linger.into(), 8u64.into()];
        self.call(libc::SYS_setsockopt, linger);
        self.close(accepted);
        self.close(listener);
        self.later_flags(made, flags);
        made
    }

    fn registrations(&mut self, file: &OpenFile) {
        let (FileKind::Epoll { entries }, Some((set, _))) = (&file.kind, file.numbers.first()) else { return };
        for entry in entries {
            let mut event = entry.events.to_le_bytes().to_vec();
            event.extend(entry.data.to_le_bytes()); // packed: 12 bytes
            let event = self.arena.data(&event, 8);
            let args = [(*set).into(), libc::EPOLL_CTL_ADD.into(), entry.fd.into(), event.into()];
            self.call(libc::SYS_epoll_ctl, args);
        }
    }

    /// An object becomes a memfd of the copy's own, with the content it had; its mappings and descriptors follow.
    fn object(&mut self, index: usize, object: &SharedObject) {
        let name = self.arena.text(&object.name[..object.name.len().min(200)]);
        let flags = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as u64;
        let made = self.make(libc::SYS_memfd_create, [name.into(), flags.into()]);
        self.call(libc::SYS_ftruncate, [made.into(), object.size.into()]);
        for (offset, bytes) in &object.content {
            let place = self.arena.data(bytes, 8);
            let args = [made.into(), place.into(), (bytes.len() as u64).into(), (*offset).into()];
            self.script.call(libc::SYS_pwrite64, args, Check::Equal(bytes.len() as i64));
        }
        for mapping in &self.image.mappings {
            if let Backing::Object { object, offset } = &mapping.backing
                && *object == index
            {
                self.shared_mapping(mapping.range.start, mapping.range.end, mapping.protection, made, *offset);
            }
        }
        // Programs may have mapped before they sealed.
        const F_SEAL_SEAL: u32 = 1;
        if object.seals & !F_SEAL_SEAL != 0 || (object.seals == F_SEAL_SEAL && object.size > 0) {
            self.call(libc::SYS_fcntl, [made.into(), libc::F_ADD_SEALS.into(), u64::from(object.seals).into()]);
        }
        let mut made = Some(made);
        for file in &self.image.files {
            let FileKind::Memfd { object, offset } = file.kind else { continue };
            if object != index {
                continue;
            }
            let number = made.take().unwrap_or_else(|| {
                let first = self.first_number(index);
                self.open_again(first, file.flags)
            });
            if offset != 0 {
                self.call(libc::SYS_lseek, [number.into(), offset.into(), libc::SEEK_SET.into()]);
            }
            self.later_flags(number, file.flags);
            self.settle(number, &file.numbers);
        }
        if let Some(made) = made {
            self.close(made);
        }
    }

    fn first_number(&self, object: usize) -> i32 {
        let of_object =
            |file: &&OpenFile| matches!(file.kind, FileKind::Memfd { object: other, .. } if other == object);
        self.image.files.iter().find(of_object).and_then(|file| file.numbers.first()).map_or(0, |(number, _)| *number)
    }

    /// A second open file of the object at descriptor `number`.
    fn open_again(&mut self, number: i32, flags: i32) -> i32 {
        let path = self.arena.text(format!("/proc/self/fd/{number}").as_bytes());
        let flags = (flags & libc::O_ACCMODE) | CLOSE_ON_EXEC;
        self.make(libc::SYS_openat, [libc::AT_FDCWD.into(), path.into(), flags.into()])
    }

    fn shared_mapping(&mut self, start: u64, end: u64, protection: u64, file: i32, offset: u64) {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
        let args = [start.into(), (end - start).into(), protection.into(), flags.into(), file.into(), offset.into()];
        self.script.call(libc::SYS_mmap, args, Check::Equal(start as i64));
    }

    /// Shared views of files of the root filesystem: of the copy's own file.
    fn shared_files(&mut self) {
        for mapping in &self.image.mappings {
            if let Backing::SharedFile { path, offset, writable } = &mapping.backing {
                let made = self.open(path, if *writable { libc::O_RDWR } else { libc::O_RDONLY });
                self.shared_mapping(mapping.range.start, mapping.range.end, mapping.protection, made, *offset);
                self.close(made);
            }
        }
    }
}
