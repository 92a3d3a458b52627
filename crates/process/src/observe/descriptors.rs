//! Descriptors of the source's processes, read from `/proc/PID/fdinfo` and through duplicates (`pidfd_getfd`). A duplicate shares the open file
//! with the program, so nothing is done to it but looking.
//!
//! All processes are read together, because they may share open files, and have the two ends of one pipe. [`table`] has the numbers by which
//! descriptors are called here.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt},
    },
};

use base::limits;
use procfs::Fields;
use sys::{remote, sockets};

use crate::{
    error::{Context, Error},
    image::{
        End, FileKind, FileLock, LockKind, OpenFile, Pipe, SignalOwner, Stream, StreamFile, Watch, access_mode, table,
    },
    observe::{
        access::Access,
        anonymous,
        blame::blame,
        ends,
        files::Files,
        gone,
        listed::{Listed, bracketed, list},
        objects::{self, Objects},
        owners, registered,
        sockets::{self as unix, Passing},
        terminal,
        terminals::Terminals,
        watches::{self, Watched},
    },
    refusal::Refusal,
};

/// A process whose descriptors are read.
#[derive(Debug)]
pub(crate) struct Holder<'a> {
    pub(crate) pid: i32,
    process: OwnedFd,
    /// What [`watches::find`] gave a moment ago.
    watched: &'a Watched,
}

impl<'a> Holder<'a> {
    fn new(pid: i32, watched: &'a Watched) -> Result<Self, Error> {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        let process = Pid::from_raw(pid).ok_or(Error::Unexpected { pid, what: "is no process id".into() })?;
        Ok(Self { pid, process: pidfd_open(process, PidfdFlags::empty()).of("open", pid)?, watched })
    }

