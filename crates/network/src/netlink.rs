//! Netlink sockets: requests whose answers are waited for (RFC 3549; netlink(7)).
//!
//! The kernel works on a request while it is sent, in the network namespace in which the socket was made. So a socket that was made inside a namespace
//! reaches it from every thread.

use std::{cell::Cell, fs::File, io};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER, protocols::NETLINK_ROUTE};
use rustix::net::sockopt::set_socket_send_buffer_size_force;

/// Bytes of answers that are read at once: more than the kernel puts into one part of a dump.
const ANSWER_BYTES: usize = 64 << 10;

/// Bytes of the header of a message: length, type, flags, sequence number, port.
pub(crate) const HEADER_BYTES: usize = 16;

const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;
/// `NLM_F_DUMP_INTR`.
const CHANGED_MEANWHILE: u16 = 0x10;
/// How often a dump is tried while things change.
const DUMPS_MAX: usize = 20;

/// A socket, and the number of its last request: answers to earlier ones, whose caller had enough of them, are passed over.
#[derive(Debug)]
pub(crate) struct Line {
    socket: Socket,
    last: Cell<u32>,
}

/// The two sockets that settings of a network namespace need.
#[derive(Debug)]
pub struct Sockets {
    pub(crate) route: Line,
    pub(crate) rules: Line,
    /// The namespace.
    pub(crate) namespace: File,
}

impl Sockets {
    /// Of the network namespace that the calling thread is in.
    pub fn open() -> io::Result<Self> {
        let namespace = File::open("/proc/thread-self/ns/net")?;
        Ok(Self { route: open(NETLINK_ROUTE)?, rules: open(NETLINK_NETFILTER)?, namespace })
    }
}

/// Longest batch: 4,096 links, each with a policy of its own, take 12 MiB.
const SEND_BYTES: usize = 64 << 20;

fn open(protocol: isize) -> io::Result<Line> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // A batch is sent at once, and the kernel takes none that is longer.
    set_socket_send_buffer_size_force(&socket, SEND_BYTES)?;
    // Answers name a request by its number: they need not repeat it.
    socket.set_cap_ack(true)?;
    Ok(Line { socket, last: Cell::new(0) })
}

/// What is read of a message.
struct Message<'a> {
    kind: u16,
    flags: u16,
    number: u32,
    /// All of it.
    bytes: &'a [u8],
}

impl Line {
    /// The number of the next request.
    pub(crate) fn next(&self) -> u32 {
        self.last.set(self.last.get().wrapping_add(1));
        self.last.get()
    }

    /// Sends a message, or several, that have the number of [`Self::next`].
    pub(crate) fn send(&self, messages: &[u8]) -> io::Result<()> {
        self.socket.send(messages, 0).map(drop)
    }

    /// Reads until the last answer: an acknowledgement, the end of a dump, or an error. `each` gets all of what else comes.
    pub(crate) fn answers(&self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut is_whole = true;
        loop {
            let received = self.receive(0)?;
            for message in messages(&received).filter(|message| message.number == self.last.get()) {
                is_whole &= message.flags & CHANGED_MEANWHILE == 0;
                match message.kind {
                    ERROR => return errno(message.bytes),
                    DONE if !is_whole => return Err(io::ErrorKind::Interrupted.into()),
                    DONE => return errno(message.bytes),
                    _ => each(message.bytes)?,
                }
            }
        }
    }

    /// As [`Self::answers`], of several requests with one number, which have all been worked on: until nothing is left. The first error counts.
    pub(crate) fn all_answers(&self) -> io::Result<()> {
        let mut result = Ok(());
        loop {
            match self.receive(libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return result,
                received => {
                    let received = received?;
                    for message in messages(&received).filter(|message| message.number == self.last.get()) {
                        if message.kind == ERROR {
                            result = result.and(errno(message.bytes));
                        }
                    }
                }
            }
        }
    }

    fn receive(&self, flags: i32) -> io::Result<Vec<u8>> {
        loop {
            let mut bytes = Vec::with_capacity(ANSWER_BYTES);
            match self.socket.recv(&mut bytes, flags | libc::MSG_TRUNC) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Longer than the buffer: a part is lost.
                Ok(length) if length > bytes.len() => return Err(io::ErrorKind::InvalidData.into()),
                received => return received.map(|_| bytes),
            }
        }
    }

    fn ask(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut header = NetlinkHeader::default();
        (header.flags, header.sequence_number) = (NLM_F_REQUEST | flags, self.next());
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.send(&bytes)?;
        let mut found = Vec::new();
        self.answers(|bytes| {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes).map_err(io::Error::other)?;
            if let NetlinkPayload::InnerMessage(message) = message.payload {
                found.push(message);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Has the kernel do one thing with links, addresses or routes, or tell of one that is there.
    pub(crate) fn request(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Option<RouteNetlinkMessage>> {
        Ok(self.ask(message, NLM_F_ACK | flags)?.pop())
    }

    /// All that there is of a kind.
    pub(crate) fn dump(&self, message: &RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        for _ in 0..DUMPS_MAX {
            match self.ask(message.clone(), NLM_F_DUMP) {
                // Something changed meanwhile, so that one may be missing.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                found => return found,
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }
}

/// The messages of what was received at once, as far as they are whole.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let half = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (length, kind, flags, number) = (word(0)? as usize, half(4)?, half(6)?, word(8)?);
        let whole = bytes.get(..length).filter(|whole| whole.len() >= HEADER_BYTES)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, flags, number, bytes: whole })
    })
}

fn errno(message: &[u8]) -> io::Result<()> {
    let code = message.get(HEADER_BYTES..HEADER_BYTES + 4).and_then(|code| code.try_into().ok());
    match code.map_or(0, i32::from_ne_bytes) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_by_their_lengths() {
        let message = |kind: u16, body: &[u8]| {
            let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
            bytes.extend(body);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let both = [message(7, b"abc"), message(ERROR, &(-17i32).to_ne_bytes())].concat();
        let found: Vec<Message<'_>> = messages(&both).collect();
        assert_eq!((found[0].kind, found[0].number, &found[0].bytes[HEADER_BYTES..]), (7, 5, &b"abc"[..]));
        assert_eq!((found[1].kind, errno(found[1].bytes).unwrap_err().raw_os_error()), (ERROR, Some(libc::EEXIST)));
        assert_eq!((found.len(), messages(&both[..18]).count(), messages(&[3, 0, 0, 0, 0, 0]).count()), (2, 0, 0));
    }
}
