//! Descriptors of the source, read from `/proc/PID/fdinfo` and through duplicates (`pidfd_getfd`), which share the open file and so are
//! only looked at.

use std::{
    collections::HashMap,
    fs::{self, File},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt},
        },
    },
};

use base::limits;
use sys::{remote, sockets};

use crate::{
    error::{Context, Error},
    image::{End, EpollEntry, FileKind, OpenFile, Pipe, Stream, StreamFile, TimerValue, UnixPair, Watch},
    mappings,
    objects::Objects,
    procfs::{self, Fields},
    refusal::Refusal,
    sockets as unix,
};

/// Devices that are the same in every sandbox.
const DEVICES: &[&[u8]] = &[b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom"];

/// Most directory entries looked at to find what an inotify instance watches.
const SEARCH_MAX: usize = 500_000;

/// The open files of a process.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) files: Vec<OpenFile>,
    pub(crate) pipes: Vec<Pipe>,
    pub(crate) pairs: Vec<UnixPair>,
    pub(crate) refusals: Vec<Refusal>,
    /// Inodes of the process's sockets.
    socket_inodes: Vec<u64>,
}

impl Files {
    /// Whether the process itself holds the socket with this inode.
    pub(crate) fn has_socket(&self, inode: u64) -> bool {
        self.socket_inodes.contains(&inode)
    }
}

/// One descriptor as listed.
struct Listed {
    fd: i32,
    link: Vec<u8>,
    info: Fields,
    flags: i32,
    offset: u64,
}

/// Reads all descriptors of process `pid`.
pub(crate) fn read(pid: i32, streams: &[(StreamFile, Stream)], objects: &mut Objects) -> Result<Files, Error> {
    let process =
        rustix::process::Pid::from_raw(pid).ok_or(Error::Unexpected { pid, what: "is no process id".into() })?;
    let process = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).of("open", pid)?;
    let mut files = Files::default();
    let listed = list(pid)?;
    if listed.len() > limits::DESCRIPTORS_MAX {
        files.refusals.push(Refusal::TooMany {
            what: "descriptors".into(),
            found: listed.len(),
            max: limits::DESCRIPTORS_MAX,
        });
        return Ok(files);
    }
    files.socket_inodes = listed.iter().filter_map(|listed| bracketed(&listed.link, b"socket:[")).collect();
    let mut reader = Reader { pid, process, streams, objects, pipes: HashMap::new(), sockets: None };
    let mut seen: HashMap<Vec<u8>, Vec<(i32, usize)>> = HashMap::new();
    for listed in listed {
        let close_on_exec = listed.flags & libc::O_CLOEXEC != 0;
        let number = (listed.fd, close_on_exec);
        // Two descriptors of one open file stay one.
        let same_link = seen.entry(listed.link.clone()).or_default();
        let mut earlier = None;
        for (fd, index) in &*same_link {
            if remote::same_open_file((pid, *fd), (pid, listed.fd)).of("compare descriptors", pid)? {
                earlier = Some(*index);
                break;
            }
        }
        if let Some(index) = earlier {
            files.files[index].numbers.push(number);
            continue;
        }
        match reader.kind(&listed, &mut files)? {
            Err(refusal) => files.refusals.push(refusal),
            Ok(kind) => {
                same_link.push((listed.fd, files.files.len()));
                files.files.push(OpenFile { numbers: vec![number], flags: listed.flags & !libc::O_CLOEXEC, kind });
            }
        }
    }
    check_pipes(pid, reader.process.as_fd(), &mut files, &reader.pipes)?;
    Ok(files)
}

fn list(pid: i32) -> Result<Vec<Listed>, Error> {
    let mut listed = Vec::new();
    for fd in procfs::numbers(&format!("/proc/{pid}/fd"))? {
        let link = procfs::link(&format!("/proc/{pid}/fd/{fd}"))?;
        let info = Fields::read(format!("/proc/{pid}/fdinfo/{fd}"))?;
        let flags = info.number("flags", 8)? as i32;
        let offset = info.number("pos", 10)?;
        listed.push(Listed { fd, link, info, flags, offset });
    }
    Ok(listed)
}

