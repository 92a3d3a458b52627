//! One message: the number of the request (u64, little-endian), then the body in postcard.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use base::limits::MESSAGE_BYTES_MAX;
use serde::{Serialize, de::DeserializeOwned};

const HEADER_BYTES: usize = 8;

/// Size of a buffer that takes any message, in bytes.
pub const BUFFER_BYTES: usize = MESSAGE_BYTES_MAX;

/// A message that can be sent more than once, if the socket was full.
#[derive(Debug)]
pub struct Letter(Vec<u8>);

impl Letter {
    /// Encodes a message. `InvalidInput` if it is longer than [`MESSAGE_BYTES_MAX`].
    pub fn new<T: Serialize>(seq: u64, body: &T) -> io::Result<Self> {
        let bytes = postcard::to_extend(body, seq.to_le_bytes().to_vec()).map_err(io::Error::other)?;
        match bytes.len() <= MESSAGE_BYTES_MAX {
            true => Ok(Self(bytes)),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long")),
        }
    }

    /// Sends the message. `WouldBlock` if the socket is non-blocking and full.
    pub fn send(&self, socket: impl AsFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        sys::seqpacket::send(socket, &self.0, descriptors)
    }
}

/// A received message.
#[derive(Debug)]
pub struct Received<T> {
    /// The number of the request; 0 also if the message is too short to have one.
    pub seq: u64,
    /// The content, or why it is not understood.
    pub body: Result<T, String>,
    /// The descriptors that came along.
    pub descriptors: Vec<OwnedFd>,
}

/// Receives one message into `buffer`, which has [`BUFFER_BYTES`]. None at the end of the socket. Errors are errors of the socket, never of
/// the message.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<Received<T>>> {
    let sys::seqpacket::Received { length, descriptors, whole } = match sys::seqpacket::recv_part(socket, buffer) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
        received => received?,
    };
    if length == 0 {
        return Ok(None);
    }
    let Some((seq, text)) = buffer[..length].split_first_chunk::<HEADER_BYTES>() else {
        return Ok(Some(Received { seq: 0, body: Err("it is too short".to_owned()), descriptors }));
    };
    let body = match postcard::take_from_bytes(text) {
        _ if !whole => Err("it came cut off, or without all of its descriptors".to_owned()),
        Err(error) => Err(error.to_string()),
        Ok((_, [_, ..])) => Err("there are bytes behind it".to_owned()),
        Ok((body, [])) => Ok(body),
    };
    Ok(Some(Received { seq: u64::from_le_bytes(*seq), body, descriptors }))
}
