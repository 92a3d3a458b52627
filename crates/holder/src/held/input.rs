//! Input of a command, and the size of its terminal.

use std::io;

use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::{Interest, unix::AsyncFd};

use super::{Held, lock};
use crate::error::{Error, Refusal};

/// Ctrl-D: a terminal's way to say end of file.
const END_OF_FILE: &[u8] = b"\x04";

impl Held {
    /// Writes all of `bytes`. It waits as long as the command does not read.
    pub(crate) async fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        if self.record.end().is_some() {
            return Err(refused(Refusal::Ended, "the command has ended"));
        }
        let _turn = self.writing.lock().await;
        let input = lock(&self.input).clone();
        let target = if self.meta.terminal { Some(&self.outputs[0].source) } else { input.as_deref() };
        let target = target.filter(|_| !self.record.is_input_closed());
        let Some(target) = target else {
            return Err(refused(Refusal::NoInput, "the command takes no input: it has none, or its input was closed"));
        };
        let written = tokio::select! {
            written = write_all(target, bytes) => written,
            // The end closes nothing that a process left behind still reads.
            () = self.until_marked() => return Err(refused(Refusal::Ended, "the command has ended")),
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                Err(refused(Refusal::NoInput, "the command has closed its input"))
            }
            Err(error) if self.meta.terminal => {
                Err(Error::Refused { refusal: Refusal::Ended, message: format!("the terminal is gone: {error}") })
            }
            written => written.map_err(Error::system("write to the command")),
        }
    }

    /// Ends the input, once. A terminal gets Ctrl-D, because its program holds it open.
    pub(crate) async fn close_input(&self) -> Result<(), Error> {
        if self.meta.terminal {
            return self.write(END_OF_FILE).await;
        }
        // What other clients have begun to write comes first.
        let _turn = self.writing.lock().await;
        if self.record.end().is_some() {
            return Err(refused(Refusal::Ended, "the command has ended"));
        }
        if lock(&self.input).take().is_none() {
            return Err(refused(Refusal::NoInput, "the command has no input, or its input was closed"));
        }
        self.record.close_input();
        Ok(())
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) -> Result<(), Error> {
        if !self.meta.terminal {
            return Err(refused(Refusal::NoTerminal, "the command has no terminal"));
        }
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(self.outputs[0].source.get_ref(), size).map_err(Error::system("resize the terminal"))
    }

    async fn until_marked(&self) {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if self.record.end().is_some() {
                return;
            }
            news.await;
        }
    }
}

fn refused(refusal: Refusal, message: &str) -> Error {
    Error::Refused { refusal, message: message.to_owned() }
}

async fn write_all(fd: &AsyncFd<std::os::fd::OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = fd.async_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, bytes)?)).await?;
        bytes = &bytes[written..];
    }
    Ok(())
}
