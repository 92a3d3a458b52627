//! Sockets of the source: which of them can be made again, and with what.

mod fresh;
mod groups;
mod netlink;
mod passing;
mod queue;
mod tcp;

use std::{
    collections::HashMap,
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
};

use fresh::Fresh;
use groups::Group;
use netlink::Netlink;
pub(crate) use passing::Passing;
use procfs::IdMaps;
use queue::{Queue, Waiting};
use sys::{
    diag::{self, UnixSocket},
    namespace::{Kind, inside},
    sockets::{self, Filter},
};

use crate::{
    error::{Context, Error},
    image::{AddedSocket, End, FileKind, Message, Socket, SocketName, SocketPath, UnixPair, connections},
    observe::{files::Files, root},
    options::{Phase, SocketType},
    refusal::Refusal,
};

/// What all sockets of one process are read with.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    pid: i32,
    process: BorrowedFd<'a>,
    known: HashMap<u64, UnixSocket>,
    /// Inode of a pair's first end -> index of the pair.
    pairs: HashMap<u64, usize>,
    fresh: Fresh,
    /// Read when the first UDP socket is met.
    udp: Option<Udp>,
    /// TCP connections, as far as their ends have been met.
    tcp: tcp::Connections,
    passing: Passing,
}

/// What the network namespace tells of UDP sockets.
#[derive(Debug)]
struct Udp {
    shutdowns: HashMap<u64, u8>,
    groups: Vec<Group>,
}

/// A socket of the process.
#[derive(Debug, Clone, Copy)]
struct Found<'a> {
    fd: i32,
    inode: u64,
    socket: BorrowedFd<'a>,
    of: SocketType,
}

/// Why a socket cannot be made again, or not be read.
enum NotRead {
    Refused(Refusal),
    Failed(Error),
}

impl From<Refusal> for NotRead {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for NotRead {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl<'a> Reader<'a> {
    /// Enters the network namespace of the process for a moment to ask for the peers of its unix sockets.
    pub(crate) fn new(pid: i32, process: BorrowedFd<'a>, passing: Passing) -> Result<Self, Error> {
        let known = inside(process, Kind::Network, diag::unix_sockets).flatten().of("list unix sockets", pid)?;
        Ok(Self {
            pid,
            process,
            known,
            pairs: HashMap::new(),
            fresh: Fresh::default(),
            udp: None,
            tcp: tcp::Connections::default(),
            passing,
        })
    }

    /// Goes on with another process of the same network namespace.
    pub(crate) fn enter(&mut self, pid: i32, process: BorrowedFd<'a>) {
        (self.pid, self.process) = (pid, process);
    }

    /// How the socket with this inode, descriptor `fd` of the process, is made again. It will be the next of `files`.
    pub(crate) fn read(
        &mut self,
        fd: i32,
        inode: u64,
        socket: &OwnedFd,
        files: &mut Files,
    ) -> Result<Result<FileKind, Refusal>, Error> {
        match self.read_any(fd, inode, socket.as_fd(), files) {
            Ok((kind, state)) => {
                if state != AddedSocket::default() {
                    files.added.sockets.push((files.files.len(), state));
                }
                Ok(Ok(kind))
            }
            Err(NotRead::Refused(refusal)) => Ok(Err(refusal)),
            Err(NotRead::Failed(error)) => Err(error),
        }
    }

    fn read_any(
        &mut self,
        fd: i32,
        inode: u64,
        socket: BorrowedFd<'_>,
        files: &mut Files,
    ) -> Result<(FileKind, AddedSocket), NotRead> {
        let integer = |name| sockets::option(socket, libc::SOL_SOCKET, name).of("read socket option", self.pid);
        let family = integer(libc::SO_DOMAIN)?;
        let kind = integer(libc::SO_TYPE)?;
        let protocol = integer(libc::SO_PROTOCOL)?;
        let listens = integer(libc::SO_ACCEPTCONN)? != 0;
        let found = Found { fd, inode, socket, of: SocketType { family, kind, protocol } };
        match (family, kind) {
            (libc::AF_UNIX, _) => self.read_unix(found, listens, files),
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM) if is_tcp(protocol) => {
                self.read_tcp(found, listens, files.files.len())
            }
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM) if protocol == libc::IPPROTO_UDP => self.read_udp(found),
            (libc::AF_NETLINK, _) => self.read_netlink(found),
            _ => Err(Refusal::SocketKind { fd, family, socket_type: kind }.into()),
        }
    }

