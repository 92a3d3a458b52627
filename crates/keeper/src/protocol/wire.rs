//! Messages on the sockets between server, keeper and builders.
//!
//! ```text
//! 0  seq   u64, little-endian: number of the request; 0: the message belongs to none
//! 8  kind  0: JSON follows; 1: the JSON is in a file in memory, which is the first descriptor
//! 9  JSON
//! ```
//!
//! The number comes first: a message that is cut off or not understood fails its own request and nothing else.

use std::{
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use base::limits::{LONG_MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Serialize, de::DeserializeOwned};

const HEADER_BYTES: usize = 9;
const INLINE: u8 = 0;
const IN_FILE: u8 = 1;

/// Size of a buffer that takes any message, in bytes.
pub const BUFFER_BYTES: usize = HEADER_BYTES + MESSAGE_BYTES_MAX;

/// A message that can be sent more than once, if the socket was full.
pub struct Letter {
    bytes: Vec<u8>,
    file: Option<OwnedFd>,
}

impl Letter {
    /// Encodes a message. `InvalidInput` if it is longer than [`LONG_MESSAGE_BYTES_MAX`].
    pub fn new<T: Serialize>(seq: u64, body: &T) -> io::Result<Self> {
        let mut bytes = [&seq.to_le_bytes()[..], &[INLINE]].concat();
        serde_json::to_writer(&mut bytes, body)?;
        if bytes.len() <= BUFFER_BYTES {
            return Ok(Self { bytes, file: None });
        }
        let body = bytes.split_off(HEADER_BYTES);
        if body.len() > LONG_MESSAGE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
        }
        let file = memfd_create("pando-message", MemfdFlags::CLOEXEC)?;
        File::from(file.try_clone()?).write_all_at(&body, 0)?;
        bytes[HEADER_BYTES - 1] = IN_FILE;
        Ok(Self { bytes, file: Some(file) })
    }

    /// Sends the message. `WouldBlock` if the socket is non-blocking and full.
    pub fn send(&self, socket: impl AsFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let file = self.file.iter().map(AsFd::as_fd);
        sys::seqpacket::send(socket, &self.bytes, &file.chain(descriptors.iter().copied()).collect::<Vec<_>>())
    }
}

/// Encodes a message and sends it.
pub fn send<T: Serialize>(socket: impl AsFd, seq: u64, body: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    Letter::new(seq, body)?.send(socket, descriptors)
}

/// A received message.
#[derive(Debug)]
pub struct Received<T> {
    /// The number of the request; 0 also if the message is too short to have one.
    pub seq: u64,
    /// The content, or why the content is not understood.
    pub body: Result<T, String>,
    /// The files that came along.
    pub descriptors: Vec<OwnedFd>,
}

/// Receives one message into `buffer`, which has [`BUFFER_BYTES`]. None at the end of the socket. Errors are errors of the socket, never of the
/// message.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<Received<T>>> {
    let sys::seqpacket::Received { length, mut descriptors, whole } = match sys::seqpacket::recv_part(socket, buffer) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
        received => received?,
    };
    if length == 0 {
        return Ok(None);
    }
    let Some((header, text)) = buffer[..length].split_first_chunk::<HEADER_BYTES>() else {
        return Ok(Some(Received { seq: 0, body: Err("it is too short".to_owned()), descriptors }));
    };
    let [a, b, c, d, e, f, g, h, kind] = *header;
    let seq = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let body = match kind {
        _ if !whole => Err("it came cut off, or without all of its descriptors: too many files may be open".to_owned()),
        INLINE => serde_json::from_slice(text).map_err(|error| error.to_string()),
        IN_FILE if descriptors.is_empty() => Err("its file is missing".to_owned()),
        IN_FILE => read(descriptors.remove(0)),
        kind => Err(format!("it is of the unknown kind {kind}")),
    };
    Ok(Some(Received { seq, body, descriptors }))
}

