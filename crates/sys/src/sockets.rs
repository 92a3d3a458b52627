//! Sockets as they are: options, addresses, waiting messages and peers, without changing them.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// An integer socket option.
pub fn option(socket: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` has `len` bytes.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Reads the value of a socket option into `room`; gives its length in bytes.
pub fn option_value(socket: BorrowedFd<'_>, level: i32, name: i32, room: &mut [u8]) -> io::Result<usize> {
    let mut len = room.len() as libc::socklen_t;
    // SAFETY: `room` has `len` bytes.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, room.as_mut_ptr().cast(), &raw mut len) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(len as usize) }
}

/// Sets a socket option to these bytes.
pub fn set_option_value(socket: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: `value` has `len` bytes.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), len) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a socket drops messages by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// Nothing.
    None,
    /// A program of classic BPF (`SO_ATTACH_FILTER`), one instruction a word.
    Classic(Vec<u64>),
    /// A program that cannot be read back (`SO_ATTACH_BPF`).
    Extended,
}

/// The filter that is attached to a socket.
pub fn filter(socket: BorrowedFd<'_>) -> io::Result<Filter> {
    // Here, and nowhere else, the length counts instructions; 0 asks for their number.
    let read = |room: &mut [u64]| {
        let mut len = room.len() as libc::socklen_t;
        let (fd, place) = (socket.as_raw_fd(), room.as_mut_ptr().cast());
        // SAFETY: `room` has `len` instructions of 8 bytes.
        match unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_GET_FILTER, place, &raw mut len) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(len as usize),
        }
    };
    let length = match read(&mut []) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => return Ok(Filter::Extended),
        length => length?,
    };
    if length == 0 {
        return Ok(Filter::None);
    }
    let mut program = vec![0; length];
    read(&mut program)?;
    Ok(Filter::Classic(program))
}

/// Of a `struct group_filter` (linux/in.h): where its number of sources is, and its length without them.
const GROUP_SOURCES_AT: usize = 140;
const GROUP_BYTES: usize = 144;
const GROUP_SOURCE_BYTES: usize = 128;

/// As what a socket is a member of a multicast group: a `struct group_filter`, which sets the same again. None if it is no member. `level` is that of
/// the group's family, `interface` an interface's number, `group` a `sockaddr`.
pub fn group_filter(socket: BorrowedFd<'_>, level: i32, interface: u32, group: &[u8]) -> io::Result<Option<Vec<u8>>> {
    const MCAST_MSFILTER: i32 = 48;
    let mut sources = 0;
    loop {
        let mut filter = vec![0u8; GROUP_BYTES + sources * GROUP_SOURCE_BYTES];
        filter[..4].copy_from_slice(&interface.to_ne_bytes());
        filter[8..8 + group.len()].copy_from_slice(group);
        filter[GROUP_SOURCES_AT..GROUP_BYTES].copy_from_slice(&(sources as u32).to_ne_bytes());
        match option_value(socket, level, MCAST_MSFILTER, &mut filter) {
            Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => return Ok(None),
            read => read?,
        };
        let word = &filter[GROUP_SOURCES_AT..GROUP_BYTES];
        let found = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]) as usize;
        if found <= sources {
            return Ok(Some(filter));
        }
        sources = found;
    }
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
    Ok(tcp_info(socket)?.tcpi_sacked)
}

/// Bytes of the segments that a TCP socket would send now (`tcpi_snd_mss`). The kernel does not tell it of a listening socket: 0.
pub fn tcp_segment(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(tcp_info(socket)?.tcpi_snd_mss)
}

fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<libc::tcp_info> {
    // SAFETY: tcp_info consists of integers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let place = (&raw mut info).cast();
    // SAFETY: `info` has `len` bytes.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut len) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(info) }
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
    /// The address of its sender as a `sockaddr`; empty if it has none.
    pub from: Vec<u8>,
    /// The process that sent it, if the socket asks for credentials.
    pub sender: Option<i32>,
    /// Duplicates of the descriptors that it carries, if they were asked for.
    pub descriptors: Vec<OwnedFd>,
    /// It carries more than bytes, credentials and these descriptors.
    pub has_more: bool,
    /// It is a datagram with more than these bytes.
    pub is_cut: bool,
}

/// Looks at the next message (of a stream: up to `max` waiting bytes, and no further than those that came with descriptors). `WouldBlock`: none.
/// `asks_for_credentials`: as the socket has `SO_PASSCRED`. Descriptors are not taken, and only `has_more` tells of them.
pub fn peek(socket: BorrowedFd<'_>, max: usize, asks_for_credentials: bool) -> io::Result<Peeked> {
    // The kernel writes credentials first: descriptors find no room and are not installed.
    let room = if asks_for_credentials { CREDENTIALS_BYTES } else { 0 };
    peek_into(socket, max, &mut [0; CREDENTIALS_BYTES / 8][..room / 8])
}

/// The same, with the message's descriptors.
pub fn peek_with_descriptors(socket: BorrowedFd<'_>, max: usize) -> io::Result<Peeked> {
    peek_into(socket, max, &mut [0; (CREDENTIALS_BYTES + DESCRIPTORS_BYTES) / 8])
}

/// Of what waits at a unix stream socket, the bytes of the first sends, as many as are at most `max` bytes together. A send that came with
/// descriptors is the last one that is looked at.
///
/// The kernel shows no bounds of sends. But it copies send by send, and what would go beyond `max` meets an address without memory, which ends the
/// call before that send.
pub fn peek_whole(socket: BorrowedFd<'_>, max: usize) -> io::Result<usize> {
    let mut bytes = vec![0u8; max];
    let no_memory = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 << 30 };
    let mut iov = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }, no_memory];
    // SAFETY: a zeroed msghdr is an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (iov.as_mut_ptr(), iov.len());
    // SAFETY: `message` points to buffers of the lengths it says, but for one at which nothing can be written.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    match io::Error::last_os_error() {
        _ if received >= 0 => Ok(received as usize),
        error if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
        error => Err(error),
    }
}

/// A descriptor of the sender, for sockets with `SO_PASSPIDFD`.
const SCM_PIDFD: i32 = 4;
/// A `struct cmsghdr` and a `struct ucred`, aligned.
const CREDENTIALS_BYTES: usize = 32;
/// The same of as many descriptors as a message can have (`SCM_MAX_FD`, 253).
const DESCRIPTORS_BYTES: usize = 16 + 254 * 4;

fn peek_into(socket: BorrowedFd<'_>, max: usize, control: &mut [u64]) -> io::Result<Peeked> {
    let mut bytes = vec![0u8; max];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut from = vec![0u8; size_of::<libc::sockaddr_storage>()];
    // SAFETY: a zeroed msghdr is an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
    (message.msg_name, message.msg_namelen) = (from.as_mut_ptr().cast(), from.len() as libc::socklen_t);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(control));
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` points to buffers of the lengths it says.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if received == -1 {
        return Err(io::Error::last_os_error());
    }
    bytes.truncate(received as usize);
    from.truncate(message.msg_namelen as usize);
    let mut peeked = Peeked {
        bytes,
        from,
        sender: None,
        descriptors: Vec::new(),
        has_more: message.msg_flags & libc::MSG_CTRUNC != 0,
        is_cut: message.msg_flags & libc::MSG_TRUNC != 0,
    };
    // SAFETY: the kernel has filled `control` with whole messages; what it has installed belongs to no one else.
    unsafe { take_control(&message, &mut peeked) };
    Ok(peeked)
}

/// Takes apart what came beside the bytes.
///
/// # Safety
///
/// `message` was filled by `recvmsg`, and its descriptors have no other owner.
unsafe fn take_control(message: &libc::msghdr, peeked: &mut Peeked) {
    // SAFETY: as above, for all calls and reads: each header is whole, and so is what follows it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header).cast::<i32>();
            let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<i32>();
            match ((*header).cmsg_level, (*header).cmsg_type) {
                // Of a struct ucred the process is first.
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => peeked.sender = Some(data.read_unaligned()),
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    let installed = (0..count).map(|at| OwnedFd::from_raw_fd(data.add(at).read_unaligned()));
                    peeked.descriptors.extend(installed);
                }
                (libc::SOL_SOCKET, SCM_PIDFD) => {
                    peeked.has_more = true;
                    drop(OwnedFd::from_raw_fd(data.read_unaligned()));
                }
                _ => peeked.has_more = true,
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Whether a byte that is out of band (`MSG_OOB`) waits at a stream socket.
pub fn has_urgent_byte(socket: BorrowedFd<'_>) -> bool {
    let mut byte = 0u8;
    let flags = libc::MSG_OOB | libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `byte` has room for one byte.
    unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, flags) == 1 }
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
