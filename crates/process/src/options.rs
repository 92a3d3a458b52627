//! Socket options: the one list of those that a fork carries, and how a socket's options differ from those of a new one.
//!
//! An option is carried if a program without privileges can set it and the kernel tells its value. Values that differ from a new socket's are
//! tried on a new one (`changed`). A copy does the same steps. An option that does not reach its value is named in the refusal.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};
use sys::sockets;

use crate::image::SocketOption;

/// Family, type and protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SocketType {
    pub(crate) family: i32,
    pub(crate) kind: i32,
    pub(crate) protocol: i32,
}

/// Whose option it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Any,
    Unix,
    /// IPv4 and IPv6.
    Inet,
    Inet6,
    Tcp,
    Udp,
    Netlink,
}

/// When the kernel changes its value by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drifts {
    Never,
    Listening,
    Connected,
    /// `TCP_MAXSEG`: connected, and it keeps what it used when a connection was refused.
    Segment,
    /// `SO_INCOMING_CPU`: connected, at each packet that it receives.
    Receiving,
}

/// What a socket does: of what the kernel changes itself nothing is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Neither of the others.
    Quiet,
    Listening,
    Connected,
    /// A datagram socket that is told whom it sends to.
    Datagrams,
}

#[derive(Debug)]
struct OptionRow {
    text: &'static str,
    level: i32,
    name: i32,
    of: Of,
    drifts: Drifts,
}

const fn row(text: &'static str, level: i32, name: i32, of: Of) -> OptionRow {
    OptionRow { text, level, name, of, drifts: Drifts::Never }
}

const fn drifting(text: &'static str, level: i32, name: i32, of: Of, drifts: Drifts) -> OptionRow {
    OptionRow { text, level, name, of, drifts }
}

const SOCKET: i32 = libc::SOL_SOCKET;
const IP: i32 = libc::IPPROTO_IP;
const IPV6: i32 = libc::IPPROTO_IPV6;
const TCP: i32 = libc::IPPROTO_TCP;
const UDP: i32 = libc::IPPROTO_UDP;
const NETLINK: i32 = 270;

const SO_BUF_LOCK: i32 = 72;
const SO_TXREHASH: i32 = 74;