    fn read_netlink(&mut self, found: Found<'_>) -> Result<(FileKind, AddedSocket), NotRead> {
        let Netlink { address, peer, groups, has_messages } =
            Netlink::read(found.socket).of("read a netlink socket", self.pid)?;
        if has_messages {
            return Err(Refusal::NetlinkMessages { fd: found.fd }.into());
        }
        let mut state = self.state(found, Phase::Quiet)?;
        state.options.extend(groups);
        let SocketType { family, kind, protocol } = found.of;
        let socket = Socket { family, kind, protocol, options: Vec::new(), address, peer, listening: None, path: None };
        Ok((FileKind::Socket(socket), state))
    }

    /// Notes the ends of connections, when all have been met: what has its other end elsewhere is reset in a copy. Gives what is on its way.
    pub(crate) fn complete(self, files: &mut Files) -> Result<Passing, Error> {
        self.tcp.complete(self.pid, files)?;
        Ok(self.passing)
    }

    pub(crate) fn passing(&self) -> &Passing {
        &self.passing
    }

    /// `place` is that of its file.
    fn read_tcp(&mut self, found: Found<'_>, listens: bool, place: usize) -> Result<(FileKind, AddedSocket), NotRead> {
        const TCP_CLOSE: u8 = 7;
        const TCP_LISTEN: u8 = 10;
        let state = tcp_state(found.socket).of("read TCP state", self.pid)?;
        // One that has ended still names its port, which may be its listener's: it must not be bound again.
        let ended = state == TCP_CLOSE && sockets::tcp_was_connected(found.socket).of("read TCP state", self.pid)?;
        if ended || !matches!(state, TCP_CLOSE | TCP_LISTEN) {
            let of = found.of;
            // Options that cannot be set any more are lost with the connection.
            let options = self.fresh.changed(self.pid, self.process, found.socket, of, Phase::Connected)?.options;
            let added = AddedSocket { options, ..AddedSocket::default() };
            if connections::goes_on(state) {
                self.tcp.note(found.socket, place).of("read a connection", self.pid)?;
            }
            return Ok((FileKind::ResetConnection { family: of.family }, added));
        }
        let state = self.state(found, if listens { Phase::Listening } else { Phase::Quiet })?;
        let listening = match listens {
            true => Some(sockets::tcp_backlog(found.socket).of("read the backlog", self.pid)?),
            false => None,
        };
        Ok((FileKind::Socket(self.unconnected(found, listening, None, None)?), state))
    }

    fn read_udp(&mut self, found: Found<'_>) -> Result<(FileKind, AddedSocket), NotRead> {
        let peer = sockets::peer_address(found.socket).ok();
        let mut state = self.state(found, if peer.is_some() { Phase::Datagrams } else { Phase::Quiet })?;
        if self.udp.is_none() {
            let shutdowns =
                inside(self.process, Kind::Network, diag::udp_shutdowns).flatten().of("list UDP sockets", self.pid)?;
            self.udp = Some(Udp { shutdowns, groups: groups::list(self.pid)? });
        }
        if let Some(udp) = &self.udp {
            state.groups = groups::memberships(self.pid, found.socket, found.of.family, &udp.groups)?;
            state.shutdown = match udp.shutdowns.get(&found.inode) {
                Some(shutdown) => *shutdown,
                // The list has no sockets that are not bound; of these only that they receive no more can be seen.
                None => shutdown_seen(found.socket).of("poll a socket", self.pid)?,
            };
        }
        Ok((FileKind::Socket(self.unconnected(found, None, peer, None)?), state))
    }

    fn read_unix(
        &mut self,
        found: Found<'_>,
        listens: bool,
        files: &mut Files,
    ) -> Result<(FileKind, AddedSocket), NotRead> {
        let Found { fd, of, .. } = found;
        let known = self.known.get(&found.inode).copied().unwrap_or_default();
        let datagrams = of.kind == libc::SOCK_DGRAM;
        let mut state = self.state(found, Phase::Quiet)?;
        if let Some(peer) = known.peer.filter(|_| !listens) {
            // One that has itself as its peer has no other end.
            let mutual =
                peer != found.inode && self.known.get(&peer).is_some_and(|other| other.peer == Some(found.inode));
            if peer == 0 || (mutual && files.has_socket(peer)) {
                return self.read_pair(found, known, state, files);
            }
            // What sends to another socket of the program, which does not send to it, is no end of a pair.
            if !(datagrams && files.has_socket(peer)) {
                return Err(Refusal::ForeignSocket { fd }.into());
            }
        }
        if known.waiting > 0 {
            return Err(Refusal::WaitingConnections { fd, count: known.waiting }.into());
        }
        state.shutdown = known.shutdown;
        if datagrams {
            let queue = self.queue(found)?;
            if queue.iter().any(|message| !message.descriptors.is_empty()) {
                let what = "a datagram socket without a peer of its own, at which descriptors wait";
                return Err(Refusal::UnknownDescriptor { fd, what: what.into() }.into());
            }
            state.queue = queue.into_iter().map(|Waiting { from, bytes, .. }| Message { from, bytes }).collect();
        }
        let peer = if datagrams { sockets::peer_address(found.socket).ok() } else { None };
        let listening = listens.then_some(known.backlog);
        Ok((FileKind::Socket(self.unconnected(found, listening, peer, known.file)?), state))
    }

