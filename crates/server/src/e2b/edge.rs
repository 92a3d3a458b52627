//! From a route to what answers.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract,
    http::{HeaderMap, HeaderValue, Request, StatusCode, header::CONTENT_TYPE, request::Parts},
    response::{IntoResponse, Response},
    routing::any,
};
use base::id::SandboxId;
use base64::{Engine, prelude::BASE64_STANDARD};
use control::{Sandbox, State};
use gateway::{
    errors::{Form, Refusal},
    proxy::{Dial, DialError, Proxy, ProxyBounds, Target},
    route::{Route, SandboxLabel},
    serve::Endless,
    token::Secret,
};
use tokio::net::TcpStream;
use tower::ServiceExt;

use super::{
    answers::{is_closed, mask_host},
    api, inside,
    openapi::Served,
    platform::Platform,
};

/// Where the code interpreter of a sandbox listens, if it has one: `images/code-interpreter`.
const INTERPRETER_PORT: u16 = 49999;
/// What the interpreter learns the sandbox's environment variables by: JSON, as base64.
const VARIABLES: &str = "x-sandbox-envs";

/// How the types of streams of the Connect protocol begin.
const CONNECT_STREAM: &[u8] = b"application/connect+";

#[derive(Clone)]
struct Edge {
    platform: Arc<Platform>,
    api: Router,
    inside: Router,
    proxy: Proxy<OfNode>,
}

/// What answers every request that the gateway lets in.
pub(crate) fn handler(platform: Arc<Platform>, bounds: ProxyBounds, described: Served) -> Router {
    let proxy = Proxy::new(Arc::new(OfNode(Arc::clone(&platform))), bounds);
    let (api, inside) = (api(Arc::clone(&platform), described), inside::router(Arc::clone(&platform)));
    let edge = Edge { api, inside, proxy, platform };
    Router::new().fallback(any(dispatch)).with_state(edge)
}

async fn dispatch(extract::State(edge): extract::State<Edge>, request: Request<Body>) -> Response {
    match request.extensions().get::<Route>().cloned() {
        Some(Route::Api) => infallible(edge.api.oneshot(request).await),
        Some(Route::Envd { id }) => envd(edge, &id, request).await,
        Some(Route::Port { id, port }) => forward(edge, id, port, request).await,
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn envd(edge: Edge, label: &SandboxLabel, request: Request<Body>) -> Response {
    let (mut parts, body) = request.into_parts();
    let sandbox = match reached(&edge, label, &parts).await {
        Ok(sandbox) => sandbox,
        Err(refusal) => return refusal.answer(label, Form::wanted(&parts.headers)),
    };
    parts.extensions.insert(inside::Of(Arc::new(sandbox)));
    let mut response = infallible(edge.inside.oneshot(Request::from_parts(parts, body)).await);
    let kind = response.headers().get(CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(CONNECT_STREAM)) {
        // Output of commands and watches of directories.
        response.extensions_mut().insert(Endless);
    }
    response
}

/// The sandbox, running. Only a request that has its token resumes a paused one: a client that knows no more than a
/// sandbox's name must not use up its team's quota.
async fn reached(edge: &Edge, label: &SandboxLabel, request: &Parts) -> Result<Sandbox, Refusal> {
    let sandbox = edge.platform.named(label).await.ok_or(Refusal::NoSandbox)?;
    match sandbox.state {
        State::Running => edge.platform.here(sandbox),
        State::Paused(_) if inside::is_authorised(&edge.platform, &sandbox, request) => {
            edge.platform.awake(label).await
        }
        State::Paused(_) => Err(Refusal::NoSandbox),
    }
}

async fn forward(edge: Edge, id: SandboxLabel, port: u16, mut request: Request<Body>) -> Response {
    let headers = request.headers().clone();
    let refused = |refusal: Refusal| refusal.answer(&id, Form::wanted(&headers));
    let Some(sandbox) = edge.platform.named(&id).await else { return refused(Refusal::NoSandbox) };
    // As in `reached`. A sandbox whose ports are open is woken by every client: its owner chose that.
    if let Some(refusal) = edge.proxy.refusal(&target(&edge, &sandbox, id.clone(), port), &headers) {
        return refusal;
    }
    let reached = match sandbox.state {
        State::Running => edge.platform.here(sandbox),
        State::Paused(_) => edge.platform.awake(&id).await,
    };
    let sandbox = match reached {
        Ok(sandbox) => sandbox,
        Err(refusal) => return refused(refusal),
    };
    if port == INTERPRETER_PORT {
        tell_variables(&sandbox, request.headers_mut());
    }
    edge.proxy.forward(&target(&edge, &sandbox, id, port), request).await
}

/// The interpreter was warmed before the sandbox was created with these environment variables.
fn tell_variables(sandbox: &Sandbox, headers: &mut HeaderMap) {
    headers.remove(VARIABLES);
    let variables = &sandbox.spec.env_vars;
    if variables.is_empty() {
        return;
    }
    let value = serde_json::to_vec(variables).map(|json| BASE64_STANDARD.encode(json));
    // Base64 is always a value. More than the interpreter takes is its to refuse.
    if let Some(value) = value.ok().and_then(|text| HeaderValue::try_from(text).ok()) {
        headers.insert(VARIABLES, value);
    }
}

fn target(edge: &Edge, sandbox: &Sandbox, id: SandboxLabel, port: u16) -> Target {
    let token = is_closed(sandbox).then(|| edge.platform.control.sandboxes().traffic_token(sandbox));
    let traffic_token = token.map(|token| Secret::new(token.as_str()));
    Target { id, port, traffic_token, mask_request_host: mask_host(sandbox) }
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
