//! What answers for envd in a sandbox: the Connect services, and files over HTTP.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{Request, StatusCode},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use base::id::SandboxId;
use tower::ServiceExt;

use super::{errors::Failed, place::Inside, platform::Platform};

/// The paths of envd. The sandbox is that of the request's header.
pub(crate) fn router(platform: Arc<Platform>) -> Router {
    Router::new().route("/health", get(async || StatusCode::NO_CONTENT)).fallback(any(services)).with_state(platform)
}

async fn services(State(platform): State<Arc<Platform>>, mut request: Request<Body>) -> Response {
    let id = request.headers().get("e2b-sandbox-id").and_then(|id| id.to_str().ok()?.parse::<SandboxId>().ok());
    let known = id.and_then(|id| Some((platform.known().get(&id).cloned()?, id)));
    let Some((known, id)) = known else {
        return Failed::new(StatusCode::BAD_GATEWAY, "The sandbox was not found").into_response();
    };
    let place = Inside::new(Arc::clone(&platform.node), id, known);
    request.extensions_mut().insert(envd::PlaceHandle(Arc::new(place)));
    match platform.envd.clone().oneshot(request).await {
        Ok(response) => response.map(Body::new).into_response(),
        Err(never) => match never {},
    }
}
