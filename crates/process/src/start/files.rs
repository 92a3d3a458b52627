//! A copy's descriptors as steps.
//!
//! The kernel gives each new descriptor the lowest free number, and a copy begins with none below the transit numbers. So the number that
//! each step gets is known here (`Numbers`). Most files are made at their own number, and every step checks that it got the expected one.

mod binding;
mod connections;
mod directories;
mod modes;
mod objects;
mod pairs;
mod processes;
mod registrations;
mod sockets;

use std::collections::{BTreeSet, HashMap};

use sys::remote::Range;

use crate::{
    image::{
        Backing, FileKind, FileLock, Kin, LockKind, Member, OpenFile, ProgramImage, Stream, TimerValue, Tree,
        WallTimer, wall_timer,
    },
    script::{Arena, Arg, Check, Script},
    start::{Transit, memory_files},
};

/// Size of `struct open_how`.
const HOW_BYTES: u64 = 24;
const CLOSE_ON_EXEC: i32 = libc::O_CLOEXEC;
/// `_IOW('T', 0, u64)` of timerfd.
const TFD_IOC_SET_TICKS: u64 = 0x4008_5400;
/// `_IOW('I', 0, s32)` of inotify.
const INOTIFY_IOC_SETNEXTWD: u64 = 0x4004_4900;
/// Flags of an open file that are set after it was made.
const LATER_FLAGS: i32 = libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME;
/// Flags with which a path is opened again.
const OPEN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_PATH
    | libc::O_DSYNC
    | libc::O_DIRECT
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

/// The numbers by which a process hands down what it has made.
fn handed_down(member: &Member, from: i32) -> impl Iterator<Item = i32> {
    let numbers = member.image.files.iter().flat_map(|file| &file.numbers).map(|(number, _)| *number);
    let objects = member.kin.hands_down.iter().map(|(_, number)| *number);
    numbers.chain(objects).filter(move |number| *number >= from)
}

/// Adds the steps of descriptors and shared mappings to the script of one process: first those that make them, then, when its children have been
/// cloned, those for which all must be in place.
pub(super) struct Builder<'a> {
    arena: &'a mut Arena,
    script: &'a mut Script,
    image: &'a ProgramImage,
    numbers: Numbers,
    /// First number above everything of the program and in transit.
    high: i32,
    streams: i32,
    /// What runs against a clock or sends signals, for the end of the start.
    timers: Script,
    /// Of the internet sockets that are bound, by protocol and port.
    crowds: HashMap<binding::Port, binding::Crowd>,
    /// Pairs whose ends do not have each other yet.
    open_pairs: Vec<(usize, pairs::Ends)>,
    /// Pairs at which files wait, which must be there first.
    late_queues: Vec<pairs::LateQueues>,
    /// Room for a `struct stat`, and a word that is always 0.
    status: u64,
}

/// What the second part has to know of the first.
pub(super) struct Made {
    numbers: Numbers,
    timers: Script,
    late_queues: Vec<pairs::LateQueues>,
    status: u64,
}

impl<'a> Builder<'a> {
    /// The numbers of the process at place `at` are free. Those in transit are not, nor what its ancestors hand down.
    pub(super) fn new(
        arena: &'a mut Arena,
        script: &'a mut Script,
        tree: &'a Tree,
        at: usize,
        transit: Transit,
    ) -> Self {
        let mut numbers = Numbers((transit.control..transit.end()).collect());
        let kin = &tree.members[at].kin;
        if at != 0 {
            let above = tree.lineage(kin.parent);
            numbers.0.extend(above.flat_map(|member| handed_down(member, tree.handed_from)));
        }
        let status = arena.words(&[0; modes::WORDS]);
        let made = Made { numbers, timers: Script::default(), late_queues: Vec::new(), status };
        Self::resume(arena, script, &tree.members[at].image, transit, made)
    }

    /// For the second part.
    pub(super) fn resume(
        arena: &'a mut Arena,
        script: &'a mut Script,
        image: &'a ProgramImage,
        transit: Transit,
        made: Made,
    ) -> Self {
        let Made { numbers, timers, late_queues, status } = made;
        let (high, streams) = (transit.end(), transit.streams());
        let (crowds, open_pairs) = (binding::crowds(image), Vec::new());
        Self { arena, script, image, numbers, high, streams, timers, crowds, open_pairs, late_queues, status }
    }

