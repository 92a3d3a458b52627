//! SOCK_SEQPACKET sockets: whole messages with descriptors. The only way Pando's processes talk to each other.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Most descriptors in one message: the kernel takes no more (SCM_MAX_FD).
pub const DESCRIPTORS_MAX: usize = 253;

/// A connected pair, both ends close-on-exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message. `WouldBlock` if the socket is non-blocking and full; `InvalidInput` for more than [`DESCRIPTORS_MAX`] descriptors.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = rustix::io::retry_on_intr(|| {
        sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// One message as far as there was room for it.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the buffer that it takes. 0: the peer is gone.
    pub length: usize,
    /// Its descriptors, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
    /// Whether all of it, descriptors included, is here.
    pub whole: bool,
}

/// Receives one message into `buffer`: its length and its descriptors (close-on-exec). Length 0: the peer is gone.
/// `InvalidData` when the message or its descriptors did not fit; nothing leaks then.
pub fn recv(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let Received { length, descriptors, whole } = recv_part(socket, buffer)?;
    if whole { Ok((length, descriptors)) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// As [`recv`]; of a message that did not fit it gives the part that did, so that the sender can be answered. Descriptors do not fit if this
/// process has too many open.
pub fn recv_part(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::io::retry_on_intr(|| {
        recvmsg(socket.as_fd(), &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            descriptors.extend(received);
        }
    }
    let whole = !message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Received { length: message.bytes, descriptors, whole })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_carries_bytes_and_descriptors() {
        let (a, b) = pair().unwrap();
        send(&a, b"hello", &[a.as_fd(), b.as_fd()]).unwrap();
        let mut buffer = [0; 16];
        let (length, descriptors) = recv(&b, &mut buffer).unwrap();
        assert_eq!((&buffer[..length], descriptors.len()), (&b"hello"[..], 2));
    }

    #[test]
    fn a_message_that_does_not_fit_is_an_error() {
        let (a, b) = pair().unwrap();
        send(&a, b"hello", &[]).unwrap();
        assert_eq!(recv(&b, &mut [0; 2]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        send(&a, b"hello", &[]).unwrap();
        let mut buffer = [0; 2];
        let part = recv_part(&b, &mut buffer).unwrap();
        assert_eq!((part.length, part.whole, &buffer), (2, false, b"he"));
    }

    #[test]
    fn length_zero_says_that_the_peer_is_gone() {
        let (a, b) = pair().unwrap();
        drop(a);
        assert_eq!(recv(&b, &mut [0; 2]).unwrap().0, 0);
    }
}
