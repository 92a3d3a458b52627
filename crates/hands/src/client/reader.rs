//! The bytes of a file, as they come.

use std::{os::fd::OwnedFd, time::Duration};

use base::limits::HAND_STALL_S;
use bytes::BufMut;
use tokio::{io::AsyncReadExt, net::unix::pipe};

use super::{Result, SHORT, calls::Call};
use crate::protocol::{FromHand, Opened};

/// How much [`Reader::read_to_end`] has room for, at least, when it reads.
const CHUNK_BYTES: usize = 64 << 10;

/// A file that is being read. A reader that is not read holds one of the hand's transfers.
#[derive(Debug)]
pub struct Reader {
    call: Call,
    pipe: pipe::Receiver,
    opened: Opened,
    left: u64,
}

impl Reader {
    pub(super) async fn begin(mut call: Call, pipe: OwnedFd) -> Result<Self> {
        let answer = call.answer().await?;
        let opened = match answer {
            FromHand::Opened(opened) => opened,
            other => return Err(call.unexpected(&other)),
        };
        let pipe = pipe::Receiver::from_owned_fd(pipe).map_err(|error| call.failed(error))?;
        Ok(Self { call, pipe, left: opened.length, opened })
    }

    /// Size of the whole file in bytes.
    pub fn size(&self) -> u64 {
        self.opened.size
    }

    /// Bytes that this reader gives in all.
    pub fn length(&self) -> u64 {
        self.opened.length
    }

    /// Time of the file's last change, in nanoseconds since 1970.
    pub fn modified_ns(&self) -> i64 {
        self.opened.modified_ns
    }

    /// Reads some bytes into the room that `buffer` has. 0: all have been read, or there is no room. An end before the announced length is
    /// an error.
    pub async fn read(&mut self, buffer: &mut impl BufMut) -> Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.remaining_mut());
        if most == 0 {
            return Ok(0);
        }
        self.call.extend(Duration::from_secs(HAND_STALL_S));
        let mut room = buffer.limit(most);
        match tokio::time::timeout(Duration::from_secs(HAND_STALL_S), self.pipe.read_buf(&mut room)).await {
            Ok(Ok(0)) => Err(self.broken().await),
            Ok(Ok(length)) => {
                self.left -= length as u64;
                Ok(length)
            }
            Ok(Err(error)) => Err(self.call.failed(error)),
            Err(_) => Err(self.call.late()),
        }
    }

    /// Reads all that is left. The caller bounds the length beforehand.
    pub async fn read_to_end(&mut self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            // A vector without room takes a few bytes at a time.
            all.reserve(CHUNK_BYTES);
            if self.read(&mut all).await? == 0 {
                return Ok(all);
            }
        }
    }

    /// Why the bytes end here.
    async fn broken(&mut self) -> super::Error {
        self.call.extend(SHORT);
        match self.call.answer().await {
            Ok(other) => self.call.unexpected(&other),
            Err(error) => error,
        }
    }
}
