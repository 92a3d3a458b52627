//! The rest of a body that nobody wants. A client that is refused, or whose archive has ended, goes on sending; if the connection were closed before
//! all has come, it would hear of that, and not of the answer.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{self, Poll},
};

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::timeout;

use crate::limits::{REST_BYTES_MAX, REST_MAX};

/// A body for who answers, and then for who takes what is left of it.
#[derive(Clone)]
struct Shared(Arc<Mutex<Body>>);

impl Shared {
    fn body(&self) -> MutexGuard<'_, Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for Shared {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.body()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body().size_hint()
    }
}

/// Has a request answered. The rest of its body is taken beside the answer.
pub(super) async fn take_rest(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (head, body) = request.into_parts();
    let body = Shared(Arc::new(Mutex::new(body)));
    let answer = next.run(Request::from_parts(head, Body::new(body.clone()))).await;
    if !body.is_end_stream() {
        // One that sends more, or more slowly, sees the connection end.
        tokio::spawn(timeout(REST_MAX, discard(body)));
    }
    answer
}

async fn discard(mut body: Shared) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > REST_BYTES_MAX {
            return;
        }
    }
}