/// `42` of `pipe:[42]`.
fn bracketed(link: &[u8], prefix: &[u8]) -> Option<u64> {
    std::str::from_utf8(link.strip_prefix(prefix)?.strip_suffix(b"]")?).ok()?.parse().ok()
}

/// Every pipe must have its ends here or closed: another process would lose its peer.
fn check_pipes(pid: i32, process: BorrowedFd<'_>, files: &mut Files, pipes: &HashMap<u64, usize>) -> Result<(), Error> {
    let mut refusals = Vec::new();
    for index in pipes.values() {
        let ends: Vec<(i32, End)> = files.files.iter().filter_map(|file| pipe_end(file, *index)).collect();
        match ends[..] {
            [(_, first), (_, second)] if first != second => {}
            [(fd, _)] => {
                let end = remote::take_descriptor(process, fd).of("duplicate a descriptor", pid)?;
                if !is_other_end_closed(&end).of("poll a pipe", pid)? {
                    refusals.push(Refusal::ForeignPipe { fd });
                }
            }
            [(fd, _), ..] => refusals
                .push(Refusal::UnknownDescriptor { fd, what: "a pipe with an end that was opened twice".into() }),
            [] => {}
        }
    }
    files.refusals.extend(refusals);
    Ok(())
}

/// The reading end hangs up without writers; the writing end has an error without readers.
fn is_other_end_closed(end: &OwnedFd) -> std::io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut poll_end = [PollFd::new(end, PollFlags::empty())];
    poll(&mut poll_end, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(poll_end[0].revents().intersects(PollFlags::HUP | PollFlags::ERR))
}

fn pipe_end(file: &OpenFile, index: usize) -> Option<(i32, End)> {
    match file.kind {
        FileKind::Pipe { pipe, end } if pipe == index => Some((file.numbers.first()?.0, end)),
        _ => None,
    }
}

struct Reader<'a> {
    pid: i32,
    process: OwnedFd,
    streams: &'a [(StreamFile, Stream)],
    objects: &'a mut Objects,
    /// Inode of a pipe -> its index.
    pipes: HashMap<u64, usize>,
    sockets: Option<unix::Reader>,
}

type Kind = Result<FileKind, Refusal>;

