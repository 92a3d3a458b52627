//! One connection, from its first byte to its end.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::body::Body;
use base::limits::{EDGE_HEAD_BYTES_MAX, EDGE_STREAMS_MAX};
use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, watch},
    time::{Instant, timeout, timeout_at},
};
use tower_service::Service;

use super::{
    Endless, Options, Origin, Phase, Plain,
    activity::{Activity, Counted},
    guarded::Guarded,
};
use crate::{
    errors::{self, Form},
    route::{Asked, Unroutable, route},
};

/// The first byte of a TLS connection: a record of the handshake (RFC 8446, 5.1). No HTTP method begins with it.
const TLS_HANDSHAKE: u8 = 0x16;

/// A peer that is gone without a word is noticed after idle + 4 · interval: two minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// Bytes of one upload that may wait for its handler.
const STREAM_WINDOW_BYTES: u32 = 512 << 10;
/// Bytes of all uploads of a connection that may wait. Many uploads whose handlers are slow must not stop the rest.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Bytes of one answer that may wait for a slow client: 64 MiB for a connection with as many streams as it may have.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// A connection that was told to end because it is idle has nothing left to say.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// To a client that may not speak plain HTTP. It has not been read yet, so it may speak whatever begins like HTTP.
const NEEDS_TLS: &str = "plain HTTP is served on this machine only; use https, or start the server with --plain-http\n";

/// What all connections share.
pub(super) struct Server<H> {
    options: Options,
    handler: H,
    http: Builder<TokioExecutor>,
}