/// In the order in which they are set: what sets another beside itself comes before that. Numbers are those of the kernel's headers, which
/// `libc` has in part.
const KNOWN: &[OptionRow] = &[
    row("IP_TOS", IP, 1, Of::Inet), // and SO_PRIORITY
    row("SO_REUSEADDR", SOCKET, 2, Of::Any),
    row("SO_DONTROUTE", SOCKET, 5, Of::Any),
    row("SO_BROADCAST", SOCKET, 6, Of::Any),
    drifting("SO_SNDBUF", SOCKET, libc::SO_SNDBUF, Of::Any, Drifts::Connected),
    drifting("SO_RCVBUF", SOCKET, libc::SO_RCVBUF, Of::Any, Drifts::Connected),
    row("SO_BUF_LOCK", SOCKET, SO_BUF_LOCK, Of::Any),
    row("SO_KEEPALIVE", SOCKET, 9, Of::Any),
    row("SO_OOBINLINE", SOCKET, 10, Of::Any),
    row("SO_NO_CHECK", SOCKET, 11, Of::Any),
    row("SO_PRIORITY", SOCKET, 12, Of::Any),
    row("SO_LINGER", SOCKET, 13, Of::Any),
    row("SO_REUSEPORT", SOCKET, 15, Of::Any),
    row("SO_PASSCRED", SOCKET, 16, Of::Unix),
    row("SO_RCVLOWAT", SOCKET, 18, Of::Any),
    row("SO_RCVTIMEO", SOCKET, 20, Of::Any),
    row("SO_SNDTIMEO", SOCKET, 21, Of::Any),
    row("SO_BINDTODEVICE", SOCKET, 25, Of::Inet),
    row("SO_TIMESTAMP", SOCKET, 29, Of::Any),
    row("SO_PASSSEC", SOCKET, 34, Of::Unix),
    row("SO_TIMESTAMPNS", SOCKET, 35, Of::Any),
    row("SO_TIMESTAMPING", SOCKET, 37, Of::Any),
    row("SO_RXQ_OVFL", SOCKET, 40, Of::Any),
    row("SO_WIFI_STATUS", SOCKET, 41, Of::Inet),
    row("SO_NOFCS", SOCKET, 43, Of::Inet),
    row("SO_SELECT_ERR_QUEUE", SOCKET, 45, Of::Any),
    row("SO_BUSY_POLL", SOCKET, 46, Of::Inet),
    row("SO_MAX_PACING_RATE", SOCKET, 47, Of::Any),
    drifting("SO_INCOMING_CPU", SOCKET, 49, Of::Inet, Drifts::Receiving),
    row("SO_ZEROCOPY", SOCKET, 60, Of::Any),
    row("SO_TXTIME", SOCKET, 61, Of::Inet),
    row("SO_TIMESTAMP_NEW", SOCKET, 63, Of::Any),
    row("SO_TIMESTAMPNS_NEW", SOCKET, 64, Of::Any),
    row("SO_TIMESTAMPING_NEW", SOCKET, 65, Of::Any),
    row("SO_BUSY_POLL_BUDGET", SOCKET, 70, Of::Inet),
    row("SO_RESERVE_MEM", SOCKET, 73, Of::Inet),
    drifting("SO_TXREHASH", SOCKET, SO_TXREHASH, Of::Inet, Drifts::Listening),
    row("SO_PASSPIDFD", SOCKET, 76, Of::Unix),
    row("SO_PASSRIGHTS", SOCKET, 83, Of::Unix),
    row("SO_INQ", SOCKET, 84, Of::Unix),
    row("IP_TTL", IP, 2, Of::Inet),
    row("IP_OPTIONS", IP, 4, Of::Inet),
    row("IP_RECVOPTS", IP, 6, Of::Inet),
    row("IP_RETOPTS", IP, 7, Of::Inet),
    row("IP_PKTINFO", IP, 8, Of::Inet),
    row("IP_MTU_DISCOVER", IP, 10, Of::Inet),
    row("IP_RECVERR", IP, 11, Of::Inet),
    row("IP_RECVTTL", IP, 12, Of::Inet),
    row("IP_RECVTOS", IP, 13, Of::Inet),
    row("IP_FREEBIND", IP, libc::IP_FREEBIND, Of::Inet),
    row("IP_PASSSEC", IP, 18, Of::Inet),
    row("IP_RECVORIGDSTADDR", IP, 20, Of::Inet),
    row("IP_MINTTL", IP, 21, Of::Inet),
    row("IP_CHECKSUM", IP, 23, Of::Inet),
    row("IP_BIND_ADDRESS_NO_PORT", IP, 24, Of::Inet),
    row("IP_RECVFRAGSIZE", IP, 25, Of::Inet),
    row("IP_RECVERR_RFC4884", IP, 26, Of::Inet),
    row("IP_MULTICAST_IF", IP, 32, Of::Inet),
    // From here to IPV6_MULTICAST_HOPS, what drifts is taken from the packet that a connection was accepted by.
    drifting("IP_MULTICAST_TTL", IP, 33, Of::Inet, Drifts::Connected),
    row("IP_MULTICAST_LOOP", IP, 34, Of::Inet),
    row("IP_MULTICAST_ALL", IP, 49, Of::Inet),
    row("IP_UNICAST_IF", IP, 50, Of::Inet),
    row("IP_LOCAL_PORT_RANGE", IP, 51, Of::Inet),
    row("IPV6_2292PKTINFO", IPV6, 2, Of::Inet6),
    row("IPV6_2292HOPOPTS", IPV6, 3, Of::Inet6),
    row("IPV6_2292DSTOPTS", IPV6, 4, Of::Inet6),
    row("IPV6_2292RTHDR", IPV6, 5, Of::Inet6),
    row("IPV6_2292HOPLIMIT", IPV6, 8, Of::Inet6),
    row("IPV6_FLOWINFO", IPV6, 11, Of::Inet6),
    row("IPV6_UNICAST_HOPS", IPV6, 16, Of::Inet6),
    drifting("IPV6_MULTICAST_IF", IPV6, 17, Of::Inet6, Drifts::Connected),
    drifting("IPV6_MULTICAST_HOPS", IPV6, 18, Of::Inet6, Drifts::Connected),
    row("IPV6_MULTICAST_LOOP", IPV6, 19, Of::Inet6),
    row("IPV6_MTU_DISCOVER", IPV6, 23, Of::Inet6),
    row("IPV6_RECVERR", IPV6, 25, Of::Inet6),
    row("IPV6_V6ONLY", IPV6, 26, Of::Inet6),
    row("IPV6_MULTICAST_ALL", IPV6, 29, Of::Inet6),
    row("IPV6_RECVERR_RFC4884", IPV6, 31, Of::Inet6),
    row("IPV6_FLOWINFO_SEND", IPV6, 33, Of::Inet6),
    row("IPV6_RECVPKTINFO", IPV6, 49, Of::Inet6),
    row("IPV6_RECVHOPLIMIT", IPV6, 51, Of::Inet6),
    row("IPV6_RECVHOPOPTS", IPV6, 53, Of::Inet6),
    row("IPV6_RECVRTHDR", IPV6, 56, Of::Inet6),
    row("IPV6_RECVDSTOPTS", IPV6, 58, Of::Inet6),
    row("IPV6_RECVPATHMTU", IPV6, 60, Of::Inet6),
    row("IPV6_DONTFRAG", IPV6, 62, Of::Inet6),
    row("IPV6_RECVTCLASS", IPV6, 66, Of::Inet6),
    row("IPV6_TCLASS", IPV6, 67, Of::Inet6),
    row("IPV6_AUTOFLOWLABEL", IPV6, 70, Of::Inet6),
    row("IPV6_ADDR_PREFERENCES", IPV6, 72, Of::Inet6),
    row("IPV6_MINHOPCOUNT", IPV6, 73, Of::Inet6),
    row("IPV6_RECVORIGDSTADDR", IPV6, 74, Of::Inet6),
    row("IPV6_UNICAST_IF", IPV6, 76, Of::Inet6),
    row("IPV6_RECVFRAGSIZE", IPV6, 77, Of::Inet6),
    row("IPV6_FREEBIND", IPV6, libc::IPV6_FREEBIND, Of::Inet6),
    row("TCP_NODELAY", TCP, 1, Of::Tcp),
    drifting("TCP_MAXSEG", TCP, 2, Of::Tcp, Drifts::Segment),
    row("TCP_CORK", TCP, 3, Of::Tcp),
    row("TCP_KEEPIDLE", TCP, 4, Of::Tcp),
    row("TCP_KEEPINTVL", TCP, 5, Of::Tcp),
    row("TCP_KEEPCNT", TCP, 6, Of::Tcp),
    row("TCP_SYNCNT", TCP, 7, Of::Tcp),
    row("TCP_LINGER2", TCP, 8, Of::Tcp),
    row("TCP_DEFER_ACCEPT", TCP, 9, Of::Tcp),
    drifting("TCP_WINDOW_CLAMP", TCP, 10, Of::Tcp, Drifts::Connected),
    drifting("TCP_QUICKACK", TCP, 12, Of::Tcp, Drifts::Connected),
    row("TCP_CONGESTION", TCP, 13, Of::Tcp),
    row("TCP_THIN_LINEAR_TIMEOUTS", TCP, 16, Of::Tcp),
    row("TCP_USER_TIMEOUT", TCP, 18, Of::Tcp),
    row("TCP_FASTOPEN", TCP, 23, Of::Tcp),
    row("TCP_NOTSENT_LOWAT", TCP, 25, Of::Tcp),
    row("TCP_SAVE_SYN", TCP, 27, Of::Tcp),
    row("TCP_FASTOPEN_CONNECT", TCP, 30, Of::Tcp),
    row("TCP_FASTOPEN_KEY", TCP, 33, Of::Tcp),
    row("TCP_FASTOPEN_NO_COOKIE", TCP, 34, Of::Tcp),
    row("TCP_INQ", TCP, 36, Of::Tcp),
    row("TCP_TX_DELAY", TCP, 37, Of::Tcp),
    row("TCP_RTO_MAX_MS", TCP, 44, Of::Tcp),
    row("TCP_RTO_MIN_US", TCP, 45, Of::Tcp),
    row("TCP_DELACK_MAX_US", TCP, 46, Of::Tcp),
    row("UDP_CORK", UDP, 1, Of::Udp),
    row("UDP_ENCAP", UDP, 100, Of::Udp),
    row("UDP_NO_CHECK6_TX", UDP, 101, Of::Udp),
    row("UDP_NO_CHECK6_RX", UDP, 102, Of::Udp),
    row("UDP_SEGMENT", UDP, 103, Of::Udp),
    row("UDP_GRO", UDP, 104, Of::Udp),
    row("SO_PEEK_OFF", SOCKET, libc::SO_PEEK_OFF, Of::Any),
    row("SO_LOCK_FILTER", SOCKET, 44, Of::Any),
    row("NETLINK_PKTINFO", NETLINK, 3, Of::Netlink),
    row("NETLINK_BROADCAST_ERROR", NETLINK, 4, Of::Netlink),
    row("NETLINK_NO_ENOBUFS", NETLINK, 5, Of::Netlink),
    row("NETLINK_CAP_ACK", NETLINK, 10, Of::Netlink),
    row("NETLINK_EXT_ACK", NETLINK, 11, Of::Netlink),
    row("NETLINK_GET_STRICT_CHK", NETLINK, 12, Of::Netlink),
];

