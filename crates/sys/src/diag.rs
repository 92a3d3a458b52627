//! Lists of sockets, as the kernel gives them for a network namespace (sock_diag(7)).

use std::{collections::HashMap, io};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// What the kernel tells of a unix socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnixSocket {
    /// Inode of its peer: None if it never had one, 0 if that is gone.
    pub peer: Option<u64>,
    /// Directions shut down: 1 receiving, 2 sending.
    pub shutdown: u8,
    /// Low half of the inode number of the file that it is bound to.
    pub file: Option<u32>,
    /// Of a listening socket: connections that wait to be accepted.
    pub waiting: u32,
    /// Of a listening socket: how many may wait.
    pub backlog: u32,
}

/// All unix sockets of this thread's network namespace by inode.
pub fn unix_sockets() -> io::Result<HashMap<u64, UnixSocket>> {
    const UDIAG_SHOW_VFS: u32 = 2;
    const UDIAG_SHOW_PEER: u32 = 4;
    const UDIAG_SHOW_RQLEN: u32 = 0x10;
    const UNIX_DIAG_VFS: u16 = 1;
    const UNIX_DIAG_PEER: u16 = 2;
    const UNIX_DIAG_RQLEN: u16 = 4;
    const UNIX_DIAG_SHUTDOWN: u16 = 6;
    let mut request = vec![libc::AF_UNIX as u8, 0, 0, 0];
    request.extend(u32::MAX.to_le_bytes()); // all states
    request.extend(0u32.to_le_bytes()); // all inodes
    request.extend((UDIAG_SHOW_VFS | UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN).to_le_bytes());
    request.extend([0; 8]); // cookie
    let mut sockets = HashMap::new();
    // struct unix_diag_msg: family, type, state and padding, inode, cookie
    dump(&request, 16, |message, attributes| {
        const LISTEN: u8 = 10;
        let listens = message[2] == LISTEN;
        let mut socket = UnixSocket::default();
        for (kind, value) in attributes {
            match kind {
                UNIX_DIAG_VFS => socket.file = Some(word(value, 0)),
                UNIX_DIAG_PEER => socket.peer = Some(u64::from(word(value, 0))),
                UNIX_DIAG_RQLEN if listens => (socket.waiting, socket.backlog) = (word(value, 0), word(value, 4)),
                UNIX_DIAG_SHUTDOWN => socket.shutdown = value.first().copied().unwrap_or(0),
                _ => {}
            }
        }
        sockets.insert(u64::from(word(message, 4)), socket);
    })?;
    Ok(sockets)
}

/// Directions shut down (1 receiving, 2 sending) of the UDP sockets of this thread's network namespace that are bound and have any, by inode.
/// Empty on a kernel without `CONFIG_INET_UDP_DIAG`.
pub fn udp_shutdowns() -> io::Result<HashMap<u64, u8>> {
    const INET_DIAG_SHUTDOWN: u16 = 8;
    let mut shutdowns = HashMap::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = vec![family as u8, libc::IPPROTO_UDP as u8, 0, 0];
        request.extend(u32::MAX.to_le_bytes()); // all states
        request.extend([0; 48]); // any addresses
        // struct inet_diag_msg: 4 bytes, addresses, expiry, two queues, user, inode
        let dumped = dump(&request, 72, |message, attributes| {
            for (_, value) in attributes.filter(|(kind, value)| *kind == INET_DIAG_SHUTDOWN && value.first() > Some(&0))
            {
                shutdowns.insert(u64::from(word(message, 68)), value[0]);
            }
        });
        match dumped {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(shutdowns),
            dumped => dumped?,
        }
    }
    Ok(shutdowns)
}