impl<H> Server<H>
where
    H: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    H::Future: Send,
{
    pub(super) fn new(options: Options, handler: H) -> Self {
        let mut http = Builder::new(TokioExecutor::new());
        // The timeout of hyper runs between requests, too. A connection before its first request is watched here.
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(options.bounds.idle)
            .max_buf_size(EDGE_HEAD_BYTES_MAX);
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(EDGE_STREAMS_MAX)
            .max_header_list_size(EDGE_HEAD_BYTES_MAX as u32)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .keep_alive_interval(KEEPALIVE_IDLE)
            .keep_alive_timeout(KEEPALIVE_INTERVAL * KEEPALIVE_PROBES);
        Self { options, handler, http }
    }

    /// The whole life of a connection, but for a tunnel that it becomes.
    pub(super) async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        place: OwnedSemaphorePermit,
        mut phase: watch::Receiver<Phase>,
    ) {
        let begun = Instant::now();
        let activity = Arc::new(Activity::new(begun));
        let begin = Arc::clone(&self).begin(stream, peer, place, phase.clone(), begun);
        let mut pressure = phase.clone();
        // Until there is HTTP, a server that stops owes the client nothing. Nor does one whose places are all taken.
        let http = tokio::select! {
            http = begin => http,
            () = activity.idle(&self.options.bounds, &mut pressure) => return,
            () = stopping(&mut phase) => return,
        };
        if let Some((stream, origin)) = http {
            self.http(stream, origin, phase, activity).await;
        }
    }

    /// Everything before HTTP. `None`: there will be none.
    async fn begin(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        place: OwnedSemaphorePermit,
        phase: watch::Receiver<Phase>,
        begun: Instant,
    ) -> Option<(Guarded<Box<dyn Stream>>, Origin)> {
        tune(&stream);
        let mut first = [0];
        let peeked = timeout_at(begun + self.options.bounds.first_request, stream.peek(&mut first)).await;
        if !matches!(peeked, Ok(Ok(1))) {
            return None;
        }
        let mut origin = Origin { peer, is_tls: first[0] == TLS_HANDSHAKE, server_name: None };
        let stream: Box<dyn Stream> = if origin.is_tls {
            let tls = self.options.tls.as_ref()?;
            let handshake = timeout(self.options.bounds.handshake, tls.accept(stream)).await;
            match handshake {
                Ok(Ok(stream)) => {
                    origin.server_name = stream.get_ref().1.server_name().map(Arc::from);
                    Box::new(stream)
                }
                Ok(Err(error)) => {
                    tracing::debug!(%peer, %error, "no TLS");
                    return None;
                }
                Err(_) => return None,
            }
        } else if self.options.plain == Plain::Anywhere || peer.ip().to_canonical().is_loopback() {
            Box::new(stream)
        } else {
            refuse_plain(stream).await;
            return None;
        };
        Some((Guarded::new(stream, place, phase, self.options.bounds.stall), origin))
    }

    async fn http(
        self: Arc<Self>,
        stream: Guarded<Box<dyn Stream>>,
        origin: Origin,
        mut phase: watch::Receiver<Phase>,
        activity: Arc<Activity>,
    ) {
        let mut pressure = phase.clone();
        let is_tunnel = stream.is_tunnel();
        let service = service_fn(|request| Arc::clone(&self).request(request, &origin, &activity));
        let mut serving = pin!(self.http.serve_connection_with_upgrades(TokioIo::new(stream), service));
        tokio::select! {
            served = serving.as_mut() => match served {
                // Or it is closed, and then the mark has no effect.
                Ok(()) => is_tunnel.store(true, Ordering::Relaxed),
                Err(error) => {
                    tracing::debug!(peer = %origin.peer, error = base::error::chain(&*error), "a connection broke off");
                }
            },
            () = activity.idle(&self.options.bounds, &mut pressure) => {
                serving.as_mut().graceful_shutdown();
                let _ = timeout(CLOSE_MAX, serving).await;
            }
            () = stopping(&mut phase) => {
                activity.end_streams();
                serving.as_mut().graceful_shutdown();
                // The stream ends by itself when it is cut.
                let _ = serving.await;
            }
        }
    }

    /// Routes a request and hands it on.
    fn request(
        self: Arc<Self>,
        request: Request<Incoming>,
        origin: &Origin,
        activity: &Arc<Activity>,
    ) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send + use<H> {
        let running = activity.begin();
        let (mut parts, body) = request.into_parts();
        let routed = Asked::of(&parts, origin.server_name.as_deref());
        let routed = routed.and_then(|asked| route(asked, &self.options.domain));
        parts.extensions.insert(origin.clone());
        let form = Form::wanted(&parts.headers);
        async move {
            let response = match routed {
                Ok(route) => {
                    parts.extensions.insert(route);
                    self.hand_on(Request::from_parts(parts, Body::new(body))).await
                }
                Err(reason) => unroutable(&reason, form),
            };
            let is_endless = response.extensions().get::<Endless>().is_some();
            Ok(response.map(|body| Body::new(Counted::new(body, running, is_endless))))
        }
    }

    async fn hand_on(&self, request: Request<Body>) -> Response<Body> {
        let mut handler = self.handler.clone();
        let Ok(()) = std::future::poll_fn(|cx| handler.poll_ready(cx)).await;
        let Ok(response) = handler.call(request).await;
        response
    }
}

/// Resolves when no more requests are taken.
async fn stopping(phase: &mut watch::Receiver<Phase>) {
    // An error: the server is gone.
    let _ = phase.wait_for(|phase| phase.is_ending()).await;
}

/// A stream of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

fn unroutable(reason: &Unroutable, form: Form) -> Response<Body> {
    tracing::debug!(%reason, "a request goes nowhere");
    errors::unroutable(reason, form)
}

/// A failure costs time or a slow notice, no request.
fn tune(stream: &TcpStream) {
    let tuned = stream.set_nodelay(true).map_err(|error| error.to_string()).and_then(|()| {
        sockopt::set_socket_keepalive(stream, true)
            .and_then(|()| sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE))
            .and_then(|()| sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL))
            .and_then(|()| sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES))
            .map_err(|errno| errno.to_string())
    });
    if let Err(error) = tuned {
        tracing::debug!(error, "a connection keeps its defaults");
    }
}

async fn refuse_plain(mut stream: TcpStream) {
    let answer = format!(
        "HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{NEEDS_TLS}",
        NEEDS_TLS.len()
    );
    let _ = timeout(CLOSE_MAX, async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // To close with unread bytes would take the answer back.
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    })
    .await;
}