impl Reader<'_> {
    fn kind(&mut self, listed: &Listed, files: &mut Files) -> Result<Kind, Error> {
        let fd = listed.fd;
        let link = listed.link.as_slice();
        let status = fs::metadata(format!("/proc/{}/fd/{fd}", self.pid)).of("read the descriptors", self.pid)?;
        let is_stream = |(file, _): &&(StreamFile, Stream)| file.dev == status.dev() && file.ino == status.ino();
        if let Some((_, stream)) = self.streams.iter().find(is_stream) {
            return Ok(Ok(FileKind::Stream(*stream)));
        }
        if let Some(inode) = bracketed(link, b"pipe:[") {
            return self.pipe(listed, inode, files);
        }
        if let Some(inode) = bracketed(link, b"socket:[") {
            let socket = self.duplicate(fd)?;
            let mut reader = match self.sockets.take() {
                Some(reader) => reader,
                None => unix::Reader::new(self.pid, self.process.as_fd())?,
            };
            let kind = reader.read(fd, inode, &socket, files);
            self.sockets = Some(reader);
            return kind;
        }
        // A deleted file lives on in its descriptors only, like a memfd: its content is carried and it becomes one.
        if link.starts_with(b"/memfd:") || (status.is_file() && status.nlink() == 0) {
            let path = format!("/proc/{}/fd/{fd}", self.pid);
            let object = self.objects.add_file(File::open(&path).on("open", path)?, link)?;
            return Ok(Ok(FileKind::Memfd { object, offset: listed.offset }));
        }
        if let Some(name) = link.strip_prefix(b"anon_inode:") {
            return self.anonymous(listed, name);
        }
        Ok(self.path(listed, &status))
    }

    fn duplicate(&self, fd: i32) -> Result<OwnedFd, Error> {
        remote::take_descriptor(self.process.as_fd(), fd).of("duplicate a descriptor", self.pid)
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
            let capacity = files.pipes[index].capacity as usize;
            files.pipes[index].content = self.pipe_content(listed.fd, capacity)?;
        }
        Ok(Ok(FileKind::Pipe { pipe: index, end: if writes { End::Second } else { End::First } }))
    }

    fn pipe_content(&self, fd: i32, capacity: usize) -> Result<Vec<Vec<u8>>, Error> {
        let reader = self.duplicate(fd)?;
        sockets::peek_pipe(reader.as_fd(), capacity).of("read a pipe", self.pid)
    }

    fn anonymous(&self, listed: &Listed, name: &[u8]) -> Result<Kind, Error> {
        let info = &listed.info;
        let fd = listed.fd;
        Ok(match name {
            b"[eventfd]" => Ok(FileKind::Eventfd {
                count: info.number("eventfd-count", 16)?,
                semaphore: info.number("eventfd-semaphore", 10).unwrap_or(0) != 0,
            }),
            b"[timerfd]" => Ok(FileKind::Timerfd {
                clock: info.number("clockid", 10)? as i32,
                ticks: info.number("ticks", 10)?,
                value: TimerValue { interval: pair(info, "it_interval"), remaining: pair(info, "it_value") },
            }),
            b"[signalfd]" => Ok(FileKind::Signalfd { mask: info.number("sigmask", 16)? }),
            b"[eventpoll]" => return self.epoll(fd, info),
            b"inotify" => return self.inotify(fd, info),
            b"[io_uring]" => Err(Refusal::IoUring { fd }),
            _ => Err(Refusal::UnknownDescriptor { fd, what: String::from_utf8_lossy(&listed.link).into_owned() }),
        })
    }

    fn epoll(&self, fd: i32, info: &Fields) -> Result<Kind, Error> {
        let mut entries = Vec::new();
        for line in info.lines().filter(|line| line.starts_with("tfd:")) {
            // "tfd:        4 events:       19 data:                4  pos:0 ino:1 sdev:c"
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let (Some(target), Some(events), Some(data)) = (words.get(1), words.get(3), words.get(5)) else { continue };
            let target: i32 = target.parse().unwrap_or(-1);
            if !remote::same_epoll_target(self.pid, target, fd, target).unwrap_or(false) {
                return Ok(Err(Refusal::EpollTarget { fd, target }));
            }
            let events = u32::from_str_radix(events, 16).unwrap_or(0);
            let data = u64::from_str_radix(data, 16).unwrap_or(0);
            entries.push(EpollEntry { fd: target, events, data });
        }
        Ok(Ok(FileKind::Epoll { entries }))
    }

    fn inotify(&self, fd: i32, info: &Fields) -> Result<Kind, Error> {
        let mut watches = Vec::new();
        for line in info.lines().filter(|line| line.starts_with("inotify ")) {
            let field =
                |name: &str| line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix(':'));
            let number = |name: &str| field(name).and_then(|value| u64::from_str_radix(value, 16).ok()).unwrap_or(0);
            let inode = number("ino");
            let Some(path) = find_inode(self.pid, inode) else {
                return Ok(Err(Refusal::InotifyTarget { fd, inode }));
            };
            watches.push(Watch { wd: number("wd") as i32, mask: number("mask") as u32, path });
        }
        // The kernel lists the newest first; numbers are given again in ascending order.
        watches.sort_by_key(|watch| watch.wd);
        Ok(Ok(FileKind::Inotify { watches }))
    }

    fn path(&self, listed: &Listed, status: &fs::Metadata) -> Kind {
        let fd = listed.fd;
        let kind = status.file_type();
        let path = String::from_utf8_lossy(&listed.link).into_owned();
        if kind.is_char_device() || kind.is_block_device() {
            if listed.link.starts_with(b"/dev/pts/") || listed.link.starts_with(b"/dev/tty") {
                return Err(Refusal::Terminal { fd });
            }
            if !DEVICES.contains(&listed.link.as_slice()) {
                return Err(Refusal::Device { fd, path });
            }
        }
        if !listed.link.starts_with(b"/") {
            return Err(Refusal::UnknownDescriptor { fd, what: path });
        }
        if status.nlink() == 0 {
            return Err(Refusal::DeletedFile { fd, path });
        }
        let root = mappings::open_root(self.pid).ok();
        let named =
            root.and_then(|root| mappings::open_inside(root.as_fd(), &listed.link).and_then(rustix::fs::fstat).ok());
        if named.is_none_or(|named| named.st_ino != status.ino() || named.st_dev != status.dev()) {
            return Err(Refusal::ReplacedFile { fd, path });
        }
        if kind.is_fifo() {
            let reads = listed.flags & libc::O_ACCMODE != libc::O_WRONLY;
            let content = if reads { self.pipe_content(fd, 1 << 20).unwrap_or_default().concat() } else { Vec::new() };
            return Ok(FileKind::Fifo { path: listed.link.clone(), content });
        }
        Ok(FileKind::Path { path: listed.link.clone(), offset: listed.offset })
    }
}