    /// Options and filter.
    fn state(&mut self, found: Found<'_>, phase: Phase) -> Result<AddedSocket, NotRead> {
        let Found { fd, socket, of, .. } = found;
        let filter = match sockets::filter(socket).of("read socket filter", self.pid)? {
            Filter::None => Vec::new(),
            Filter::Classic(program) => program,
            Filter::Extended => {
                let what = "a socket with an eBPF filter, which cannot be read".into();
                return Err(Refusal::UnknownDescriptor { fd, what }.into());
            }
        };
        let changed = self.fresh.changed(self.pid, self.process, socket, of, phase)?;
        if let [option, ..] = changed.lost[..] {
            return Err(Refusal::SocketOption { fd, option: option.into() }.into());
        }
        Ok(AddedSocket { options: changed.options, filter, ..AddedSocket::default() })
    }

    fn unconnected(
        &self,
        found: Found<'_>,
        listening: Option<u32>,
        peer: Option<Vec<u8>>,
        bound_file: Option<u32>,
    ) -> Result<Socket, NotRead> {
        let SocketType { family, kind, protocol } = found.of;
        let local = sockets::local_address(found.socket).of("read socket address", self.pid)?;
        // An unbound unix socket has only a family.
        let bound = if family == libc::AF_UNIX { local.len() > 2 } else { is_bound(&local) };
        let path = if family == libc::AF_UNIX && bound && local[2] != 0 {
            Some(
                self.socket_path(&local[2..], bound_file)?
                    .map_err(|path| Refusal::ReplacedSocket { fd: found.fd, path })?,
            )
        } else {
            None
        };
        let address = bound.then_some(local);
        Ok(Socket { family, kind, protocol, options: Vec::new(), address, peer, listening, path })
    }

    /// The file of a bound unix socket, or else its path. A copy removes what it finds there before it binds again, so it must be that socket
    /// and nothing else.
    fn socket_path(&self, path: &[u8], bound_file: Option<u32>) -> Result<Result<SocketPath, String>, Error> {
        let path = name_of(path);
        let is_it = |status: &rustix::fs::Stat| {
            rustix::fs::FileType::from_raw_mode(status.st_mode).is_socket() && bound_file == Some(status.st_ino as u32)
        };
        Ok(match self.status_at(path)?.filter(is_it) {
            None => Err(String::from_utf8_lossy(path).into_owned()),
            Some(status) => {
                let ids = IdMaps::of(self.pid)?;
                let (uid, gid) = (ids.user_inside(status.st_uid), ids.group_inside(status.st_gid));
                Ok(SocketPath { path: path.to_vec(), uid, gid, mode: status.st_mode & 0o7777 })
            }
        })
    }

    /// What a path of a unix socket names.
    fn status_at(&self, path: &[u8]) -> Result<Option<rustix::fs::Stat>, Error> {
        let root = root::open_root(self.pid)?;
        // Relative paths were resolved when it was bound; the copy binds them relative to its own working directory.
        let below = if path.starts_with(b"/") { root } else { open_cwd(self.pid)? };
        let path = OsStr::from_bytes(path).as_bytes();
        Ok(root::open_inside(below.as_fd(), path).and_then(rustix::fs::fstat).ok())
    }

    fn queue(&mut self, found: Found<'_>) -> Result<Vec<Waiting>, NotRead> {
        let Found { fd, socket, of, inode } = found;
        if let Some(known) = self.passing.queue(inode) {
            return Ok(known?);
        }
        Ok(Queue { pid: self.pid, fd, kind: of.kind, socket, known: 0 }
            .read()
            .of("read waiting messages", self.pid)??)
    }

