//! Sockets as they are: options, addresses, waiting messages and peers, without changing them.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// An integer socket option.
pub fn option(socket: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` has `len` bytes.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Whether a filter is attached to a socket (`SO_ATTACH_FILTER`, `SO_ATTACH_BPF`).
pub fn has_filter(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut len: libc::socklen_t = 0;
    let none = std::ptr::null_mut();
    // SAFETY: with a length of 0 nothing is written but the length.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, none, &raw mut len) };
    if result != -1 {
        return Ok(len > 0);
    }
    let error = io::Error::last_os_error();
    // There is one that is not of the classic kind.
    if error.raw_os_error() == Some(libc::EACCES) { Ok(true) } else { Err(error) }
}

/// Sets an integer socket option.
pub fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` has `len` bytes.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

type AddressCall = unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32;

fn address(socket: BorrowedFd<'_>, call: AddressCall) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; size_of::<libc::sockaddr_storage>()];
    let mut len = bytes.len() as libc::socklen_t;
    // SAFETY: `bytes` has `len` bytes, enough for every address family.
    if unsafe { call(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), &raw mut len) } == -1 {
        return Err(io::Error::last_os_error());
    }
    bytes.truncate(len as usize);
    Ok(bytes)
}

/// The address a socket is bound to, as a `sockaddr` of its real length.
pub fn local_address(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    address(socket, libc::getsockname)
}

/// The address a socket is connected to; `NotConnected` if it is not.
pub fn peer_address(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    address(socket, libc::getpeername)
}

/// The backlog of a listening TCP socket (`tcpi_sacked` holds it: net/ipv4/tcp.c, tcp_get_info).
pub fn tcp_backlog(socket: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: tcp_info consists of integers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let place = (&raw mut info).cast();
    // SAFETY: `info` has `len` bytes.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut len) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(info.tcpi_sacked) }
}

/// Whether a TCP socket is, or was before it was closed, connected: it has sent or received a segment since it was made.
pub fn tcp_was_connected(socket: BorrowedFd<'_>) -> io::Result<bool> {
    /// Where `tcpi_segs_out` and `tcpi_segs_in` are in `struct tcp_info` (Linux 4.2), of which `libc` has the first part only.
    const SEGMENTS: std::ops::Range<usize> = 136..144;
    let mut info = [0u8; SEGMENTS.end];
    let mut len = info.len() as libc::socklen_t;
    let place = info.as_mut_ptr().cast();
    // SAFETY: `info` has `len` bytes.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut len) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(info[SEGMENTS].iter().any(|byte| *byte != 0)) }
}

/// Bytes (of a datagram socket: of the next message) waiting to be read.
pub fn waiting_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(rustix::io::ioctl_fionread(fd)? as usize)
}

/// A waiting message, left in its queue.
#[derive(Debug)]
pub struct Peeked {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// It carries descriptors or credentials.
    pub has_ancillary: bool,
    /// It is a datagram with more than these bytes.
    pub is_cut: bool,
}

/// Looks at the next message (of a stream: up to `max` waiting bytes). `WouldBlock`: none.
pub fn peek(socket: BorrowedFd<'_>, max: usize) -> io::Result<Peeked> {
    let mut bytes = vec![0u8; max];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a zeroed msghdr is an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
    // No control buffer: waiting descriptors are not installed, only announced by MSG_CTRUNC.
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `message` points to one buffer of the length it says.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if received == -1 {
        return Err(io::Error::last_os_error());
    }
    bytes.truncate(received as usize);
    Ok(Peeked {
        bytes,
        has_ancillary: message.msg_flags & libc::MSG_CTRUNC != 0,
        is_cut: message.msg_flags & libc::MSG_TRUNC != 0,
    })
}

/// What the kernel tells of a unix socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnixSocket {
    /// Inode of its peer: None if it never had one, 0 if that is gone.
    pub peer: Option<u64>,
    /// Directions shut down: 1 receiving, 2 sending.
    pub shutdown: u8,
    /// Low half of the inode number of the file that it is bound to.
    pub file: Option<u32>,
}

