//! Sockets of the source: which can be made again, and what of them.

use std::{
    collections::HashMap,
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
};

use base::limits;
use sys::sockets::{self, UnixSocket};

use crate::{
    descriptors::Files,
    error::{Context, Error},
    image::{End, FileKind, Socket, SocketOption, SocketPath, UnixPair},
    mappings,
    refusal::Refusal,
};

/// Options carried over when they differ from a new socket's.
const OPTIONS: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_PASSCRED),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
];

/// Options of TCP sockets.
const TCP_OPTIONS: &[(i32, i32)] = &[
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
];

/// Listening unix sockets do not tell their backlog; this is the kernel's own ceiling (`net.core.somaxconn`).
const UNIX_BACKLOG: u32 = 4_096;

/// Most messages of one queue; the kernel's own limit of datagrams that wait is far lower (`net.unix.max_dgram_qlen`).
const QUEUE_MAX: usize = 65_536;

/// What all sockets of one process are read with.
#[derive(Debug)]
pub(crate) struct Reader {
    pid: i32,
    known: HashMap<u64, UnixSocket>,
    /// Inode of a pair's first end -> index of the pair.
    pairs: HashMap<u64, usize>,
}

impl Reader {
    /// Enters the network namespace of the process for a moment to ask for the peers of its unix sockets.
    pub(crate) fn new(pid: i32, process: BorrowedFd<'_>) -> Result<Self, Error> {
        use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
        let own = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty());
        let own = own.of("open", pid)?;
        move_into_thread_name_spaces(process, ThreadNameSpaceType::NETWORK).of("enter the network namespace", pid)?;
        let known = sockets::unix_sockets();
        move_into_thread_name_spaces(own.as_fd(), ThreadNameSpaceType::NETWORK)
            .of("leave the network namespace", pid)?;
        Ok(Self { pid, known: known.of("list unix sockets", pid)?, pairs: HashMap::new() })
    }

    /// How the socket with this inode, descriptor `fd` of the process, is made again.
    pub(crate) fn read(
        &mut self,
        fd: i32,
        inode: u64,
        socket: &OwnedFd,
        files: &mut Files,
    ) -> Result<Result<FileKind, Refusal>, Error> {
        let socket = socket.as_fd();
        let integer = |name| sockets::option(socket, libc::SOL_SOCKET, name).of("read socket option", self.pid);
        let family = integer(libc::SO_DOMAIN)?;
        let kind = integer(libc::SO_TYPE)?;
        let protocol = integer(libc::SO_PROTOCOL)?;
        let listens = integer(libc::SO_ACCEPTCONN)? != 0;
        if sockets::has_filter(socket).of("read socket filter", self.pid)? {
            return Ok(Err(Refusal::UnknownDescriptor { fd, what: "a socket with a filter".into() }));
        }
        let unsupported = Refusal::SocketKind { fd, family, socket_type: kind };
        match (family, kind) {
            (libc::AF_UNIX, _) if !listens && self.known.get(&inode).is_some_and(|known| known.peer.is_some()) => {
                return self.read_pair(fd, inode, kind, socket, files);
            }
            (libc::AF_UNIX, _) => {}
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM) if is_tcp(protocol) => {
                const TCP_CLOSE: u8 = 7;
                const TCP_LISTEN: u8 = 10;
                let state = tcp_state(socket).of("read TCP state", self.pid)?;
                // One that has ended still names its port, which may be its listener's: it must not be bound again.
                let ended = state == TCP_CLOSE && sockets::tcp_was_connected(socket).of("read TCP state", self.pid)?;
                if ended || !matches!(state, TCP_CLOSE | TCP_LISTEN) {
                    return Ok(Ok(FileKind::ResetConnection { family }));
                }
            }
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM) if protocol == libc::IPPROTO_UDP => {}
            _ => return Ok(Err(unsupported)),
        }
        let bound_file = self.known.get(&inode).and_then(|known| known.file);
        let read = self.read_unconnected(fd, bound_file, socket, (family, kind, protocol), listens)?;
        Ok(read.map(FileKind::Socket))
    }

    fn read_unconnected(
        &self,
        fd: i32,
        bound_file: Option<u32>,
        socket: BorrowedFd<'_>,
        (family, kind, protocol): (i32, i32, i32),
        listens: bool,
    ) -> Result<Result<Socket, Refusal>, Error> {
        let local = sockets::local_address(socket).of("read socket address", self.pid)?;
        let mut options = options(socket, OPTIONS);
        if is_tcp(protocol) {
            options.extend(self::options(socket, TCP_OPTIONS));
        }
        if family == libc::AF_INET6 {
            options.extend([(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)].iter().filter_map(|(level, name)| {
                sockets::option(socket, *level, *name).ok().map(|value| (*level, *name, value))
            }));
        }
        let listening = match (listens, protocol) {
            (false, _) => None,
            (true, protocol) if is_tcp(protocol) => {
                Some(sockets::tcp_backlog(socket).of("read the backlog", self.pid)?)
            }
            (true, _) => Some(UNIX_BACKLOG),
        };
        // An unbound unix socket has only a family; an unbound internet socket has port 0.
        let bound =
            if family == libc::AF_UNIX { local.len() > 2 } else { local.get(2..4).is_some_and(|port| port != [0, 0]) };
        let path = if family == libc::AF_UNIX && bound && local[2] != 0 {
            match self.socket_path(fd, &local[2..], bound_file)? {
                Err(refusal) => return Ok(Err(refusal)),
                Ok(path) => Some(path),
            }
        } else {
            None
        };
        let peer = if kind == libc::SOCK_DGRAM { sockets::peer_address(socket).ok() } else { None };
        Ok(Ok(Socket { family, kind, protocol, options, address: bound.then_some(local), peer, listening, path }))
    }

    /// The file of a bound unix socket. A copy removes what it finds there before it binds again, so it must be that socket and nothing
    /// else.
    fn socket_path(&self, fd: i32, path: &[u8], bound_file: Option<u32>) -> Result<Result<SocketPath, Refusal>, Error> {
        let path = path.split(|byte| *byte == 0).next().unwrap_or(&[]).to_vec();
        let root = mappings::open_root(self.pid)?;
        // Relative paths were resolved when it was bound; the copy binds them relative to its own working directory.
        let below = if path.starts_with(b"/") { root } else { open_cwd(self.pid)? };
        let found =
            mappings::open_inside(below.as_fd(), OsStr::from_bytes(&path).as_bytes()).and_then(rustix::fs::fstat);
        let is_it = |status: &rustix::fs::Stat| {
            rustix::fs::FileType::from_raw_mode(status.st_mode).is_socket() && bound_file == Some(status.st_ino as u32)
        };
        Ok(match found.ok().filter(is_it) {
            None => Err(Refusal::ReplacedSocket { fd, path: String::from_utf8_lossy(&path).into_owned() }),
            Some(status) => {
                Ok(SocketPath { path, uid: status.st_uid, gid: status.st_gid, mode: status.st_mode & 0o7777 })
            }
        })
    }

    fn read_pair(
        &mut self,
        fd: i32,
        inode: u64,
        kind: i32,
        socket: BorrowedFd<'_>,
        files: &mut Files,
    ) -> Result<Result<FileKind, Refusal>, Error> {
        let UnixSocket { peer, shutdown, .. } = self.known[&inode];
        let peer = peer.unwrap_or(0);
        let mutual = self.known.get(&peer).is_some_and(|other| other.peer == Some(inode));
        if peer != 0 && !(mutual && files.has_socket(peer)) {
            return Ok(Err(Refusal::ForeignSocket { fd }));
        }
        let (pair, end) = match self.pairs.get(&peer) {
            Some(pair) => (*pair, End::Second),
            None => {
                self.pairs.insert(inode, files.pairs.len());
                files.pairs.push(UnixPair {
                    kind,
                    queues: Default::default(),
                    options: Default::default(),
                    shutdown: [0; 2],
                });
                (files.pairs.len() - 1, End::First)
            }
        };
        let queue = match peek_queue(fd, kind, socket).of("read waiting messages", self.pid)? {
            Err(refusal) => return Ok(Err(refusal)),
            Ok(queue) => queue,
        };
        files.pairs[pair].queues[end as usize] = queue;
        let mut options = options(socket, OPTIONS);
        options.extend(send_buffer(socket, kind).of("read socket option", self.pid)?);
        files.pairs[pair].options[end as usize] = options;
        files.pairs[pair].shutdown[end as usize] = shutdown;
        Ok(Ok(FileKind::UnixPair { pair, end }))
    }
}