/// `(1, 500)` after `name:` as two numbers.
fn pair(info: &Fields, name: &str) -> (u64, u64) {
    let text = info.get(name).unwrap_or("");
    let mut numbers = text.trim_matches(['(', ')']).split(',').map(|number| number.trim().parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The path of an inode in the root filesystem of a process: a bounded breadth-first search that begins where programs watch.
fn find_inode(pid: i32, inode: u64) -> Option<Vec<u8>> {
    let root = format!("/proc/{pid}/root");
    let device = fs::metadata(&root).ok()?.dev();
    let cwd = procfs::link(&format!("/proc/{pid}/cwd")).unwrap_or_default();
    let first = [cwd.as_slice(), b"/tmp", b"/home/user", b"/run", b"/etc", b"/"];
    let mut queue: std::collections::VecDeque<Vec<u8>> = first.iter().map(|path| path.to_vec()).collect();
    let mut looked = 0;
    while let Some(path) = queue.pop_front() {
        let outside = std::path::PathBuf::from(format!("{root}/{}", String::from_utf8_lossy(&path)));
        let Ok(status) = fs::symlink_metadata(&outside) else { continue };
        if status.ino() == inode && status.dev() == device {
            return Some(path);
        }
        if !status.is_dir() || status.dev() != device || looked > SEARCH_MAX {
            continue;
        }
        for entry in fs::read_dir(&outside).into_iter().flatten().flatten() {
            looked += 1;
            let mut inside = if path == b"/" { Vec::new() } else { path.clone() };
            inside.push(b'/');
            inside.extend_from_slice(entry.file_name().as_bytes());
            queue.push_back(inside);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn own(objects: &mut Objects) -> Files {
        read(std::process::id() as i32, &[], objects).unwrap()
    }

    #[test]
    fn a_pipe_with_bytes_in_it_is_read_and_left_alone() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, b"hello").unwrap();
        let files = own(&mut Objects::default());
        let file = files.files.iter().find(|file| file.numbers[0].0 == reader.as_raw_fd()).unwrap();
        let FileKind::Pipe { pipe, .. } = file.kind else { panic!("{file:?}") };
        assert_eq!(files.pipes[pipe].content, [b"hello"]);
        let mut bytes = [0; 5];
        assert_eq!(rustix::io::read(&reader, &mut bytes).unwrap(), 5);
    }

    #[test]
    fn duplicates_of_a_descriptor_are_one_open_file() {
        let file = File::open("/dev/null").unwrap();
        let again = file.try_clone().unwrap();
        let other = File::open("/dev/null").unwrap();
        let files = own(&mut Objects::default());
        let find =
            |fd: i32| files.files.iter().position(|file| file.numbers.iter().any(|(number, _)| *number == fd)).unwrap();
        assert_eq!(find(file.as_raw_fd()), find(again.as_raw_fd()));
        assert_ne!(find(file.as_raw_fd()), find(other.as_raw_fd()));
    }
}