    /// Makes everything that is its own, and takes what was handed down.
    pub(super) fn make_all(mut self, kin: &Kin) -> Made {
        self.inherit(kin);
        for (index, object) in self.image.objects.iter().enumerate() {
            let handed = kin.hands_down.iter().find(|(place, _)| *place == index).map(|(_, number)| *number);
            self.object(index, object, handed);
        }
        self.shared_files();
        for (index, file) in self.image.files.iter().enumerate() {
            self.file(index, file);
        }
        // Of these some are accepted by a listener that is there by now.
        for index in 0..self.image.files.len() {
            self.named_pair(index);
        }
        self.complete_sockets();
        self.made()
    }

    fn made(self) -> Made {
        Made { numbers: self.numbers, timers: self.timers, late_queues: self.late_queues, status: self.status }
    }

    /// What was handed down gets the numbers of its own descriptors, and is mapped.
    fn inherit(&mut self, kin: &Kin) {
        for (handed, numbers) in &kin.inherited {
            for (number, close_on_exec) in numbers {
                let flags = if *close_on_exec { CLOSE_ON_EXEC } else { 0 };
                self.call(libc::SYS_dup3, [(*handed).into(), (*number).into(), flags.into()]);
                self.numbers.0.insert(*number);
            }
        }
        for mapping in &self.image.mappings {
            if let Backing::Handed { number, offset } = mapping.backing {
                let Range { start, end } = mapping.range;
                self.shared_mapping(start, end, mapping.protection, number, offset);
            }
        }
    }