/// Whether an option is set last, when a socket has its queue and its filter: it would change or forbid these.
pub(crate) fn is_late(level: i32, name: i32) -> bool {
    const SO_LOCK_FILTER: i32 = 44;
    level == SOCKET && matches!(name, libc::SO_PEEK_OFF | SO_LOCK_FILTER)
}

/// Longest value, in bytes: that of `IP_OPTIONS`.
const VALUE_BYTES_MAX: usize = 40;

/// The value of an option: none if the kernel does not tell, or it is not this socket's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Value {
    length: Option<usize>,
    bytes: [u8; VALUE_BYTES_MAX],
}

impl Value {
    const NONE: Self = Self { length: None, bytes: [0; VALUE_BYTES_MAX] };

    fn read(socket: BorrowedFd<'_>, known: &OptionRow) -> Self {
        let mut value = Self::NONE;
        value.length = sockets::option_value(socket, known.level, known.name, &mut value.bytes).ok();
        value
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length.unwrap_or(0)]
    }

    fn number(&self) -> Option<i32> {
        self.bytes().try_into().ok().map(i32::from_ne_bytes)
    }
}

/// The values of all options of a socket.
#[derive(Debug, Clone)]
pub(crate) struct Values {
    /// In the order of [`KNOWN`].
    options: Vec<Value>,
    /// Bytes of the segments that a TCP socket would send; none of others, and if it listens.
    segment: Option<u32>,
}

