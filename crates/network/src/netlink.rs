//! Netlink sockets: requests whose answers are waited for (RFC 3549; netlink(7)).
//!
//! The kernel works on a request while it is sent, in the network namespace in which the socket was made. So a socket that was made inside a namespace
//! reaches it from every thread.

use std::{fs::File, io};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER, protocols::NETLINK_ROUTE};

/// Bytes of answers that are read at once: more than the kernel puts into one part of a dump.
const ANSWER_BYTES: usize = 64 << 10;

/// Bytes of the header of a message: length, type, flags, sequence number, port.
pub(crate) const HEADER_BYTES: usize = 16;

const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;

/// The two sockets that settings of a network namespace need.
#[derive(Debug)]
pub struct Sockets {
    pub(crate) route: Socket,
    pub(crate) rules: Socket,
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

fn open(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // Answers name a request by its number: they need not repeat it.
    socket.set_cap_ack(true)?;
    Ok(socket)
}

/// Has the kernel do one thing with links, addresses or routes.
pub(crate) fn request(socket: &Socket, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    send(socket, message, NLM_F_REQUEST | NLM_F_ACK | flags)?;
    answers(socket, |_, _| Ok(()))
}

/// One that is there.
pub(crate) fn ask(socket: &Socket, message: RouteNetlinkMessage) -> io::Result<Option<RouteNetlinkMessage>> {
    send(socket, message, NLM_F_REQUEST | NLM_F_ACK)?;
    Ok(collect(socket)?.pop())
}

/// All that there is of a kind.
pub(crate) fn dump(socket: &Socket, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    send(socket, message, NLM_F_REQUEST | NLM_F_DUMP)?;
    collect(socket)
}

fn collect(socket: &Socket) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut found = Vec::new();
    answers(socket, |_, bytes| {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes).map_err(io::Error::other)?;
        if let NetlinkPayload::InnerMessage(message) = message.payload {
            found.push(message);
        }
        Ok(())
    })?;
    Ok(found)
}

fn send(socket: &Socket, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0).map(drop)
}

/// Reads until the last answer: an acknowledgement, the end of a dump, or an error. `each` gets the type of what else comes, and all of it.
pub(crate) fn answers(socket: &Socket, mut each: impl FnMut(u16, &[u8]) -> io::Result<()>) -> io::Result<()> {
    loop {
        let received = receive(socket)?;
        let mut rest = received.as_slice();
        while let Some((kind, message, behind)) = next(rest) {
            match kind {
                ERROR => return errno(message),
                DONE => return Ok(()),
                kind => each(kind, message)?,
            }
            rest = behind;
        }
    }
}

/// As [`answers`], of several requests that were sent at once, which have all been worked on: until nothing is left. The first error counts.
pub(crate) fn all_answers(socket: &Socket) -> io::Result<()> {
    let mut result = Ok(());
    loop {
        match receive_waiting(socket, libc::MSG_DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return result,
            received => {
                let received = received?;
                let mut rest = received.as_slice();
                while let Some((kind, message, behind)) = next(rest) {
                    if kind == ERROR {
                        result = result.and(errno(message));
                    }
                    rest = behind;
                }
            }
        }
    }
}

fn receive(socket: &Socket) -> io::Result<Vec<u8>> {
    receive_waiting(socket, 0)
}

fn receive_waiting(socket: &Socket, flags: i32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(ANSWER_BYTES);
    socket.recv(&mut bytes, flags | libc::MSG_TRUNC).and_then(|length| {
        // Longer than the buffer: a part is lost.
        if length > bytes.len() { Err(io::ErrorKind::InvalidData.into()) } else { Ok(bytes) }
    })
}

/// The first message of several: its type, all of it, and what is behind it. None if there is no whole one.
fn next(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let message = bytes.get(..length).filter(|message| message.len() >= HEADER_BYTES)?;
    Some((kind, message, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn errno(message: &[u8]) -> io::Result<()> {
    let code = message.get(HEADER_BYTES..HEADER_BYTES + 4).and_then(|code| code.try_into().ok());
    match i32::from_ne_bytes(code.ok_or(io::ErrorKind::InvalidData)?) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
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
            bytes.extend([0; 10]);
            bytes.extend(body);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let both = [message(7, b"abc"), message(ERROR, &(-17i32).to_ne_bytes())].concat();
        let (kind, first, rest) = next(&both).unwrap();
        assert_eq!((kind, &first[HEADER_BYTES..]), (7, &b"abc"[..]));
        let (kind, second, rest) = next(rest).unwrap();
        assert_eq!((kind, errno(second).unwrap_err().raw_os_error()), (ERROR, Some(libc::EEXIST)));
        assert!(next(rest).is_none() && next(&both[..18]).is_none() && next(&[3, 0, 0, 0, 0, 0]).is_none());
    }
}
