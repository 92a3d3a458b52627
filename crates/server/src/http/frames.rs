//! A command's streams as frames on an upgraded connection.

use std::io;

use api::frame::{Decoder, Frame};
use node::exec::{Input, Inputs, Output, Outputs};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes read at once.
const READ_BYTES: usize = 32 << 10;

/// Whether a client knows [`Frame::Notice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notices {
    Wanted,
    Unknown,
}

/// Frames on their way to a client.
pub(super) struct FramesOut<W> {
    sink: W,
    bytes: Vec<u8>,
    notices: Notices,
}

impl<W: AsyncWrite + Unpin + Send> FramesOut<W> {
    pub(super) fn new(sink: W, notices: Notices) -> Self {
        Self { sink, bytes: Vec::new(), notices }
    }
}

impl<W: AsyncWrite + Unpin + Send> Outputs for FramesOut<W> {
    fn put(&mut self, output: Output) {
        let frame = match output {
            Output::Stdout(bytes) => Frame::Stdout(bytes),
            Output::Stderr(bytes) => Frame::Stderr(bytes),
            Output::Notice(_) if self.notices == Notices::Unknown => return,
            Output::Notice(text) => Frame::Notice(text),
            Output::Exit(status) => Frame::Exit(status.into()),
        };
        frame.encode(&mut self.bytes);
    }

    async fn flush(&mut self) -> io::Result<()> {
        while !self.bytes.is_empty() {
            let written = self.sink.write(&self.bytes).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.bytes.drain(..written);
        }
        self.sink.flush().await
    }

    async fn close(&mut self) {
        // A client that has left does not read the end either.
        let _ = self.sink.shutdown().await;
    }
}

/// Frames of a client.
pub(super) struct FramesIn<R> {
    source: R,
    decoder: Decoder,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin + Send> FramesIn<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, decoder: Decoder::default(), buffer: vec![0; READ_BYTES] }
    }
}

impl<R: AsyncRead + Unpin + Send> Inputs for FramesIn<R> {
    async fn next(&mut self) -> Option<Input> {
        loop {
            match self.decoder.next_frame() {
                Ok(Some(Frame::Stdin(bytes))) => return Some(Input::Stdin(bytes)),
                Ok(Some(Frame::StdinEnd)) => return Some(Input::StdinEnd),
                Ok(Some(Frame::Resize(size))) => return Some(Input::Resize(size.into())),
                Ok(Some(Frame::Stdout(_) | Frame::Stderr(_) | Frame::Exit(_) | Frame::Notice(_))) => return None,
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "the client's frames are not understood");
                    return None;
                }
            }
            match self.source.read(&mut self.buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(length) => self.decoder.push(&self.buffer[..length]),
            }
        }
    }
}