    /// These processes, and behind them this one, which has for a moment what is on its way between them.
    pub(crate) fn all(of: impl Iterator<Item = (i32, &'a Watched)>) -> Result<Vec<Self>, Error> {
        let mut all: Vec<Self> = of.map(|(pid, watched)| Self::new(pid, watched)).collect::<Result<_, _>>()?;
        all.push(Self::new(std::process::id() as i32, all[0].watched)?);
        Ok(all)
    }

    pub(crate) fn duplicate(&self, fd: i32) -> Result<OwnedFd, Error> {
        remote::take_descriptor(self.process.as_fd(), fd).of("duplicate a descriptor", self.pid)
    }

    /// Says of refusals that they are about this process, unless it is the first one.
    pub(crate) fn blame(&self, at: usize, refusals: Vec<Refusal>) -> Vec<Refusal> {
        if at == 0 { refusals } else { blame(self.pid, refusals) }
    }
}

/// Of several: the one that a number of [`table`] is of, as the kernel calls process and descriptor.
pub(crate) fn place_of(holders: &[Holder<'_>], number: i32) -> (i32, i32) {
    (holders[table::process_of(number)].pid, table::fd_of(number))
}

/// What is refused of the descriptor that a number of [`table`] names, said of its process.
pub(crate) fn refused(holders: &[Holder<'_>], number: i32, of: impl FnOnce(i32) -> Refusal) -> Vec<Refusal> {
    let at = table::process_of(number);
    holders[at].blame(at, vec![of(table::fd_of(number))])
}

/// Devices that are the same in every sandbox.
const DEVICES: &[&[u8]] = &[b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom"];

/// Of `statfs`.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
pub(crate) const MQUEUE_MAGIC: u64 = 0x1980_0202;

/// Reads all descriptors of these processes ([`Holder::all`]), which are those of one program.
pub(crate) fn read(
    holders: &[Holder<'_>],
    streams: &[(StreamFile, Stream)],
    terminals: &Terminals,
    objects: &mut Objects,
) -> Result<Files, Error> {
    let mut files = Files::default();
    let own = holders.len() - 1;
    let lists = holders[..own].iter().map(|holder| list(holder.pid));
    let mut lists: Vec<Vec<Listed>> = lists.collect::<Result<_, _>>()?;
    let found = lists.iter().map(Vec::len).sum();
    if found > limits::DESCRIPTORS_MAX {
        let max = limits::DESCRIPTORS_MAX;
        files.refusals.push(Refusal::TooMany { what: "descriptors".into(), found, max });
        return Ok(files);
    }
    let passing = match Passing::find(holders, &mut lists)? {
        Ok(passing) => passing,
        Err(refusals) => {
            files.refusals.extend(refusals);
            return Ok(files);
        }
    };
    let sockets = lists.iter().flatten().filter_map(|listed| bracketed(&listed.link, b"socket:["));
    files.socket_inodes = sockets.collect();
    let mut reader = Reader::new(holders, (streams, terminals), objects, passing)?;
    for (at, listed) in lists.iter().enumerate().filter(|(_, listed)| !listed.is_empty()) {
        reader.enter(at, listed)?;
        for listed in listed {
            let before = files.refusals.len();
            reader.stand_in(listed)?;
            reader.read(listed, &mut files)?;
            let found = files.refusals.split_off(before);
            files.refusals.extend(reader.blame(listed, found));
        }
    }
    // The duplicates stay as long as files are compared.
    let passing = reader.sockets.take().map(|sockets| sockets.complete(&mut files)).transpose()?.unwrap_or_default();
    if files.locks.len() > limits::LOCKS_MAX {
        let (found, max) = (files.locks.len(), limits::LOCKS_MAX);
        files.refusals.push(Refusal::TooMany { what: "locks".into(), found, max });
    }
    ends::check(holders, &passing, &mut files, &reader.pipes)?;
    files.added.reused = registered::find(holders, &files.files, &mut files.refusals)?;
    passing.complete(holders, &mut files);
    Ok(files)
}

struct Reader<'a> {
    holders: &'a [Holder<'a>],
    /// The place of the process that is being read, and its id.
    at: usize,
    pid: i32,
    /// A process of the program: the same, or the one at whose socket it waits.
    inside: i32,
    streams: &'a [(StreamFile, Stream)],
    terminals: &'a Terminals,
    objects: &'a mut Objects,
    /// Of each link the open files so far, in the kernel's order: many (of eventfds, say) may have one link.
    seen: HashMap<Vec<u8>, Vec<(i32, usize)>>,
    /// Inode of a pipe -> its index.
    pipes: HashMap<u64, usize>,
    /// Device and inode of the FIFOs whose content is carried by an earlier open file.
    fifos: HashSet<(u64, u64)>,
    sockets: Option<unix::Reader<'a>>,
    /// For them, until the first is met.
    passing: Passing,
    access: Access,
    /// What inotify instances watch -> its path.
    watched: Watched,
}

type Kind = Result<FileKind, Refusal>;

impl<'a> Reader<'a> {
    fn new(
        holders: &'a [Holder<'a>],
        (streams, terminals): (&'a [(StreamFile, Stream)], &'a Terminals),
        objects: &'a mut Objects,
        passing: Passing,
    ) -> Result<Self, Error> {
        let pid = holders[0].pid;
        Ok(Self {
            holders,
            at: 0,
            pid,
            inside: pid,
            streams,
            terminals,
            objects,
            seen: HashMap::new(),
            pipes: HashMap::new(),
            fifos: HashSet::new(),
            sockets: None,
            passing,
            access: Access::of(pid)?,
            watched: Watched::new(),
        })
    }

    /// Goes on with the process at place `at`.
    fn enter(&mut self, at: usize, listed: &[Listed]) -> Result<(), Error> {
        let inside = &self.holders[if self.is_own(at) { 0 } else { at }];
        (self.at, self.pid, self.inside) = (at, self.holders[at].pid, inside.pid);
        self.access = Access::of(self.inside)?;
        self.watched = watches::confirm(self.inside, listed, inside.watched)?;
        if let Some(sockets) = &mut self.sockets {
            sockets.enter(self.inside, inside.process.as_fd());
        }
        Ok(())
    }

    /// Judges a file on its way as one of the process at whose socket it waits.
    fn stand_in(&mut self, listed: &Listed) -> Result<(), Error> {
        let Some(sockets) = self.sockets.as_mut().filter(|_| self.at + 1 == self.holders.len()) else { return Ok(()) };
        let inside = &self.holders[sockets.passing().place(listed.fd)];
        if inside.pid != self.inside {
            self.inside = inside.pid;
            self.access = Access::of(self.inside)?;
            sockets.enter(self.inside, inside.process.as_fd());
        }
        Ok(())
    }

    /// Whether the process at this place is this one.
    fn is_own(&self, at: usize) -> bool {
        at + 1 == self.holders.len()
    }

    /// Says about which process refusals are that were found at one of the present one's descriptors.
    fn blame(&self, listed: &Listed, refusals: Vec<Refusal>) -> Vec<Refusal> {
        match &self.sockets {
            Some(sockets) if self.is_own(self.at) => sockets.passing().blame(self.holders, listed.fd, refusals),
            _ => self.holder().blame(self.at, refusals),
        }
    }

    fn read(&mut self, listed: &Listed, files: &mut Files) -> Result<(), Error> {
        if !table::has_number(listed.fd) {
            let what = "one with a number that no copy can have".into();
            files.refusals.push(Refusal::UnknownDescriptor { fd: listed.fd, what });
            return Ok(());
        }
        let number = (table::number(self.at, listed.fd), listed.flags & libc::O_CLOEXEC != 0);
        let locks = match listed.locks() {
            Ok(locks) => locks,
            Err(refusal) => {
                files.refusals.push(refusal);
                return Ok(());
            }
        };
        let at = self.at;
        let mut locks = locks.into_iter().map(|lock| FileLock { fd: table::number(at, lock.fd), ..lock });
        // Descriptors of one open file stay one.
        let same_link = self.seen.entry(listed.link.clone()).or_default();
        let (holders, this) = (self.holders, (self.pid, listed.fd));
        let compare = |known: &(i32, usize)| remote::open_file_order(place_of(holders, known.0), this);
        let place = match registered::place(same_link, compare).of("compare descriptors", self.pid)? {
            Ok(at) => {
                let file = &mut files.files[same_link[at].1];
                // What another process has locked for itself shows at its own descriptors only.
                if file.numbers.iter().all(|(other, _)| table::process_of(*other) != self.at) {
                    files.locks.extend(locks.filter(|lock| lock.kind == LockKind::Process));
                }
                file.numbers.push(number);
                return Ok(());
            }
            Err(place) => place,
        };
        let kind = match self.kind(listed, files)? {
            Ok(kind) => kind,
            Err(refusal) => {
                files.refusals.push(refusal);
                return Ok(());
            }
        };
        match self.owner(listed, &kind)? {
            Err(refusal) => files.refusals.push(refusal),
            Ok(owner) => files.added.owners.extend(owner.map(|owner| (files.files.len(), owner))),
        }
        files.locks.extend(locks.by_ref());
        self.seen.entry(listed.link.clone()).or_default().insert(place, (number.0, files.files.len()));
        files.files.push(OpenFile { numbers: vec![number], flags: listed.flags & !libc::O_CLOEXEC, kind });
        Ok(())
    }

    fn kind(&mut self, listed: &Listed, files: &mut Files) -> Result<Kind, Error> {
        let fd = listed.fd;
        let link = listed.link.as_slice();
        let status = fs::metadata(format!("/proc/{}/fd/{fd}", self.pid)).of("read the descriptors", self.pid)?;
        let is_stream = |(file, _): &&(StreamFile, Stream)| file.dev == status.dev() && file.ino == status.ino();
        let stream = self.streams.iter().find(is_stream).map(|(_, stream)| *stream);
        if let Some(stream) = stream.or_else(|| self.terminals.of_master(link, &listed.info)) {
            return Ok(Ok(FileKind::Stream(stream)));
        }
        if let Some(inode) = bracketed(link, b"pipe:[") {
            return self.pipe(listed, inode, files);
        }
        if let Some(inode) = bracketed(link, b"socket:[") {
            let socket = self.duplicate(fd)?;
            let mut reader = match self.sockets.take() {
                Some(reader) => reader,
                None => {
                    let passing = std::mem::take(&mut self.passing);
                    unix::Reader::new(self.pid, self.holder().process.as_fd(), passing)?
                }
            };
            let kind = reader.read(fd, inode, &socket, files);
            self.sockets = Some(reader);
            return kind;
        }
        // A deleted file lives on in its descriptors only, like a memfd: its content is carried and it becomes one.
        if link.starts_with(b"/memfd:") || (status.is_file() && gone::is_file_gone(self.inside, listed, &status)) {
            let path = format!("/proc/{}/fd/{fd}", self.pid);
            let file = objects::open(&path).on("open", path)?;
            match rustix::fs::fstatfs(&file).of("read the descriptors", self.pid)?.f_type as u64 {
                HUGETLBFS_MAGIC => {
                    return Ok(Err(Refusal::UnknownDescriptor { fd, what: "a memfd of huge pages".into() }));
                }
                MQUEUE_MAGIC => return Ok(Err(Refusal::message_queue(fd, link))),
                _ => {}
            }
            let object = self.objects.add_file(file, link)?;
            return Ok(Ok(FileKind::Memfd { object, offset: listed.offset }));
        }
        if status.is_dir() && gone::is_gone(self.inside, listed, &status) {
            return Ok(gone::directory(self.inside, listed, &status));
        }
        if let Some(name) = link.strip_prefix(b"anon_inode:") {
            return if name == b"inotify" { self.inotify(fd, &listed.info) } else { anonymous::kind(listed, name) };
        }
        self.path(listed, &status)
    }

    fn holder(&self) -> &'a Holder<'a> {
        &self.holders[self.at]
    }

    fn duplicate(&self, fd: i32) -> Result<OwnedFd, Error> {
        self.holder().duplicate(fd)
    }

    fn pipe(&mut self, listed: &Listed, inode: u64, files: &mut Files) -> Result<Kind, Error> {
        let index = match self.pipes.get(&inode) {
            Some(index) => *index,
            None => {
                let end = self.duplicate(listed.fd)?;
                let capacity = rustix::pipe::fcntl_getpipe_size(&end).of("read a pipe's size", self.pid)?;
                files.pipes.push(Pipe { capacity: capacity as u32, content: Vec::new(), packets: false });
                self.pipes.insert(inode, files.pipes.len() - 1);
                files.pipes.len() - 1
            }
        };
        let writes = listed.flags & libc::O_ACCMODE == libc::O_WRONLY;
        // Only the writing end of a packet pipe says so.
        files.pipes[index].packets |= listed.flags & libc::O_DIRECT != 0;
        if !writes {
            files.pipes[index].content = self.pipe_content(listed.fd)?;
        }
        Ok(Ok(FileKind::Pipe { pipe: index, end: if writes { End::Second } else { End::First } }))
    }

    fn pipe_content(&self, fd: i32) -> Result<Vec<Vec<u8>>, Error> {
        let reader = self.duplicate(fd)?;
        let capacity = rustix::pipe::fcntl_getpipe_size(&reader).of("read a pipe's size", self.pid)?;
        sockets::peek_pipe(reader.as_fd(), capacity).of("read a pipe", self.pid)
    }

    /// Who gets its signals. A stream is the sandbox's.
    fn owner(&self, listed: &Listed, kind: &FileKind) -> Result<Result<Option<SignalOwner>, Refusal>, Error> {
        if listed.flags & libc::O_PATH != 0 || matches!(kind, FileKind::Stream(_)) {
            return Ok(Ok(None));
        }
        owners::read(self.holders, self.pid, listed.fd, self.duplicate(listed.fd)?)
    }

    fn inotify(&self, fd: i32, info: &Fields) -> Result<Kind, Error> {
        let bytes = rustix::io::ioctl_fionread(self.duplicate(fd)?).of("read what waits at inotify", self.pid)?;
        if bytes > 0 {
            return Ok(Err(Refusal::InotifyEvents { fd, bytes }));
        }
        let mut watches = Vec::new();
        for watch in watches::of(info) {
            let Some(place) = self.watched.get(&watch.file).cloned() else {
                return Ok(Err(Refusal::InotifyTarget { fd, inode: watch.file.inode }));
            };
            let follow = if place.is_link { libc::IN_DONT_FOLLOW } else { 0 };
            watches.push(Watch { wd: watch.wd, mask: watch.mask | follow, path: place.path });
        }
        // The kernel lists the newest first; numbers are given again in ascending order.
        watches.sort_by_key(|watch| watch.wd);
        Ok(Ok(FileKind::Inotify { watches }))
    }

    fn path(&mut self, listed: &Listed, status: &fs::Metadata) -> Result<Kind, Error> {
        let fd = listed.fd;
        let kind = status.file_type();
        let path = String::from_utf8_lossy(&listed.link).into_owned();
        // What only names a file is none of these itself.
        if (kind.is_char_device() || kind.is_block_device()) && listed.flags & libc::O_PATH == 0 {
            // It stands for the controlling terminal of who opens it.
            let own = listed.link == b"/dev/tty" && terminal::has_one(self.inside)?;
            if !own && (listed.link.starts_with(b"/dev/pts/") || listed.link.starts_with(b"/dev/tty")) {
                return Ok(Err(Refusal::Terminal { fd }));
            }
            if !own && !DEVICES.contains(&listed.link.as_slice()) {
                return Ok(Err(Refusal::Device { fd, path }));
            }
        }
        if !listed.link.starts_with(b"/") {
            return Ok(Err(Refusal::UnknownDescriptor { fd, what: path }));
        }
        if status.nlink() == 0 {
            return Ok(Err(Refusal::DeletedFile { fd, path }));
        }
        if !gone::is_named(self.inside, &listed.link, status) {
            // The name of a message queue is no path.
            let file = format!("/proc/{}/fd/{fd}", self.pid);
            return Ok(Err(match rustix::fs::statfs(&file) {
                Ok(found) if found.f_type as u64 == MQUEUE_MAGIC => Refusal::message_queue(fd, &listed.link),
                _ => Refusal::ReplacedFile { fd, path },
            }));
        }
        // A FIFO is opened for both directions first.
        let both = listed.flags & libc::O_PATH == 0 && kind.is_fifo();
        let wanted = access_mode(if both { libc::O_RDWR } else { listed.flags });
        if let Some(refusal) = self.access.check(&format!("descriptor {fd}"), &listed.link, wanted) {
            return Ok(Err(refusal));
        }
        if listed.flags & libc::O_PATH != 0 {
            return Ok(Ok(FileKind::Path { path: listed.link.clone(), offset: 0 }));
        }
        if kind.is_fifo() {
            let reads = listed.flags & libc::O_ACCMODE != libc::O_WRONLY;
            // All open files of a FIFO have one queue: it comes with the first that reads.
            let carries = reads && self.fifos.insert((status.dev(), status.ino()));
            let content = if carries { self.pipe_content(fd)?.concat() } else { Vec::new() };
            return Ok(Ok(FileKind::Fifo { path: listed.link.clone(), content }));
        }
        Ok(Ok(FileKind::Path { path: listed.link.clone(), offset: listed.offset }))
    }
}

#[cfg(test)]
mod tests;
