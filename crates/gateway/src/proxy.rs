//! Forwards a request to a port of a program in a sandbox.
//!
//! ```text
//! token -> dial -> head rewritten -> upstream HTTP/1.1 (gRPC: HTTP/2) -> answer streamed back
//!                                      └ 101: both connections become one tunnel
//! ```
//!
//! Each request has a connection of its own to the program: one costs tens of microseconds, and a program that is
//! paused, forked or restarted never meets an old one. Bodies stream both ways without a bound of size or time. If the
//! client goes away, the connection to the program is closed.

mod headers;
mod places;
mod tunnel;
mod upstream;

use std::{error::Error as StdError, future::Future, sync::Arc};

use axum::body::Body;
use hyper::{HeaderMap, Method, Request, Response, header};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    errors::{Form, Refusal},
    route::SandboxLabel,
    serve::{Endless, Origin},
    token::Secret,
};

use places::Placed;
pub use places::{Place, Places, ProxyBounds};

/// The type of a stream of server-sent events.
const EVENTS: &[u8] = b"text/event-stream";

/// The header of the token that a sandbox with closed traffic asks for.
pub const TRAFFIC_TOKEN_HEADER: &str = "e2b-traffic-access-token";

/// A port in a sandbox cannot be connected to.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// There is no such sandbox.
    #[error("no such sandbox")]
    NoSandbox,
    /// No program listens on the port.
    #[error("port {port} is not open")]
    PortClosed {
        /// The port.
        port: u16,
    },
    /// The sandbox is paused, and traffic does not wake it.
    #[error("the sandbox is paused")]
    Paused,
    /// The sandbox is between two states, or the server has no room.
    #[error("the sandbox cannot be reached for the next {retry_after_s} s")]
    Busy {
        /// When to retry.
        retry_after_s: u64,
    },
    /// Anything else.
    #[error("cannot connect to the sandbox")]
    Failed(#[source] Box<dyn StdError + Send + Sync>),
}

/// Connects to programs in sandboxes. It may wake a paused sandbox first: the request waits for it.
pub trait Dial: Send + Sync + 'static {
    /// A connection to a program.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Connects to a port. Dropping the future must leave nothing behind: the client may go away.
    fn dial(&self, id: &SandboxLabel, port: u16) -> impl Future<Output = Result<Self::Stream, DialError>> + Send;
}

/// Where a request is forwarded to, and on what conditions.
#[derive(Debug, Clone)]
pub struct Target {
    /// The sandbox.
    pub id: SandboxLabel,
    /// The port.
    pub port: u16,
    /// The client must present this token, if there is one.
    pub traffic_token: Option<Secret>,
    /// The program sees this host instead of the client's. `${PORT}` stands for the port.
    pub mask_request_host: Option<String>,
}

/// The proxy to ports in sandboxes. A clone is the same proxy.
#[derive(Debug)]
pub struct Proxy<D> {
    dial: Arc<D>,
    places: Arc<Places>,
}

impl<D> Clone for Proxy<D> {
    fn clone(&self) -> Self {
        Self { dial: Arc::clone(&self.dial), places: Arc::clone(&self.places) }
    }
}

impl<D: Dial> Proxy<D> {
    /// A proxy that connects by `dial`.
    pub fn new(dial: Arc<D>, bounds: ProxyBounds) -> Self {
        Self { dial, places: Arc::new(Places::new(bounds)) }
    }

    /// The edge's own answer if the client may not reach the sandbox. A caller that wakes sandboxes asks before.
    pub fn refusal(&self, target: &Target, headers: &HeaderMap) -> Option<Response<Body>> {
        let refusal = admits(target, headers).err()?;
        Some(refusal.answer(&target.id, Form::wanted(headers)))
    }

    /// Forwards a request that [`crate::serve::serve`] has passed on, and gives the program's answer, or the edge's
    /// own one if there is none.
    pub async fn forward(&self, target: &Target, request: Request<Body>) -> Response<Body> {
        let form = Form::wanted(request.headers());
        match self.answer(target, request).await {
            Ok(response) => response,
            Err(refusal) => refusal.answer(&target.id, form),
        }
    }

    async fn answer(&self, target: &Target, request: Request<Body>) -> Result<Response<Body>, Refusal> {
        admits(target, request.headers())?;
        if request.method() == Method::CONNECT {
            return Err(Refusal::Method);
        }
        let place = self.places.take(&target.id)?;
        let stream = self.dial.dial(&target.id, target.port).await.map_err(|error| {
            tracing::debug!(sandbox = %target.id, port = target.port, error = base::error::chain(&error), "not reached");
            Refusal::from(&error)
        })?;
        let stream = Placed { stream, _place: place };
        let origin = request.extensions().get::<Origin>().cloned();
        let upgrade = headers::wanted_upgrade(&request);
        let protocol = headers::protocol(&request);
        let (mut request, client) = tunnel::take_client(request, upgrade.is_some());
        headers::rewrite_request(&mut request, target, origin.as_ref(), upgrade.as_ref(), protocol);
        let sent = upstream::send(stream, request, protocol).await;
        let mut response = sent.map_err(|error| {
            tracing::debug!(sandbox = %target.id, port = target.port, error = base::error::chain(&error), "broke off");
            Refusal::Broken
        })?;
        tunnel::join(&mut response, client, upgrade.as_ref())?;
        if response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(EVENTS)) {
            response.extensions_mut().insert(Endless);
        }
        Ok(response)
    }
}

fn admits(target: &Target, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(token) = &target.traffic_token else { return Ok(()) };
    match headers.get(TRAFFIC_TOKEN_HEADER) {
        None => Err(Refusal::TokenMissing),
        Some(presented) if token.is(presented.as_bytes()) => Ok(()),
        Some(_) => Err(Refusal::TokenInvalid),
    }
}
