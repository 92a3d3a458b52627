//! The stream of a connection: it holds the connection's place, and ends when the server cuts it.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{OwnedSemaphorePermit, watch},
};

use super::Phase;

/// A stream that a tunnel may take over: the place and the cut go with it.
pub(super) struct Guarded<S> {
    stream: S,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_cut: bool,
    _place: OwnedSemaphorePermit,
}

impl<S> Guarded<S> {
    pub(super) fn new(stream: S, place: OwnedSemaphorePermit, mut phase: watch::Receiver<Phase>) -> Self {
        let cut = Box::pin(async move {
            // An error: the server is gone, and with it the wish to go on.
            let _ = phase.wait_for(|phase| *phase == Phase::Cut).await;
        });
        Self { stream, cut, is_cut: false, _place: place }
    }

    fn is_cut(&mut self, cx: &mut Context<'_>) -> bool {
        self.is_cut = self.is_cut || self.cut.as_mut().poll(cx).is_ready();
        self.is_cut
    }
}

fn aborted() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the server stops")
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_cut(cx) {
            return Poll::Ready(Err(aborted()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_cut {
            return Poll::Ready(Err(aborted()));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_cut {
            return Poll::Ready(Err(aborted()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