    /// Adds what needs all to be in place; gives the steps that arm timers. `spare`: a number that no process has, if there are several.
    pub(super) fn complete(mut self, spare: Option<i32>) -> Script {
        self.pidfds(spare);
        // Sets may watch each other, so registrations follow when all numbers are in place.
        for (index, file) in self.image.files.iter().enumerate() {
            self.registrations(index, file);
        }
        memory_files::finish(self.arena, self.script, self.image);
        // No watch sees how the copy is made.
        for file in &self.image.files {
            self.watches(file);
        }
        // Closing any descriptor of a file ends the process's locks on it: nothing is closed from here on.
        for lock in &self.image.locks {
            self.lock(lock);
        }
        for (index, owner) in &self.image.added.owners {
            self.owner(&self.image.files[*index], *owner);
        }
        for file in self.image.files.iter().filter(|file| file.flags & libc::O_ASYNC != 0) {
            self.signals(file);
        }
        self.timers
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
            // Made when all that is bound is there.
            FileKind::Connection { .. } => return,
            // Made when its children are there.
            FileKind::Pidfd { .. } => return,
            // Made with their mappings.
            FileKind::Memfd { .. } => return,
            FileKind::Path { path, offset } => self.path(path, *offset, file.flags),
            FileKind::Fifo { path, content } => self.fifo(path, content, file.flags),
            FileKind::Eventfd { count, semaphore } => self.eventfd(*count, *semaphore, nonblock),
            FileKind::Timerfd { clock, ticks, value } => {
                if let Some((number, _)) = file.numbers.first() {
                    self.arm(*number, *ticks, value);
                }
                self.make(libc::SYS_timerfd_create, [(*clock).into(), (CLOSE_ON_EXEC | nonblock).into()])
            }
            FileKind::Signalfd { mask } => {
                let mask = self.arena.words(&[*mask]);
                let flags = CLOSE_ON_EXEC | nonblock;
                self.make(libc::SYS_signalfd4, [(-1).into(), mask.into(), 8u64.into(), flags.into()])
            }
            FileKind::Epoll { .. } => self.make(libc::SYS_epoll_create1, [CLOSE_ON_EXEC.into()]),
            FileKind::Inotify { .. } => self.make(libc::SYS_inotify_init1, [(CLOSE_ON_EXEC | nonblock).into()]),
            FileKind::GoneDirectory { path, mode } => self.gone_directory(path, *mode, file.flags),
            FileKind::Socket(socket) => self.socket(index, socket, file.flags),
            FileKind::ResetConnection { family } => self.reset_connection(index, *family, file.flags),
        };
        self.settle(made, &file.numbers);
    }

    fn stream(&mut self, stream: Stream, file: &OpenFile) {
        for (number, close_on_exec) in &file.numbers {
            let flags = if *close_on_exec { CLOSE_ON_EXEC } else { 0 };
            self.call(libc::SYS_dup3, [(self.streams + stream.number() as i32).into(), (*number).into(), flags.into()]);
            self.numbers.0.insert(*number);
        }
    }

    /// Opens a path of the sandbox's root filesystem, which is this process's own root; follows no link.
    fn open(&mut self, path: &[u8], flags: i32) -> i32 {
        let resolve = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
        let how = self.arena.words(&[(flags | CLOSE_ON_EXEC) as u64, 0, resolve]);
        let path = self.arena.text(path);
        // By the program's own user what a mode forbids is refused with EACCES.
        let forbidden = (flags & libc::O_PATH == 0).then(|| self.open_forbidden(path, flags, how));
        let made = self.make(libc::SYS_openat2, [libc::AT_FDCWD.into(), path.into(), how.into(), HOW_BYTES.into()]);
        forbidden.into_iter().for_each(|over| self.script.land(over));
        made
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

    fn eventfd(&mut self, count: u64, semaphore: bool, nonblock: i32) -> i32 {
        let flags = CLOSE_ON_EXEC | nonblock | if semaphore { libc::EFD_SEMAPHORE } else { 0 };
        let made = self.make(libc::SYS_eventfd2, [0u64.into(), flags.into()]);
        if count != 0 {
            let place = self.arena.words(&[count]);
            self.call(libc::SYS_write, [made.into(), place.into(), 8u64.into()]);
        }
        made
    }

    /// Arms a timer that will have descriptor `number`.
    fn arm(&mut self, number: i32, ticks: u64, value: &TimerValue) {
        let TimerValue { interval, remaining } = *value;
        let waits_for_day = wall_timer(&self.image.wall_timers.descriptors, number).is_some();
        if (*value, ticks) == (TimerValue::default(), 0) && !waits_for_day {
            return;
        }
        let (flags, time) = match wall_timer(&self.image.wall_timers.descriptors, number) {
            Some(WallTimer { due, cancels: true, .. }) => {
                (libc::TFD_TIMER_ABSTIME | libc::TFD_TIMER_CANCEL_ON_SET, *due)
            }
            Some(WallTimer { due, .. }) => (libc::TFD_TIMER_ABSTIME, *due),
            // A periodic timer that fired and was not read yet: the kernel goes on counting when it is read.
            None if remaining == (0, 0) && interval != (0, 0) => (0, (0, 1)),
            // The kernel shows what remains, also of times of a clock that goes on in the copy from where it was.
            None => (0, remaining),
        };
        let place = self.arena.words(&[interval.0, interval.1, time.0, time.1]);
        let args = [number.into(), flags.into(), place.into(), 0u64.into()];
        self.timers.call(libc::SYS_timerfd_settime, args, Check::Success);
        if ticks != 0 {
            let place = self.arena.words(&[ticks]);
            let args = [number.into(), TFD_IOC_SET_TICKS.into(), place.into()];
            self.timers.call(libc::SYS_ioctl, args, Check::Success);
        }
    }

    /// Takes a lock. The file is the copy's own, so no other process has the lock. If one has, because the file is in a shared volume, the start
    /// fails.
    fn lock(&mut self, lock: &FileLock) {
        let command = match lock.kind {
            LockKind::OpenFile => {
                let operation = libc::LOCK_NB | if lock.exclusive { libc::LOCK_EX } else { libc::LOCK_SH };
                return self.call(libc::SYS_flock, [lock.fd.into(), operation.into()]);
            }
            LockKind::OpenFileRange => libc::F_OFD_SETLK,
            LockKind::Process => libc::F_SETLK,
        };
        // struct flock: type and SEEK_SET, start, length, pid
        let access = if lock.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
        let what = self.arena.words(&[access as u64, lock.start, lock.length, 0]);
        self.call(libc::SYS_fcntl, [lock.fd.into(), command.into(), what.into()]);
    }
}
