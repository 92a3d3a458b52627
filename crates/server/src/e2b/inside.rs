//! What answers for envd in a sandbox: the Connect services, and files over HTTP.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::State,
    http::{Request, StatusCode},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use control::Sandbox;
use tower::ServiceExt;

use super::{
    failed::{Failed, Result},
    place::Inside,
    platform::Platform,
};

/// The header of the sandbox's access token.
const TOKEN_HEADER: &str = "x-access-token";

/// The sandbox of a request.
#[derive(Clone)]
pub(crate) struct Of(pub(crate) Arc<Sandbox>);

/// The paths of envd. The sandbox is among the extensions of the request, as [`Of`].
pub(crate) fn router(platform: Arc<Platform>) -> Router {
    Router::new().route("/health", get(health)).route("/envs", get(envs)).fallback(any(services)).with_state(platform)
}

async fn health() -> StatusCode {
    StatusCode::NO_CONTENT
}

async fn envs(
    State(platform): State<Arc<Platform>>,
    Extension(of): Extension<Of>,
    request: Request<Body>,
) -> Result<Json<BTreeMap<String, String>>> {
    authorise(&platform, &of, &request)?;
    Ok(Json(of.0.spec.env_vars.clone()))
}

async fn services(
    State(platform): State<Arc<Platform>>,
    Extension(of): Extension<Of>,
    mut request: Request<Body>,
) -> Response {
    if let Err(failed) = authorise(&platform, &of, &request) {
        return failed.into_response();
    }
    let place = Inside::new(Arc::clone(&platform.node), of.0);
    request.extensions_mut().insert(envd::PlaceHandle(Arc::new(place)));
    match platform.envd.clone().oneshot(request).await {
        Ok(response) => response.map(Body::new).into_response(),
        Err(never) => match never {},
    }
}

/// Fails unless the request has the sandbox's token.
fn authorise(platform: &Platform, Of(sandbox): &Of, request: &Request<Body>) -> Result<()> {
    let wrong = || Failed::new(StatusCode::UNAUTHORIZED, "unauthorized access, please provide a valid access token");
    let presented = request.headers().get(TOKEN_HEADER).and_then(|token| token.to_str().ok()).ok_or_else(wrong)?;
    platform.control.sandboxes().envd_token(sandbox).verify(presented).map_err(|_| wrong())
}
