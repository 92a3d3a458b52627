//! One connection to a program, for one request.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body;
use base::limits::{EDGE_HEAD_BYTES_MAX, EDGE_HEADERS_MAX};
use hyper::{
    Request, Response,
    body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint},
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinHandle,
};

use super::headers::{Protocol, remove_hop_by_hop};

/// Ends its task when it is dropped.
#[derive(Debug)]
struct Connection(Option<JoinHandle<()>>);

impl Connection {
    /// Lets the task end by itself.
    fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// The body of a program's answer. The connection lives as long: if the client goes away, both end.
struct Answer {
    body: Incoming,
    _connection: Connection,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Sends a request and waits for the head of the answer. Dropping the future closes the connection.
pub(super) async fn send<S>(stream: S, request: Request<Body>, protocol: Protocol) -> hyper::Result<Response<Body>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    let (response, connection) = match protocol {
        Protocol::Http1 => {
            let mut builder = http1::Builder::new();
            builder.max_buf_size(EDGE_HEAD_BYTES_MAX).max_headers(EDGE_HEADERS_MAX);
            let (mut sender, connection) = builder.handshake(io).await?;
            let connection = drive(connection.with_upgrades());
            (sender.send_request(request).await?, connection)
        }
        Protocol::Http2 => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.max_header_list_size(EDGE_HEAD_BYTES_MAX as u32);
            let (mut sender, connection) = builder.handshake(io).await?;
            let connection = drive(connection);
            (sender.send_request(request).await?, connection)
        }
    };
    let (mut parts, body) = response.into_parts();
    if parts.status != hyper::StatusCode::SWITCHING_PROTOCOLS {
        remove_hop_by_hop(&mut parts.headers);
        return Ok(Response::from_parts(parts, Body::new(Answer { body, _connection: connection })));
    }
    // It ends as soon as the tunnel has the stream.
    connection.detach();
    Ok(Response::from_parts(parts, Body::empty()))
}

fn drive(connection: impl Future<Output = hyper::Result<()>> + Send + 'static) -> Connection {
    Connection(Some(tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error = base::error::chain(&error), "a connection to a program ended");
        }
    })))
}