fn read<T: DeserializeOwned>(file: OwnedFd) -> Result<T, String> {
    let mut text = Vec::new();
    // The sender wrote by position, so the file's offset is still 0.
    let file = File::from(file).take(LONG_MESSAGE_BYTES_MAX as u64 + 1);
    let read = io::BufReader::new(file).read_to_end(&mut text);
    match read {
        Ok(length) if length > LONG_MESSAGE_BYTES_MAX => Err("its file is too long".to_owned()),
        Ok(_) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
        Err(error) => Err(format!("its file cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{DropZygote, FromKeeper, Request};
    use base::id::ZygoteId;

    fn exchange(text: &str) -> String {
        let (ours, theirs) = sys::seqpacket::pair().unwrap();
        send(&ours, 7, &text, &[theirs.as_fd()]).unwrap();
        let received = receive::<String>(&theirs, &mut vec![0; BUFFER_BYTES]).unwrap().unwrap();
        assert_eq!((received.seq, received.descriptors.len()), (7, 1));
        received.body.unwrap()
    }

    #[test]
    fn a_message_of_any_length_arrives_with_its_number_and_descriptors() {
        for length in [0, 1, MESSAGE_BYTES_MAX - 2, MESSAGE_BYTES_MAX - 1, MESSAGE_BYTES_MAX, 5 << 20] {
            let text = "x".repeat(length);
            assert!(exchange(&text) == text, "{length} bytes");
        }
        let (ours, _theirs) = sys::seqpacket::pair().unwrap();
        let refused = send(&ours, 7, &"x".repeat(LONG_MESSAGE_BYTES_MAX), &[]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn the_end_of_the_peer_is_no_message() {
        let (ours, theirs) = sys::seqpacket::pair().unwrap();
        drop(ours);
        assert!(receive::<String>(&theirs, &mut [0; BUFFER_BYTES]).unwrap().is_none());
    }

    /// Sends `bytes` as they are.
    fn raw(bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Received<Request> {
        let (ours, theirs) = sys::seqpacket::pair().unwrap();
        sys::seqpacket::send(&ours, bytes, descriptors).unwrap();
        receive(&theirs, &mut vec![0; BUFFER_BYTES]).unwrap().unwrap()
    }

    #[test]
    fn what_is_not_understood_is_the_failure_of_its_own_request() {
        let whole = Letter::new(9, &Request::from(DropZygote { zygote: ZygoteId(1) })).unwrap().bytes;
        assert!(matches!(
            raw(&whole, &[]),
            Received { seq: 9, body: Ok(Request::DropZygote(DropZygote { zygote: ZygoteId(1) })), .. }
        ));
        for length in 1..whole.len() {
            let received = raw(&whole[..length], &[]);
            assert_eq!((received.seq, received.body.is_err()), (if length < 9 { 0 } else { 9 }, true), "{length}");
        }
        for kind in 1..=255 {
            let received = raw(&[&whole[..8], &[kind], &whole[9..]].concat(), &[]);
            assert_eq!((received.seq, received.body.is_err()), (9, true), "{kind}");
        }
        // Longer than the buffer; a file that is no file, and one that says something else.
        let long = raw(&[&whole[..], &vec![b' '; BUFFER_BYTES]].concat(), &[]);
        assert_eq!((long.seq, long.body.unwrap_err().contains("cut off")), (9, true));
        let (pipe, end) = std::io::pipe().unwrap();
        drop(end);
        let header = [&whole[..8], &[IN_FILE]].concat();
        assert_eq!((raw(&header, &[pipe.as_fd()]).seq, raw(&header, &[pipe.as_fd()]).body.is_err()), (9, true));
        let folder = File::open("/").unwrap();
        assert!(raw(&header, &[folder.as_fd()]).body.unwrap_err().contains("cannot be read"));
        let other = Letter::new(9, &"x".repeat(MESSAGE_BYTES_MAX)).unwrap();
        assert!(raw(&header, &[other.file.unwrap().as_fd()]).body.is_err());
    }

    #[test]
    fn random_bytes_are_messages_that_are_not_understood() {
        let mut bytes = vec![0; 4096];
        for round in 0..2_000 {
            base::id::fill_random(&mut bytes);
            let length = 1 + round % bytes.len();
            assert!(raw(&bytes[..length], &[]).body.is_err());
            let (ours, theirs) = sys::seqpacket::pair().unwrap();
            sys::seqpacket::send(&ours, &bytes[..length], &[]).unwrap();
            assert!(receive::<FromKeeper>(&theirs, &mut vec![0; BUFFER_BYTES]).unwrap().unwrap().body.is_err());
        }
    }
}
