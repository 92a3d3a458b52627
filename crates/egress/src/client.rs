//! The sandbox's end of a visit: what was read of it already comes first, and what moves is counted.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// How many bytes have moved, in both directions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Moved(Arc<AtomicU64>);

impl Moved {
    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Until nothing has moved for so long, or for up to twice that.
    pub(crate) async fn rests(&self, most: Duration) {
        loop {
            let before = self.0.load(Ordering::Relaxed);
            tokio::time::sleep(most).await;
            if self.0.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Client {
    first: Bytes,
    stream: TcpStream,
    moved: Moved,
}

impl Client {
    pub(crate) fn new(first: Vec<u8>, stream: TcpStream, moved: Moved) -> Self {
        Self { first: first.into(), stream, moved }
    }
}

impl AsyncRead for Client {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.has_remaining() {
            let part = self.first.len().min(into.remaining());
            into.put_slice(&self.first.split_to(part));
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        self.moved.add(into.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.moved.add(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
