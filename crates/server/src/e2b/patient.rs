//! Bodies of requests whose clients send nothing for too long: they end with an error, and the handler with them.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{body::Body, http::Request};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

/// A body that is waited for.
struct Patient {
    body: Body,
    patience: Duration,
    timer: Pin<Box<Sleep>>,
    /// Whether the handler waits for the client. Until it does, the client is not slow.
    waits: bool,
}

/// Gives a request's body so many seconds for each piece.
pub(crate) fn body(request: Request<Body>, seconds: u64) -> Request<Body> {
    within(request, Duration::from_secs(seconds))
}

fn within(request: Request<Body>, patience: Duration) -> Request<Body> {
    request.map(|body| {
        if body.is_end_stream() {
            return body;
        }
        Body::new(Patient { body, patience, timer: Box::pin(tokio::time::sleep(patience)), waits: false })
    })
}

impl HttpBody for Patient {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_ready() {
            self.waits = false;
            return polled;
        }
        if !self.waits {
            let until = Instant::now() + self.patience;
            self.timer.as_mut().reset(until);
            self.waits = true;
        }
        let late = |()| {
            let error = io::Error::new(io::ErrorKind::TimedOut, "the client sent nothing for too long");
            Some(Err(axum::Error::new(error)))
        };
        self.timer.as_mut().poll(cx).map(late)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use futures::{StreamExt, stream};

    use super::*;

    #[tokio::test]
    async fn a_body_that_stops_is_an_error() {
        let pieces = || stream::iter(["x", "y"].map(|piece| Ok::<_, io::Error>(Bytes::from(piece))));
        let read = async |body: Body, patience: Duration| {
            to_bytes(within(Request::new(body), patience).into_body(), 100).await
        };
        let slow = pieces().then(async |piece| {
            tokio::time::sleep(Duration::from_millis(5)).await;
            piece
        });
        assert_eq!(read(Body::from_stream(slow), Duration::from_secs(60)).await.unwrap(), "xy");
        let stopped = Body::from_stream(pieces().chain(stream::pending()));
        assert!(read(stopped, Duration::from_millis(20)).await.is_err());
    }
}