    fn read_pair(
        &mut self,
        found: Found<'_>,
        known: UnixSocket,
        mut state: AddedSocket,
        files: &mut Files,
    ) -> Result<(FileKind, AddedSocket), NotRead> {
        let kind = found.of.kind;
        let (pair, end) = match known.peer.and_then(|peer| self.pairs.get(&peer)) {
            Some(pair) => (*pair, End::Second),
            None => {
                self.pairs.insert(found.inode, files.pairs.len());
                files.pairs.push(UnixPair {
                    kind,
                    queues: Default::default(),
                    options: Default::default(),
                    shutdown: [0; 2],
                });
                (files.pairs.len() - 1, End::First)
            }
        };
        let peer_name = sockets::peer_address(found.socket).unwrap_or_default();
        let queue = self.queue(found)?;
        if let Some(other) = queue.iter().find(|message| message.from.len() > 2 && message.from != peer_name) {
            let what = format!("a socket at which a message of another one ({}) waits", shown(&other.from));
            return Err(Refusal::UnknownDescriptor { fd: found.fd, what }.into());
        }
        let mut messages = Vec::with_capacity(queue.len());
        for (at, Waiting { bytes, descriptors, .. }) in queue.into_iter().enumerate() {
            if !self.passing.note((pair, end), at, descriptors) {
                let what = "a socket with descriptors on their way that this kernel does not count (scm_fds)".into();
                return Err(Refusal::UnknownDescriptor { fd: found.fd, what }.into());
            }
            messages.push(bytes);
        }
        files.pairs[pair].queues[end as usize] = messages;
        files.pairs[pair].shutdown[end as usize] = known.shutdown;
        state.name = self.name(found, known)?;
        Ok((FileKind::UnixPair { pair, end }, state))
    }

    /// The name of an end of a pair: its own, or that of the listener that accepted it.
    fn name(&self, found: Found<'_>, known: UnixSocket) -> Result<Option<SocketName>, NotRead> {
        let address = sockets::local_address(found.socket).of("read socket address", self.pid)?;
        let path = match address.get(2) {
            None => return Ok(None),
            Some(0) => None,
            Some(_) if self.status_at(name_of(&address[2..]))?.is_none() => None,
            Some(_) => {
                let path = self.socket_path(&address[2..], known.file)?;
                Some(path.map_err(|path| Refusal::ReplacedSocket { fd: found.fd, path })?)
            }
        };
        Ok(Some(SocketName { address, path }))
    }
}

/// Whether an internet socket of this address is bound: it has a port, or an address and takes a port later
/// (`IP_BIND_ADDRESS_NO_PORT`).
fn is_bound(local: &[u8]) -> bool {
    // struct sockaddr_in: family, port, address; struct sockaddr_in6 has flow information before the address.
    let address = if local.len() < size_of::<libc::sockaddr_in6>() { 4..8 } else { 8..24 };
    [2..4, address].into_iter().any(|part| local.get(part).is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0)))
}

/// The path in the address of a unix socket, which may end with zeros.
fn name_of(path: &[u8]) -> &[u8] {
    path.split(|byte| *byte == 0).next().unwrap_or(&[])
}

/// The name of a unix socket, for people.
pub(crate) fn shown(address: &[u8]) -> String {
    let name = address.get(2..).unwrap_or(&[]);
    let is_abstract = name.first() == Some(&0);
    let shown = if is_abstract { name } else { name_of(name) };
    String::from_utf8_lossy(shown).replace('\0', "@")
}

fn open_cwd(pid: i32) -> Result<OwnedFd, Error> {
    use rustix::fs::{Mode, OFlags};
    let path = format!("/proc/{pid}/cwd");
    rustix::fs::open(&path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).on("open", path)
}

/// Not multipath TCP, which programs in sandboxes do not get.
fn is_tcp(protocol: i32) -> bool {
    protocol == libc::IPPROTO_TCP
}

/// The TCP state, first byte of `struct tcp_info`.
fn tcp_state(socket: BorrowedFd<'_>) -> io::Result<u8> {
    sockets::option(socket, libc::IPPROTO_TCP, libc::TCP_INFO).map(|word| word as u8)
}

/// What a look tells of the directions in which a datagram socket was shut down: 1 receiving, 3 both.
fn shutdown_seen(socket: BorrowedFd<'_>) -> io::Result<u8> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut seen = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    poll(&mut seen, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    let seen = seen[0].revents();
    Ok(if seen.contains(PollFlags::HUP) { 3 } else { u8::from(seen.contains(PollFlags::RDHUP)) })
}
