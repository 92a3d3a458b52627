//! How many connections to programs there are at a time: each costs a descriptor and its buffers.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use axum::body::Body;
use base::limits::{EDGE_PROXIED_MAX, EDGE_PROXIED_SANDBOX_MAX};
use hyper::{
    Response,
    body::{Body as HttpBody, Bytes, Frame, SizeHint},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{errors::Refusal, route::SandboxLabel};

/// Connections to programs at a time. The defaults are those of [`base::limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyBounds {
    /// To one sandbox.
    pub sandbox: usize,
    /// To all sandboxes.
    pub all: usize,
}

impl Default for ProxyBounds {
    fn default() -> Self {
        Self { sandbox: EDGE_PROXIED_SANDBOX_MAX, all: EDGE_PROXIED_MAX }
    }
}

impl ProxyBounds {
    /// For a process that may have so many descriptors: a quarter is for programs, half of it for one sandbox.
    pub fn within(descriptors: usize) -> Self {
        let all = EDGE_PROXIED_MAX.min(descriptors / 4);
        Self { sandbox: EDGE_PROXIED_SANDBOX_MAX.min(all / 2), all }
    }
}

/// Places at sandboxes: for connections of a proxy, or for streams of services.
#[derive(Debug)]
pub struct Places {
    bounds: ProxyBounds,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_sandbox: HashMap<SandboxLabel, usize>,
}

impl Places {
    /// Places within bounds.
    pub fn new(bounds: ProxyBounds) -> Self {
        Self { bounds, taken: Mutex::default() }
    }

    /// Takes a place until it is dropped. Fails if the sandbox, or the server, has none left.
    pub fn take(self: &Arc<Self>, id: &SandboxLabel) -> Result<Place, Refusal> {
        let mut taken = self.taken();
        let of_sandbox = taken.by_sandbox.get(id).copied().unwrap_or_default();
        if of_sandbox >= self.bounds.sandbox {
            return Err(Refusal::SandboxFull { connections_max: self.bounds.sandbox });
        }
        if taken.all >= self.bounds.all {
            tracing::warn!(connections = taken.all, "all connections to programs are in use");
            return Err(Refusal::Full);
        }
        taken.all += 1;
        taken.by_sandbox.insert(id.clone(), of_sandbox + 1);
        Ok(Place { places: Arc::clone(self), id: id.clone() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One place.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    id: SandboxLabel,
}

impl Place {
    /// Keeps the place until the answer ends.
    pub fn until_end(self, answer: Response<Body>) -> Response<Body> {
        answer.map(|body| Body::new(PlacedBody { body, _place: self }))
    }
}

/// The body of an answer with its place.
struct PlacedBody {
    body: Body,
    _place: Place,
}

impl HttpBody for PlacedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(of_sandbox) = taken.by_sandbox.get_mut(&self.id) {
            *of_sandbox -= 1;
            if *of_sandbox == 0 {
                taken.by_sandbox.remove(&self.id);
            }
        }
    }
}

/// A connection with its place: a tunnel takes both over.
#[derive(Debug)]
pub(super) struct Placed<S> {
    pub(super) stream: S,
    pub(super) _place: Place,
}

impl<S: AsyncRead + Unpin> AsyncRead for Placed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Placed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_for_a_sandbox_and_for_all() {
        let places = Arc::new(Places::new(ProxyBounds { sandbox: 2, all: 3 }));
        let label = |name| SandboxLabel::new(name).unwrap();
        let held = [places.take(&label("a")).unwrap(), places.take(&label("a")).unwrap()];
        assert_eq!(places.take(&label("a")).unwrap_err(), Refusal::SandboxFull { connections_max: 2 });
        let other = places.take(&label("b")).unwrap();
        assert_eq!(places.take(&label("c")).unwrap_err(), Refusal::Full);
        drop(held);
        let answer = other.until_end(Response::new(Body::from("x")));
        assert_eq!(places.taken().all, 1);
        drop(answer);
        assert!(places.taken().by_sandbox.is_empty() && places.taken().all == 0);
        places.take(&label("a")).unwrap();
    }

    #[test]
    fn few_descriptors_leave_few_places() {
        assert_eq!(ProxyBounds::within(1 << 20), ProxyBounds::default());
        assert_eq!(ProxyBounds::within(1_024), ProxyBounds { sandbox: 128, all: 256 });
    }
}
