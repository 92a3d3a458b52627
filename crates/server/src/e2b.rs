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
mod openapi;
mod patient;
mod place;
mod platform;
mod runtime;
pub(crate) mod sandboxes;
mod secrets;
mod templates;
mod version;
mod volumes;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::DefaultBodyLimit,
    http::{Method, Request, StatusCode, Uri},
    middleware,
};
use base::limits::{API_BODY_IDLE_S, HAND_PEER_IDLE_S, REQUEST_BYTES_MAX};
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) use edge::handler;
pub(crate) use failed::{Failed, Result};
pub(crate) use openapi::Served as Described;
pub(crate) use platform::Platform;
pub(crate) use runtime::OnNode;

/// Every path of the control plane, with its description.
#[allow(deprecated)] // Older SDKs use them.
fn routes() -> OpenApiRouter<Arc<Platform>> {
    OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(health))
        .routes(routes!(sandboxes::list::all, sandboxes::create::v1))
        .routes(routes!(sandboxes::list::page, sandboxes::create::v2))
        .routes(routes!(sandboxes::list::one, sandboxes::end::kill))
        .routes(routes!(sandboxes::connect::v1))
        .routes(routes!(sandboxes::connect::v2))
        .routes(routes!(sandboxes::connect::resume))
        .routes(routes!(sandboxes::end::timeout))
        .routes(routes!(sandboxes::end::refresh))
        .routes(routes!(sandboxes::end::pause))
        .routes(routes!(sandboxes::fork::fork))
        .routes(routes!(sandboxes::forks::forks))
        .routes(routes!(sandboxes::fork::snapshot))
        .routes(routes!(sandboxes::fork::snapshots))
        .routes(routes!(sandboxes::watch::metrics_of))
        .routes(routes!(sandboxes::watch::metrics))
        .routes(routes!(sandboxes::watch::logs))
        .routes(routes!(sandboxes::watch::logs_v2))
        .routes(routes!(sandboxes::network::update))
        .routes(routes!(templates::list_v1))
        .routes(routes!(templates::list))
        .routes(routes!(templates::one, templates::delete))
        .routes(routes!(templates::alias))
        .routes(routes!(templates::assign_tags, templates::remove_tags))
        .routes(routes!(templates::tags))
        .routes(routes!(secrets::list, secrets::create))
        .routes(routes!(secrets::one, secrets::update, secrets::delete))
        .merge(templates::builds::routes())
        .merge(volumes::routes())
}

/// What answers on the host of the control plane.
fn api(platform: Arc<Platform>, described: openapi::Served) -> Router {
    let (router, _) = routes().split_for_parts();
    router
        .merge(described.router())
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn(version::check))
        .layer(middleware::map_request(async |request: Request<Body>| patient(request)))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(platform)
}

/// A file may be made while it is sent, as those that go into sandboxes. Other bodies are small.
fn patient(request: Request<Body>) -> Request<Body> {
    let path = request.uri().path();
    let is_file = path.starts_with("/volumecontent/") || path.starts_with("/templates/") && path.contains("/files/");
    patient::body(request, if is_file { HAND_PEER_IDLE_S } else { API_BODY_IDLE_S })
}

/// Says that the server answers. A sandbox's own host has the same path, and says that the sandbox runs.
#[utoipa::path(
    get,
    path = "/health",
    operation_id = "getHealth",
    tag = "server",
    security(),
    responses((status = 204, description = "It answers")),
)]
async fn health() -> StatusCode {
    StatusCode::NO_CONTENT
}

async fn no_such_path(uri: Uri) -> failed::Failed {
    failed::Failed::new(StatusCode::NOT_FOUND, format!("this server has no {}", uri.path()))
}

async fn no_such_method(method: Method, uri: Uri) -> failed::Failed {
    failed::Failed::new(StatusCode::METHOD_NOT_ALLOWED, format!("{} has no {method}", uri.path()))
}
