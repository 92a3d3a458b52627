//! Takes connections of clients: tells TLS from plain HTTP, reads requests, routes them and passes them on.
//!
//! ```text
//! accept -> first byte: 0x16 is TLS -> HTTP/1.1 or HTTP/2 -> route -> handler
//!   └ at most so many at a time         └ none in time, or idle: closed
//! ```
//!
//! Each connection is a task of its own. When the server stops, what has no end of its own ends at once: tunnels, and
//! answers that are [`Endless`]. All other requests have the grace period to finish. Then their connections are cut.

mod activity;
mod connection;
mod guarded;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::body::Body;
use base::limits;
use hyper::{Request, Response};
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
};
use tower_service::Service;

use crate::{domain::Domain, listen::Listeners, tls::Tls};
use connection::Server;

/// After an error of `accept`, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// After the grace period: cut connections are gone within this time.
const CUT_MAX: Duration = Duration::from_secs(1);

/// Where a request came from. It is among the request's extensions, beside its [`crate::route::Route`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The client's address.
    pub peer: SocketAddr,
    /// False for plain HTTP.
    pub is_tls: bool,
    /// The host name of the TLS handshake.
    pub server_name: Option<Arc<str>>,
}

/// An answer with this among its extensions has no end of its own, such as the output of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endless;

/// Who may speak HTTP without TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plain {
    /// Clients on this machine only.
    Loopback,
    /// Every client. Keys and contents can be read on the way.
    Anywhere,
}

/// Times and numbers. The defaults are those of [`base::limits`].
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections at a time.
    pub connections: usize,
    /// From a connection to its first request.
    pub first_request: Duration,
    /// Of a TLS handshake.
    pub handshake: Duration,
    /// Of a connection without requests.
    pub idle: Duration,
    /// The same while all connections are in use.
    pub idle_full: Duration,
    /// A client takes nothing of what is ready for it.
    pub stall: Duration,
    /// For running requests when the server stops.
    pub grace: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: limits::EDGE_CONNECTIONS_MAX,
            first_request: Duration::from_millis(limits::EDGE_FIRST_REQUEST_MS_MAX),
            handshake: Duration::from_millis(limits::EDGE_HANDSHAKE_MS_MAX),
            idle: Duration::from_millis(limits::EDGE_IDLE_MS_MAX),
            idle_full: Duration::from_millis(limits::EDGE_IDLE_FULL_MS_MAX),
            stall: Duration::from_millis(limits::EDGE_STALL_MS_MAX),
            grace: Duration::from_millis(limits::EDGE_GRACE_MS),
        }
    }
}

impl Bounds {
    /// For a process that may have so many descriptors: a quarter is for clients.
    pub fn within(descriptors: usize) -> Self {
        let connections = limits::EDGE_CONNECTIONS_MAX.min(descriptors / 4).max(1);
        Self { connections, ..Self::default() }
    }
}

/// How to serve.
#[derive(Debug, Clone)]
pub struct Options {
    /// Names below it are ours.
    pub domain: Domain,
    /// The certificates. Without them a TLS client is hung up on.
    pub tls: Option<Tls>,
    /// Who may speak plain HTTP.
    pub plain: Plain,
    /// Times and numbers.
    pub bounds: Bounds,
}

/// What connections must know of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// All connections are in use: those without requests go.
    Full,
    /// No request is taken any more.
    Finishing,
    /// Connections end at once.
    Cut,
}

impl Phase {
    /// No more requests are taken.
    fn is_ending(self) -> bool {
        match self {
            Self::Running | Self::Full => false,
            Self::Finishing | Self::Cut => true,
        }
    }
}

/// Serves until `stop` resolves, and at most the grace period longer.
///
/// `handler` gets each request with its [`crate::route::Route`] and its [`Origin`] as extensions. Requests that go
/// nowhere do not come to it. An `axum::Router` is such a handler.
pub async fn serve<H>(listeners: Listeners, options: Options, handler: H, stop: impl Future<Output = ()>)
where
    H: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    H::Future: Send,
{
    let places = Arc::new(Semaphore::new(options.bounds.connections));
    let phase = watch::Sender::new(Phase::Running);
    let (bounds, tls) = (options.bounds, options.tls.clone());
    let server = Arc::new(Server::new(options, handler));
    {
        let accepting = async {
            loop {
                let (stream, peer, place) = accept(&listeners, &places, &phase).await;
                tokio::spawn(Arc::clone(&server).connection(stream, peer, place, phase.subscribe()));
            }
        };
        let upkeep = async {
            match &tls {
                Some(tls) => tls.upkeep().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = accepting => {}
            () = upkeep => {}
            () = stop => {}
        }
    }
    // A client that comes now is refused instead of waiting.
    drop(listeners);
    phase.send_replace(Phase::Finishing);
    if !all_gone(&places, bounds, bounds.grace).await {
        tracing::info!(grace_ms = bounds.grace.as_millis() as u64, "requests still run after the grace period");
        phase.send_replace(Phase::Cut);
        all_gone(&places, bounds, CUT_MAX).await;
    }
}

/// The next connection, once there is a place for it.
async fn accept(
    listeners: &Listeners,
    places: &Arc<Semaphore>,
    phase: &watch::Sender<Phase>,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    let wanted = if places.available_permits() == 0 { Phase::Full } else { Phase::Running };
    let changed = phase.send_if_modified(|phase| std::mem::replace(phase, wanted) != wanted);
    if changed && wanted == Phase::Full {
        tracing::warn!("all connections are in use: idle ones are closed, new clients wait");
    }
    // It is never closed.
    let Ok(place) = Arc::clone(places).acquire_owned().await else { return std::future::pending().await };
    loop {
        match listeners.accept().await {
            Ok((stream, peer)) => return (stream, peer, place),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Each connection holds a place as long as its socket is open, tunnels included.
async fn all_gone(places: &Semaphore, bounds: Bounds, within: Duration) -> bool {
    let all = u32::try_from(bounds.connections).unwrap_or(u32::MAX);
    tokio::time::timeout(within, places.acquire_many(all)).await.is_ok()
}