impl Values {
    pub(crate) fn read(socket: BorrowedFd<'_>, of: SocketType) -> Self {
        let value = |known: &OptionRow| if known.is_of(of) { Value::read(socket, known) } else { Value::NONE };
        let segment =
            if Of::Tcp.has(of) { sockets::tcp_segment(socket).ok().filter(|bytes| *bytes != 0) } else { None };
        Self { options: KNOWN.iter().map(value).collect(), segment }
    }

    fn number(&self, name: i32) -> Option<i32> {
        let at = KNOWN.iter().position(|known| (known.level, known.name) == (SOCKET, name))?;
        self.options[at].number()
    }
}

impl Of {
    fn has(self, socket: SocketType) -> bool {
        let is_unix = socket.family == libc::AF_UNIX;
        let is_inet = matches!(socket.family, libc::AF_INET | libc::AF_INET6);
        match self {
            Self::Any => true,
            Self::Unix => is_unix,
            Self::Inet => is_inet,
            Self::Inet6 => socket.family == libc::AF_INET6,
            Self::Tcp => is_inet && socket.kind == libc::SOCK_STREAM,
            Self::Udp => is_inet && socket.kind == libc::SOCK_DGRAM,
            Self::Netlink => socket.family == libc::AF_NETLINK,
        }
    }
}

impl OptionRow {
    fn is_of(&self, socket: SocketType) -> bool {
        self.of.has(socket)
    }

    /// Whether the value is the kernel's own.
    fn has_drifted(&self, values: &Values, value: &Value, phase: Phase, fresh: &Values) -> bool {
        let may = match self.drifts {
            Drifts::Never => false,
            Drifts::Listening => matches!(phase, Phase::Listening | Phase::Connected),
            Drifts::Connected => phase == Phase::Connected,
            // A socket that is not connected shows the program's own limit, or else the segments that it would send.
            Drifts::Segment => {
                phase == Phase::Connected
                    || values.segment.is_some_and(|segment| value.number() == i32::try_from(segment).ok())
            }
            // A refused connection has received a packet, too.
            Drifts::Receiving => {
                let was_refused = values.segment.is_some() && values.segment != fresh.segment;
                matches!(phase, Phase::Connected | Phase::Datagrams) || was_refused
            }
        };
        may && match (self.level, self.name) {
            // A size that a program has set is locked: 1 for sending, 2 for receiving.
            (SOCKET, libc::SO_SNDBUF) => values.number(SO_BUF_LOCK).is_some_and(|lock| lock & 1 == 0),
            (SOCKET, libc::SO_RCVBUF) => values.number(SO_BUF_LOCK).is_some_and(|lock| lock & 2 == 0),
            // From "as the system has it" to the system's.
            (SOCKET, SO_TXREHASH) => value.number() == Some(1),
            _ => true,
        }
    }

