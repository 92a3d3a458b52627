//! The messages between clients, the holder and its spare: one SEQPACKET message each.
//!
//! ```text
//! 0   length of the head, u32 little-endian
//! 4   head: JSON, so that a node of another version reads what it knows
//!     body: bytes of input or output
//! ```

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    error::Refusal,
    limits::MESSAGE_BYTES_MAX,
    record::{End, Process, Reason, Status},
};

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Takes the streams of a command that is about to start: its record, then its outputs or terminal, then its input
    /// if it has one.
    Hold,
    /// The command of the [`Request::Hold`] before it on this connection has started; its pidfd comes along. Events
    /// follow.
    Begin { process: Process },
    /// Events of a command, from these positions on, or from its first byte. Bytes that are not kept any more
    /// count as missed.
    Attach { key: String, from: Vec<u64> },
    /// The records of all commands, or those of one sandbox.
    List { sandbox: Option<String> },
    /// The body is input.
    Input { key: String },
    /// There is no more input.
    CloseInput { key: String },
    /// The terminal has another size.
    Resize { key: String, rows: u16, columns: u16 },
    /// The keeper reaped the command.
    Report { key: String, status: Status },
    /// The command is about to be ended, for this reason.
    Mark { key: String, reason: Reason },
    /// The node has done what is to be done after the end.
    Settle { key: String },
    /// Forgets all commands of a sandbox.
    ForgetSandbox { sandbox: String },
    /// Names commands that have ended and are not settled.
    Watch,
    /// Which processes there are.
    Status,
    /// Ends the holder and its spare, if they hold nothing.
    Shutdown,
}

/// What the holder says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    Refused {
        refusal: Refusal,
        message: String,
    },
    /// A record; the file comes along.
    Entry,
    Family(Family),
    /// The body is output of this number.
    Output {
        output: usize,
    },
    Missed {
        output: usize,
        bytes: u64,
    },
    Ended(End),
    /// This command has ended and is not settled.
    Unsettled {
        key: String,
        sandbox: String,
    },
}

/// The processes, and what they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Family {
    /// Pid of the holder.
    pub holder: i32,
    /// Pid of its spare; 0: it is being started.
    pub spare: i32,
    /// Commands that run.
    pub running: usize,
    /// Commands that have ended.
    pub ended: usize,
}

/// What the holder tells its spare.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Telling {
    /// The lock of the folder and the socket.
    Common,
    /// A command: its record, its pidfd, its outputs or terminal, its input if it has one.
    Held,
    /// Its input is closed.
    CloseInput { key: String },
    /// Its files can be closed.
    Forget { key: String },
    /// There is nothing to take over any more.
    End,
}

/// One message as it was received.
#[derive(Debug)]
pub(crate) struct Received<T> {
    pub(crate) head: T,
    pub(crate) body: Vec<u8>,
    pub(crate) files: Vec<OwnedFd>,
}

pub(crate) fn encode(head: &impl Serialize, body: &[u8]) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(head)?;
    let mut bytes = Vec::with_capacity(4 + json.len() + body.len());
    bytes.extend_from_slice(&(json.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&json);
    bytes.extend_from_slice(body);
    Ok(bytes)
}

/// Takes a message apart. None if it is not one.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<(T, Vec<u8>)> {
    let (length, rest) = bytes.split_at_checked(4)?;
    let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
    let (json, body) = rest.split_at_checked(length)?;
    Some((serde_json::from_slice(json).ok()?, body.to_vec()))
}

/// Receives from a blocking socket. None: the other side is gone.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<Received<T>>> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let (length, files) = sys::seqpacket::recv(socket, &mut buffer)?;
    if length == 0 {
        return Ok(None);
    }
    let (head, body) = decode(&buffer[..length]).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some(Received { head, body, files }))
}

/// One end of a connection, in the async runtime.
#[derive(Debug)]
pub(crate) struct Link {
    socket: AsyncFd<OwnedFd>,
}

impl Link {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: watched(socket)? })
    }

    /// May be cancelled: the message is sent whole or not at all.
    pub(crate) async fn send(&self, head: &impl Serialize, body: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = encode(head, body)?;
        self.socket.async_io(Interest::WRITABLE, |socket| sys::seqpacket::send(socket, &bytes, files)).await
    }

    /// May be cancelled: no message is lost. None: the other side is gone.
    pub(crate) async fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<Received<T>>> {
        self.socket.async_io(Interest::READABLE, |socket| receive(socket)).await
    }
}

/// Makes `fd` non-blocking and registers it with the runtime.
pub(crate) fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    // Deprecated because some types could return another descriptor each time. `OwnedFd` cannot, and the successor is
    // unsafe, which this crate does not use.
    #[allow(deprecated)]
    AsyncFd::new(fd)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_message_has_the_documented_layout() {
        let bytes = encode(&Reply::Output { output: 1 }, b"words").unwrap();
        assert_eq!(bytes, *b"\x17\0\0\0{\"Output\":{\"output\":1}}words");
        assert_eq!(decode::<Reply>(&bytes).unwrap(), (Reply::Output { output: 1 }, b"words".to_vec()));
    }

    proptest! {
        #[test]
        fn bytes_that_are_no_message_are_refused(bytes: Vec<u8>) {
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Telling>(&bytes);
        }
    }
}