/// All unix sockets of this thread's network namespace by inode (sock_diag(7)).
pub fn unix_sockets() -> io::Result<HashMap<u64, UnixSocket>> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST_DUMP: u16 = 0x301;
    const UDIAG_SHOW_VFS: u32 = 2;
    const UDIAG_SHOW_PEER: u32 = 4;
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let mut request = Vec::with_capacity(40);
    request.extend(40u32.to_le_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_le_bytes());
    request.extend(NLM_F_REQUEST_DUMP.to_le_bytes());
    request.extend([0; 8]); // sequence, port
    request.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    request.extend(u32::MAX.to_le_bytes()); // all states
    request.extend(0u32.to_le_bytes()); // all inodes
    request.extend((UDIAG_SHOW_VFS | UDIAG_SHOW_PEER).to_le_bytes());
    request.extend([0; 8]); // cookie
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut sockets = HashMap::new();
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        let (len, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        if !parse_sockets(&buffer[..len], &mut sockets)? {
            return Ok(sockets);
        }
    }
}

/// Adds the answers in one datagram; says whether more follow.
fn parse_sockets(mut datagram: &[u8], sockets: &mut HashMap<u64, UnixSocket>) -> io::Result<bool> {
    const NLMSG_ERROR: u16 = 2;
    const NLMSG_DONE: u16 = 3;
    const UNIX_DIAG_VFS: u16 = 1;
    const UNIX_DIAG_PEER: u16 = 2;
    const UNIX_DIAG_SHUTDOWN: u16 = 6;
    let half = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    while datagram.len() >= 16 {
        let len = word(datagram, 0) as usize;
        if len < 16 || len > datagram.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match half(datagram, 4) {
            NLMSG_DONE => return Ok(false),
            NLMSG_ERROR => return Err(io::Error::other("the kernel refused the socket list")),
            _ => {}
        }
        let message = &datagram[16..len];
        if message.len() >= 16 {
            let socket = sockets.entry(u64::from(word(message, 4))).or_default();
            let mut attributes = &message[16..];
            while attributes.len() >= 8 {
                let size = usize::from(half(attributes, 0));
                match half(attributes, 2) {
                    UNIX_DIAG_VFS => socket.file = Some(word(attributes, 4)),
                    UNIX_DIAG_PEER => socket.peer = Some(u64::from(word(attributes, 4))),
                    UNIX_DIAG_SHUTDOWN => socket.shutdown = attributes[4],
                    _ => {}
                }
                if size < 4 {
                    break;
                }
                attributes = attributes.get(size.next_multiple_of(4)..).unwrap_or(&[]);
            }
        }
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(true)
}

/// Copies what waits in a pipe, leaving it there: one run of bytes, or each packet of a packet pipe. `reader` may be any descriptor of
/// its reading end.
pub fn peek_pipe(reader: BorrowedFd<'_>, capacity: usize) -> io::Result<Vec<Vec<u8>>> {
    let waiting = waiting_bytes(reader)?;
    let mut content: Vec<Vec<u8>> = Vec::new();
    if waiting == 0 {
        return Ok(content);
    }
    let (copy_out, copy_in) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)?;
    rustix::pipe::fcntl_setpipe_size(&copy_in, capacity)?;
    let mut left = tee(reader, &copy_in, waiting)?;
    if left < waiting {
        return Err(io::Error::other("not all that waits in the pipe could be read"));
    }
    while left > 0 {
        // A read ends at the end of a packet.
        let mut bytes = vec![0u8; left];
        let got = rustix::io::read(&copy_out, &mut bytes[..])?;
        bytes.truncate(got);
        left -= got;
        content.push(bytes);
    }
    Ok(content)
}

fn tee(from: BorrowedFd<'_>, to: &OwnedFd, bytes: usize) -> io::Result<usize> {
    // SAFETY: tee takes two descriptors and two integers.
    let copied = unsafe { libc::tee(from.as_raw_fd(), to.as_fd().as_raw_fd(), bytes, libc::SPLICE_F_NONBLOCK) };
    if copied == -1 { Err(io::Error::last_os_error()) } else { Ok(copied as usize) }
}

/// Where the next look (`MSG_PEEK`) at a unix socket begins, in bytes from the oldest that waits; it then moves on. Negative: always at
/// the oldest.
pub fn peek_offset(socket: BorrowedFd<'_>) -> io::Result<i32> {
    option(socket, libc::SOL_SOCKET, libc::SO_PEEK_OFF)
}

/// Sets that.
pub fn set_peek_offset(socket: BorrowedFd<'_>, offset: i32) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_PEEK_OFF, offset)
}
