//! The stream of a connection: it holds the connection's place. It ends when the server cuts it, and when the client
//! takes nothing for too long.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{OwnedSemaphorePermit, watch},
    time::{Instant, Sleep},
};

use super::Phase;

/// A stream that a tunnel may take over: the place and the cut go with it.
pub(super) struct Guarded<S> {
    stream: S,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_cut: bool,
    stall: Duration,
    is_tunnel: Arc<AtomicBool>,
    /// Runs while the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl<S> Guarded<S> {
    pub(super) fn new(
        stream: S,
        place: OwnedSemaphorePermit,
        mut phase: watch::Receiver<Phase>,
        stall: Duration,
    ) -> Self {
        let is_tunnel = Arc::new(AtomicBool::new(false));
        let has_no_end = Arc::clone(&is_tunnel);
        let cut = Box::pin(async move {
            let is_over =
                |phase: &Phase| *phase == Phase::Cut || phase.is_ending() && has_no_end.load(Ordering::Relaxed);
            // An error: the server is gone, and with it the wish to go on.
            let _ = phase.wait_for(is_over).await;
        });
        Self { stream, cut, is_cut: false, stall, is_tunnel, stalled: None, _place: place }
    }

    /// Set when the connection has become a tunnel, which has no end of its own.
    pub(super) fn is_tunnel(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_tunnel)
    }

    fn is_cut(&mut self, cx: &mut Context<'_>) -> bool {
        self.is_cut = self.is_cut || self.cut.as_mut().poll(cx).is_ready();
        self.is_cut
    }

    /// Passes on what became of a write. One that waits for too long fails.
    fn in_time<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let until = Instant::now() + self.stall;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        stalled.as_mut().poll(cx).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
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
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.in_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_cut {
            return Poll::Ready(Err(aborted()));
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.in_time(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