fn open_cwd(pid: i32) -> Result<OwnedFd, Error> {
    use rustix::fs::{Mode, OFlags};
    let path = format!("/proc/{pid}/cwd");
    rustix::fs::open(&path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).on("open", path)
}

fn options(socket: BorrowedFd<'_>, names: &[(i32, i32)]) -> Vec<SocketOption> {
    let read = |(level, name): &(i32, i32)| Some((*level, *name, sockets::option(socket, *level, *name).ok()?));
    names.iter().filter_map(read).filter(|(_, _, value)| *value != 0).collect()
}

/// The option that gives a unix socket its send buffer, if the program has changed it: what waits at the other end must fit in.
fn send_buffer(socket: BorrowedFd<'_>, kind: i32) -> io::Result<Option<SocketOption>> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let kind = SocketType::from_raw(kind as u32);
    let fresh = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let size = |socket| sockets::option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF);
    let (now, default) = (size(socket)?, size(fresh.as_fd())?);
    // The kernel doubles what it is given (socket(7)).
    Ok((now != default).then_some((libc::SOL_SOCKET, libc::SO_SNDBUF, now / 2)))
}

/// TCP or multipath TCP, whose listeners differ in nothing else.
fn is_tcp(protocol: i32) -> bool {
    matches!(protocol, libc::IPPROTO_TCP | libc::IPPROTO_MPTCP)
}

