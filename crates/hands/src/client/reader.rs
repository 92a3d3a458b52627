//! The bytes of a file, as they come.

use std::{os::fd::OwnedFd, time::Duration};

use base::limits::HAND_STALL_S;
use tokio::{io::AsyncReadExt, net::unix::pipe};

use super::{Result, SHORT, calls::Call};
use crate::protocol::{FromHand, Opened};

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

    /// Reads some bytes. 0: all have been read. An end before the announced length is an error.
    pub async fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.call.extend(Duration::from_secs(HAND_STALL_S));
        let read = tokio::time::timeout(Duration::from_secs(HAND_STALL_S), self.pipe.read(&mut buffer[..most])).await;
        match read {
            Ok(Ok(0)) if most > 0 => Err(self.broken().await),
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
        let mut buffer = vec![0; 64 << 10];
        loop {
            match self.read(&mut buffer).await? {
                0 => return Ok(all),
                length => all.extend_from_slice(&buffer[..length]),
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
