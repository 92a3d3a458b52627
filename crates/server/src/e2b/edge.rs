//! From a route to what answers.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{Request, StatusCode},
    response::{IntoResponse, Response},
    routing::any,
};
use base::id::SandboxId;
use gateway::{
    errors,
    proxy::{Dial, DialError, Proxy, Target},
    route::{Route, SandboxLabel},
    token::Secret,
};
use tokio::net::TcpStream;
use tower::ServiceExt;

use super::{
    answers::{is_closed, mask_host},
    api, inside,
    platform::Platform,
};

#[derive(Clone)]
struct Edge {
    platform: Arc<Platform>,
    api: Router,
    inside: Router,
    proxy: Proxy<OfNode>,
}

/// What answers every request that the gateway lets in.
pub(crate) fn handler(platform: Arc<Platform>) -> Router {
    let proxy = Proxy::new(Arc::new(OfNode(Arc::clone(&platform))));
    let edge = Edge { api: api(Arc::clone(&platform)), inside: inside::router(Arc::clone(&platform)), proxy, platform };
    Router::new().fallback(any(dispatch)).with_state(edge)
}

async fn dispatch(State(edge): State<Edge>, request: Request<Body>) -> Response {
    match request.extensions().get::<Route>().cloned() {
        Some(Route::Api) => infallible(edge.api.oneshot(request).await),
        Some(Route::Envd { id }) => envd(edge, &id, request).await,
        Some(Route::Port { id, port }) => forward(edge, id, port, request).await,
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn envd(edge: Edge, label: &SandboxLabel, mut request: Request<Body>) -> Response {
    let Some(sandbox) = edge.platform.awake(label).await else {
        return errors::no_sandbox(label, request.headers()).into_response();
    };
    request.extensions_mut().insert(inside::Of(Arc::new(sandbox)));
    infallible(edge.inside.oneshot(request).await)
}

async fn forward(edge: Edge, id: SandboxLabel, port: u16, request: Request<Body>) -> Response {
    let Some(sandbox) = edge.platform.awake(&id).await else {
        return errors::no_sandbox(&id, request.headers()).into_response();
    };
    let token = is_closed(&sandbox).then(|| edge.platform.control.sandboxes().traffic_token(&sandbox));
    let target = Target {
        id,
        port,
        traffic_token: token.map(|token| Secret::new(token.as_str())),
        mask_request_host: mask_host(&sandbox),
    };
    edge.proxy.forward(&target, request).await
}

fn infallible(answer: Result<Response, std::convert::Infallible>) -> Response {
    match answer {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Ports of sandboxes of the node.
struct OfNode(Arc<Platform>);

impl Dial for OfNode {
    type Stream = TcpStream;

    async fn dial(&self, id: &SandboxLabel, port: u16) -> Result<TcpStream, DialError> {
        let id: SandboxId = id.as_str().parse().map_err(|_| DialError::NoSandbox)?;
        match self.0.node.dial(&id, port).await {
            Ok(stream) => Ok(stream),
            Err(node::Error::PortClosed { port, .. }) => Err(DialError::PortClosed { port }),
            Err(node::Error::NotRunning { state: model::SandboxState::Paused, .. }) => Err(DialError::Paused),
            Err(node::Error::NoSandbox(_)) => Err(DialError::NoSandbox),
            Err(error) => Err(DialError::Failed(Box::new(error))),
        }
    }
}
