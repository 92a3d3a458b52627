//! What E2B's SDKs talk to: the control plane, and the services inside sandboxes, answered from outside.
//!
//! ```text
//! gateway: route ──► Api:  key ─► team ─► control (what is known) ─► node (what runs)
//!                ├─► Envd: token ─► envd services over the node's commands and files
//!                └─► Port: token ─► proxy to a port in the sandbox
//! ```

mod answers;
mod auth;
mod edge;
mod failed;
mod history;
pub(crate) mod inside;
mod patient;
mod place;
mod platform;
mod runtime;
mod sandboxes;
mod secrets;
mod templates;
mod version;
mod volumes;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::DefaultBodyLimit,
    http::{Request, StatusCode, Uri},
    middleware,
    routing::{delete, get, post, put},
};
use base::limits::{API_BODY_IDLE_S, REQUEST_BYTES_MAX};

pub(crate) use edge::handler;
pub(crate) use failed::Result;
pub(crate) use platform::Platform;
pub(crate) use runtime::OnNode;

/// Every path of the control plane.
fn api(platform: Arc<Platform>) -> Router {
    Router::new()
        .route("/health", get(async || StatusCode::NO_CONTENT))
        .route("/sandboxes", get(sandboxes::list::all).post(sandboxes::create::v1))
        .route("/v2/sandboxes", get(sandboxes::list::page).post(sandboxes::create::v2))
        .route("/sandboxes/{id}", get(sandboxes::list::one).delete(sandboxes::end::kill))
        .route("/sandboxes/{id}/connect", post(sandboxes::connect::v1))
        .route("/v2/sandboxes/{id}/connect", post(sandboxes::connect::v2))
        .route("/sandboxes/{id}/resume", post(sandboxes::connect::resume))
        .route("/sandboxes/{id}/timeout", post(sandboxes::end::timeout))
        .route("/sandboxes/{id}/refreshes", post(sandboxes::end::refresh))
        .route("/sandboxes/{id}/pause", post(sandboxes::end::pause))
        .route("/sandboxes/{id}/fork", post(sandboxes::fork::fork))
        .route("/sandboxes/{id}/snapshots", post(sandboxes::fork::snapshot))
        .route("/snapshots", get(sandboxes::fork::snapshots))
        .route("/sandboxes/metrics", get(sandboxes::watch::metrics_of))
        .route("/sandboxes/{id}/metrics", get(sandboxes::watch::metrics))
        .route("/sandboxes/{id}/logs", get(sandboxes::watch::logs))
        .route("/v2/sandboxes/{id}/logs", get(sandboxes::watch::logs_v2))
        .route("/sandboxes/{id}/network", put(sandboxes::network::update))
        .route("/secrets", get(secrets::list).post(secrets::create))
        .route("/secrets/{id}", get(secrets::one).post(secrets::update).delete(secrets::delete))
        .route("/templates", get(templates::list))
        .route("/v2/templates", get(templates::list))
        .route("/templates/{id}", delete(templates::delete))
        .route("/templates/aliases/{alias}", get(templates::alias))
        .route("/templates/tags", post(templates::assign_tags).delete(templates::remove_tags))
        .route("/templates/{id}/tags", get(templates::tags))
        .merge(volumes::router())
        .fallback(no_such_path)
        .layer(middleware::from_fn(version::check))
        .layer(middleware::map_request(async |request: Request<Body>| patient::body(request, API_BODY_IDLE_S)))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(platform)
}

async fn no_such_path(uri: Uri) -> failed::Failed {
    failed::Failed::new(StatusCode::NOT_FOUND, format!("this server has no {}", uri.path()))
}
