//! Messages that wait at unix sockets, read without taking them.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use base::limits;
use sys::sockets::{self, Peeked};

use crate::refusal::Refusal;

/// Most messages of one queue; the kernel's own limit of datagrams that wait is far lower (`net.unix.max_dgram_qlen`).
const QUEUE_MAX: usize = 65_536;

/// A unix socket of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue<'a> {
    pub(super) pid: i32,
    pub(super) fd: i32,
    pub(super) kind: i32,
    pub(super) socket: BorrowedFd<'a>,
    /// Descriptors that are known already: together with those that wait here they are bounded.
    pub(super) known: usize,
}

/// A message that waits.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The sender's address, or nothing.
    pub(super) from: Vec<u8>,
    pub(super) bytes: Vec<u8>,
    /// Duplicates of the descriptors that came with it.
    pub(super) descriptors: Vec<OwnedFd>,
}

impl Queue<'_> {
    /// What waits, left where it is: of a stream one message with all, but for those that came with descriptors.
    pub(super) fn read(self) -> io::Result<Result<Vec<Waiting>, Refusal>> {
        let before = sockets::peek_offset(self.socket)?;
        let result = self.walk();
        // The program may look at its queue in this way itself.
        sockets::set_peek_offset(self.socket, before)?;
        result
    }

    fn walk(self) -> io::Result<Result<Vec<Waiting>, Refusal>> {
        let datagrams = self.kind != libc::SOCK_STREAM;
        let max = limits::CARRIED_BYTES_MAX;
        let too_much =
            |bytes: u64| Refusal::TooMuchContent { what: format!("the queue of socket {}", self.fd), bytes, max };
        // Of a stream or a sequence of packets, all that waits; of datagrams the next.
        let waiting = sockets::waiting_bytes(self.socket)?;
        if waiting > 0 && !datagrams && sockets::has_urgent_byte(self.socket) {
            return Ok(Err(self.refusal("a socket at which a byte waits that was sent out of band (MSG_OOB)".into())));
        }
        let mut room = waiting.max(sockets::option(self.socket, libc::SOL_SOCKET, libc::SO_RCVBUF)? as usize);
        let asks = sockets::option(self.socket, libc::SOL_SOCKET, libc::SO_PASSCRED)? != 0;
        let mut queue: Vec<Waiting> = Vec::new();
        let (mut bytes, mut known) = (0usize, self.known);
        while datagrams || bytes < waiting {
            let peeked = match self.peek(bytes, room, asks) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                peeked => peeked?,
            };
            let total = (bytes + peeked.bytes.len()) as u64;
            if total > max || room as u64 > max || queue.len() > QUEUE_MAX {
                return Ok(Err(too_much(total)));
            }
            if peeked.is_cut {
                room *= 2;
                continue;
            }
            if let Some(refusal) = self.foreign(&peeked) {
                return Ok(Err(refusal));
            }
            known += peeked.descriptors.len();
            if known > limits::DESCRIPTORS_MAX {
                let (what, max) = ("descriptors".into(), limits::DESCRIPTORS_MAX);
                return Ok(Err(Refusal::TooMany { what, found: known, max }));
            }
            // The end of the queue, unless it is a datagram without bytes.
            if peeked.bytes.is_empty() && self.kind != libc::SOCK_DGRAM {
                break;
            }
            bytes += peeked.bytes.len();
            let Peeked { from, bytes, descriptors, .. } = peeked;
            match queue.last_mut().filter(|last| !datagrams && last.descriptors.is_empty() && descriptors.is_empty()) {
                Some(last) => last.bytes.extend(bytes),
                None => queue.push(Waiting { from: if datagrams { from } else { Vec::new() }, bytes, descriptors }),
            }
        }
        if self.kind != libc::SOCK_DGRAM && bytes != waiting {
            return Ok(Err(
                self.refusal(format!("a socket of whose {waiting} waiting bytes only {bytes} could be read"))
            ));
        }
        Ok(Ok(queue))
    }

    /// What waits behind `skipped` bytes, up to `room` bytes: bytes that came with descriptors, or some without.
    fn peek(self, skipped: usize, room: usize, asks: bool) -> io::Result<Peeked> {
        let rewind = || sockets::set_peek_offset(self.socket, skipped as i32);
        rewind()?;
        // An empty datagram can be looked at only once.
        if self.kind != libc::SOCK_STREAM {
            return sockets::peek_with_descriptors(self.socket, room);
        }
        let mut plain = sockets::peek(self.socket, room, asks)?;
        if !plain.has_more || plain.bytes.is_empty() {
            return Ok(plain);
        }
        // These bytes end with those that descriptors came with.
        rewind()?;
        let without = sockets::peek_whole(self.socket, plain.bytes.len() - 1)?;
        if without > 0 {
            plain.bytes.truncate(without);
            return Ok(Peeked { has_more: false, ..plain });
        }
        rewind()?;
        sockets::peek_with_descriptors(self.socket, room)
    }

    /// A message that the program could not have sent to itself in just this way.
    fn foreign(self, peeked: &Peeked) -> Option<Refusal> {
        if peeked.has_more {
            return Some(self.refusal("a socket at which more waits than bytes, descriptors and credentials".into()));
        }
        // 0: a process that is not to be seen from here.
        let sender = peeked.sender.filter(|sender| *sender != self.pid)?;
        Some(self.refusal(format!("a socket at which a message of another process ({sender}) waits")))
    }

    fn refusal(self, what: String) -> Refusal {
        Refusal::UnknownDescriptor { fd: self.fd, what }
    }
}