    /// What is given to the kernel for this value.
    fn written(&self, value: &Value) -> Vec<u8> {
        match ((self.level, self.name), value.number()) {
            // The kernel doubles what it is given (socket(7)).
            ((SOCKET, libc::SO_SNDBUF | libc::SO_RCVBUF), Some(size)) => (size / 2).to_ne_bytes().to_vec(),
            _ => value.bytes().to_vec(),
        }
    }
}

/// What brings a new socket to another one's values.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    pub(crate) options: Vec<SocketOption>,
    /// Names of options that it does not reach.
    pub(crate) lost: Vec<&'static str>,
}

/// How `socket` differs from a new one, which has the values `fresh` and which `make` makes.
pub(crate) fn changed(
    (socket, of): (BorrowedFd<'_>, SocketType),
    phase: Phase,
    fresh: &Values,
    make: impl FnOnce() -> io::Result<OwnedFd>,
) -> io::Result<Changed> {
    let wanted = Values::read(socket, of);
    let differing = |has: &Values| -> Vec<usize> {
        let differs = |n: &usize| {
            let value = &wanted.options[*n];
            value.length.is_some() && *value != has.options[*n] && !KNOWN[*n].has_drifted(&wanted, value, phase, fresh)
        };
        (0..KNOWN.len()).filter(differs).collect()
    };
    let mut left = differing(fresh);
    let mut changed = Changed::default();
    if left.is_empty() {
        return Ok(changed);
    }
    let trial = make()?;
    // The second time is for what the first has changed beside what it set.
    for _ in 0..2 {
        for known in left.iter().map(|n| (&KNOWN[*n], &wanted.options[*n])) {
            let (known, value) = (known.0, known.0.written(known.1));
            if sockets::set_option_value(trial.as_fd(), known.level, known.name, &value).is_ok() {
                changed.options.push((known.level, known.name, value));
            }
        }
        left = differing(&Values::read(trial.as_fd(), of));
    }
    changed.lost = left.into_iter().map(|n| KNOWN[n].text).collect();
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType as Kind, socket_with};

    use super::*;

    const TYPES: [SocketType; 7] = [
        SocketType { family: libc::AF_INET, kind: libc::SOCK_STREAM, protocol: libc::IPPROTO_TCP },
        SocketType { family: libc::AF_INET6, kind: libc::SOCK_STREAM, protocol: libc::IPPROTO_TCP },
        SocketType { family: libc::AF_INET, kind: libc::SOCK_DGRAM, protocol: libc::IPPROTO_UDP },
        SocketType { family: libc::AF_INET6, kind: libc::SOCK_DGRAM, protocol: libc::IPPROTO_UDP },
        SocketType { family: libc::AF_UNIX, kind: libc::SOCK_STREAM, protocol: 0 },
        SocketType { family: libc::AF_UNIX, kind: libc::SOCK_DGRAM, protocol: 0 },
        SocketType { family: libc::AF_UNIX, kind: libc::SOCK_SEQPACKET, protocol: 0 },
    ];

    fn make(of: SocketType) -> io::Result<OwnedFd> {
        let (family, kind) = (AddressFamily::from_raw(of.family as u16), Kind::from_raw(of.kind as u32));
        Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
    }

    /// Fails also if a trial socket is made for nothing.
    fn assert_unchanged(socket: &impl AsFd, of: SocketType, phase: Phase) {
        let fresh = Values::read(make(of).unwrap().as_fd(), of);
        let mut is_tried = false;
        let found = changed((socket.as_fd(), of), phase, &fresh, || {
            is_tried = true;
            make(of)
        });
        assert!(!is_tried, "{of:?}, {phase:?}: {found:?}");
    }

    #[test]
    fn a_socket_on_which_nothing_was_set_costs_a_start_nothing() {
        for of in TYPES {
            // A host may be without IPv6.
            let Ok(socket) = make(of) else { continue };
            assert_unchanged(&socket, of, Phase::Quiet);
        }
        // A socket of IPv6 that is bound to one address is of IPv6 only.
        for (any, to, of) in [("0.0.0.0:0", "127.0.0.1", TYPES[0]), ("[::]:0", "::1", TYPES[1])] {
            let Ok(listener) = std::net::TcpListener::bind(any) else { continue };
            // Set by the standard library.
            sockets::set_option(listener.as_fd(), SOCKET, libc::SO_REUSEADDR, 0).unwrap();
            let client = std::net::TcpStream::connect((to, listener.local_addr().unwrap().port())).unwrap();
            let (server, _) = listener.accept().unwrap();
            assert_unchanged(&listener, of, Phase::Listening);
            for connected in [client, server] {
                assert_unchanged(&connected, of, Phase::Connected);
            }
        }
    }

    #[test]
    fn what_the_kernel_changes_without_a_connection_is_not_carried() {
        for (to, of) in [("127.0.0.1:1", TYPES[0]), ("[::1]:1", TYPES[1])] {
            let Ok(socket) = make(of) else { continue };
            let to: std::net::SocketAddr = to.parse().unwrap();
            let Err(rustix::io::Errno::CONNREFUSED) = rustix::net::connect(&socket, &to) else { continue };
            assert_unchanged(&socket, of, Phase::Quiet);
        }
        let [receiver, sender] = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        receiver.connect(sender.local_addr().unwrap()).unwrap();
        sender.send_to(b"x", receiver.local_addr().unwrap()).unwrap();
        receiver.recv(&mut [0]).unwrap();
        assert_unchanged(&receiver, TYPES[2], Phase::Datagrams);
    }

    #[test]
    fn a_segment_size_and_a_processor_of_the_programs_are_carried() {
        const TCP_MAXSEG: i32 = 2;
        const SO_INCOMING_CPU: i32 = 49;
        let of = TYPES[0];
        let socket = make(of).unwrap();
        sockets::set_option(socket.as_fd(), TCP, TCP_MAXSEG, 700).unwrap();
        sockets::set_option(socket.as_fd(), SOCKET, SO_INCOMING_CPU, 0).unwrap();
        let fresh = Values::read(make(of).unwrap().as_fd(), of);
        let mut found = changed((socket.as_fd(), of), Phase::Quiet, &fresh, || make(of)).unwrap();
        found.options.dedup();
        let bytes = |number: i32| number.to_ne_bytes().to_vec();
        assert_eq!(found.options, [(SOCKET, SO_INCOMING_CPU, bytes(0)), (TCP, TCP_MAXSEG, bytes(700))]);
        assert_eq!(found.lost, Vec::<&str>::new());
    }

    #[test]
    fn what_sets_another_option_beside_itself_is_made_good() {
        const IP_TOS: i32 = 1;
        let of = TYPES[2];
        let socket = make(of).unwrap();
        sockets::set_option(socket.as_fd(), IP, IP_TOS, 0x10).unwrap();
        sockets::set_option(socket.as_fd(), SOCKET, libc::SO_PRIORITY, 0).unwrap();
        let fresh = Values::read(make(of).unwrap().as_fd(), of);
        let found = changed((socket.as_fd(), of), Phase::Quiet, &fresh, || make(of)).unwrap();
        assert_eq!(found.lost, Vec::<&str>::new());
        let other = make(of).unwrap();
        for (level, name, value) in &found.options {
            sockets::set_option_value(other.as_fd(), *level, *name, value).unwrap();
        }
        let [wanted, reached] = [&socket, &other].map(|socket| Values::read(socket.as_fd(), of).options);
        assert_eq!(wanted, reached);
    }

    #[test]
    fn an_option_that_is_not_reached_is_named() {
        const SO_LOCK_FILTER: i32 = 44;
        let of = TYPES[2];
        let socket = make(of).unwrap();
        sockets::set_option(socket.as_fd(), SOCKET, libc::SO_BROADCAST, 1).unwrap();
        let fresh = Values::read(make(of).unwrap().as_fd(), of);
        // Nothing takes this back.
        let locked = make(of).unwrap();
        sockets::set_option(locked.as_fd(), SOCKET, SO_LOCK_FILTER, 1).unwrap();
        let found = changed((socket.as_fd(), of), Phase::Quiet, &fresh, || Ok(locked)).unwrap();
        assert_eq!(found.lost, ["SO_LOCK_FILTER"]);
        assert_eq!(found.options, [(SOCKET, libc::SO_BROADCAST, 1i32.to_ne_bytes().to_vec())]);
    }
}