/// TCP ports that something listens on in this thread's network namespace. `/proc/net/tcp` would tell them too, after it has walked every
/// bucket of the machine's connections, milliseconds for each of its two files.
pub fn listening_ports() -> io::Result<Vec<u16>> {
    const LISTEN: u32 = 1 << 10;
    let mut ports = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0];
        request.extend(LISTEN.to_le_bytes());
        request.extend([0; 48]); // any addresses
        // struct inet_diag_msg: 4 bytes, port of its own (in the order of the network), the rest
        dump(&request, 72, |message, _| ports.push(u16::from_be_bytes([message[4], message[5]])))?;
    }
    Ok(ports)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

/// Asks for all sockets that `request` describes; `each` sees every answer, whose fixed part has `fixed` bytes, and its attributes.
fn dump(request: &[u8], fixed: usize, mut each: impl FnMut(&[u8], Attributes<'_>)) -> io::Result<()> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST_DUMP: u16 = 0x301;
    const HEADER_BYTES: usize = 16;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?;
    let mut message = Vec::with_capacity(HEADER_BYTES + request.len());
    message.extend(((HEADER_BYTES + request.len()) as u32).to_le_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_le_bytes());
    message.extend(NLM_F_REQUEST_DUMP.to_le_bytes());
    message.extend([0; 8]); // sequence, port
    message.extend(request);
    rustix::net::send(&socket, &message, SendFlags::empty())?;
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        let (len, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        if !parse(&buffer[..len], fixed, &mut each)? {
            return Ok(());
        }
    }
}

/// The answers in one datagram; says whether more follow.
fn parse(mut datagram: &[u8], fixed: usize, each: &mut impl FnMut(&[u8], Attributes<'_>)) -> io::Result<bool> {
    const NLMSG_ERROR: u16 = 2;
    const NLMSG_DONE: u16 = 3;
    while datagram.len() >= 16 {
        let len = word(datagram, 0) as usize;
        if len < 16 || len > datagram.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match u16::from_le_bytes([datagram[4], datagram[5]]) {
            NLMSG_DONE => return Ok(false),
            NLMSG_ERROR => return Err(io::Error::from_raw_os_error(-(word(datagram, 16) as i32))),
            _ => {}
        }
        let message = &datagram[16..len];
        if let Some(attributes) = message.get(fixed..) {
            each(&message[..fixed], Attributes(attributes));
        }
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(true)
}

/// Kinds and values of the attributes of an answer.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header = self.0.get(..4)?;
        let (size, kind) = (usize::from(u16::from_le_bytes([header[0], header[1]])), [header[2], header[3]]);
        let value = self.0.get(4..size)?;
        self.0 = self.0.get(size.next_multiple_of(4)..).unwrap_or(&[]);
        Some((u16::from_le_bytes(kind), value))
    }
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsRawFd, unix::net::UnixListener};

    use super::*;

    fn inode(file: &impl AsRawFd) -> u64 {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        link.to_str().unwrap().trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
    }

    #[test]
    fn what_waits_at_a_unix_listener_is_counted() {
        let path = std::env::temp_dir().join(format!("pando-diag-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let waiting = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let known = unix_sockets().unwrap();
        std::fs::remove_file(&path).unwrap();
        let found = known[&inode(&listener)];
        assert_eq!(found.waiting, 1);
        assert!(found.backlog > 0);
        assert_eq!(known[&inode(&waiting)].waiting, 0);
    }

    #[test]
    fn listeners_are_found_by_port_and_connections_are_not() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(address) else { continue };
            let address = listener.local_addr().unwrap();
            let client = std::net::TcpStream::connect(address).unwrap();
            let found = listening_ports().unwrap();
            assert!(found.contains(&address.port()), "{address}: {found:?}");
            assert!(!found.contains(&client.local_addr().unwrap().port()), "{found:?}");
            drop(listener);
            assert!(!listening_ports().unwrap().contains(&address.port()));
        }
    }

    #[test]
    fn a_udp_socket_that_sends_no_more_is_told() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect("127.0.0.1:9").unwrap();
        assert_eq!(udp_shutdowns().unwrap().get(&inode(&socket)), None);
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Write).unwrap();
        assert_eq!(udp_shutdowns().unwrap().get(&inode(&socket)), Some(&2));
    }
}