/// The TCP state, first byte of `struct tcp_info`.
fn tcp_state(socket: BorrowedFd<'_>) -> io::Result<u8> {
    sockets::option(socket, libc::IPPROTO_TCP, libc::TCP_INFO).map(|word| word as u8)
}

/// What waits at one end of a pair, left where it is.
fn peek_queue(fd: i32, kind: i32, socket: BorrowedFd<'_>) -> io::Result<Result<Vec<Vec<u8>>, Refusal>> {
    let before = sockets::peek_offset(socket)?;
    let result = walk_queue(fd, kind, socket);
    // The program may look at its queue in this way itself.
    sockets::set_peek_offset(socket, before)?;
    result
}

fn walk_queue(fd: i32, kind: i32, socket: BorrowedFd<'_>) -> io::Result<Result<Vec<Vec<u8>>, Refusal>> {
    let datagrams = kind != libc::SOCK_STREAM;
    let too_much = |bytes: u64| Refusal::TooMuchContent {
        what: format!("the queue of socket {fd}"),
        bytes,
        max: limits::CARRIED_BYTES_MAX,
    };
    // Of a stream or a sequence of packets, all that waits; of datagrams the next.
    let waiting = sockets::waiting_bytes(socket)?;
    let mut room = waiting.max(sockets::option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF)? as usize);
    let mut queue: Vec<Vec<u8>> = Vec::new();
    let mut bytes = 0usize;
    while datagrams || bytes < waiting {
        sockets::set_peek_offset(socket, bytes as i32)?;
        let peeked = match sockets::peek(socket, room) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            peeked => peeked?,
        };
        if peeked.has_ancillary {
            let what = "a socket with descriptors on their way".into();
            return Ok(Err(Refusal::UnknownDescriptor { fd, what }));
        }
        let total = (bytes + peeked.bytes.len()) as u64;
        if total > limits::CARRIED_BYTES_MAX || room as u64 > limits::CARRIED_BYTES_MAX || queue.len() > QUEUE_MAX {
            return Ok(Err(too_much(total)));
        }
        if peeked.is_cut {
            room *= 2;
            continue;
        }
        // The end of the queue, unless it is a datagram without bytes.
        if peeked.bytes.is_empty() && kind != libc::SOCK_DGRAM {
            break;
        }
        bytes += peeked.bytes.len();
        queue.push(peeked.bytes);
    }
    if kind != libc::SOCK_DGRAM && bytes != waiting {
        return Ok(Err(Refusal::UnknownDescriptor {
            fd,
            what: format!("a socket of whose {waiting} waiting bytes only {bytes} could be read"),
        }));
    }
    Ok(Ok(if datagrams || queue.is_empty() { queue } else { vec![queue.concat()] }))
}
