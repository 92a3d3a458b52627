//! The bytes of a file, as they are sent.

use std::{io, os::fd::OwnedFd, time::Duration};

use base::limits::HAND_STALL_S;
use tokio::{io::AsyncWriteExt, net::unix::pipe};

use super::{Error, Result, SHORT, calls::Call};
use crate::protocol::{Entry, FromHand};

/// A disk that copies less in a second hangs.
const COPY_BYTES_PER_S: u64 = 16 << 20;

/// A file that is being written. Dropped before [`Writer::finish`], the upload is broken off.
#[derive(Debug)]
pub struct Writer {
    call: Call,
    pipe: pipe::Sender,
    sent: u64,
}

impl Writer {
    pub(super) async fn begin(mut call: Call, pipe: OwnedFd) -> Result<Self> {
        let answer = call.answer().await?;
        match answer {
            FromHand::Opened(_) => {}
            other => return Err(call.unexpected(&other)),
        }
        let pipe = pipe::Sender::from_owned_fd(pipe).map_err(|error| call.failed(error))?;
        Ok(Self { call, pipe, sent: 0 })
    }

    /// Sends bytes. An error of the sandbox's filesystem is seen here or in [`Writer::finish`].
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let stall = Duration::from_secs(HAND_STALL_S);
            match tokio::time::timeout(stall, self.pipe.write(bytes)).await {
                Ok(Ok(length)) => {
                    self.sent += length as u64;
                    bytes = &bytes[length..];
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => return Err(self.broken().await),
                Ok(Err(error)) => return Err(self.call.failed(error)),
                Err(_) => return Err(self.call.late()),
            }
        }
        Ok(())
    }

    /// All bytes are sent. When this returns, all of them are in the file. Waits while changes are held.
    pub async fn finish(self) -> Result<Entry> {
        let Self { mut call, pipe, sent } = self;
        drop(pipe);
        call.begin_change().await;
        // What is in the pipe may take as long as the sandbox's disk takes, and all of it may be copied once more.
        call.extend(Duration::from_secs(HAND_STALL_S + sent / COPY_BYTES_PER_S));
        call.commit(sent).await?;
        let answer = call.answer().await?;
        match answer {
            FromHand::Entry(entry) => Ok(*entry),
            other => Err(call.unexpected(&other)),
        }
    }

    /// Why no more is taken.
    async fn broken(&mut self) -> Error {
        self.call.extend(SHORT);
        match self.call.answer().await {
            Ok(other) => self.call.unexpected(&other),
            Err(error) => error,
        }
    }
}
