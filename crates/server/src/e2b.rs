//! What E2B's SDKs talk to: the control plane, and the services inside sandboxes, answered from outside.

mod errors;
mod inside;
mod place;
mod platform;
mod sandboxes;

use std::sync::Arc;

use axum::{
    Router,
    http::StatusCode,
    routing::{get, post},
};

pub(crate) use platform::Platform;

/// Every path of the control plane, and of sandboxes by header.
pub(crate) fn router(platform: Arc<Platform>) -> Router {
    Router::new()
        .route("/health", get(async || StatusCode::NO_CONTENT))
        .route("/sandboxes", post(sandboxes::create_v1))
        .route("/v2/sandboxes", post(sandboxes::create_v2))
        .route("/sandboxes/{id}", get(sandboxes::get).delete(sandboxes::kill))
        .fallback_service(inside::router(Arc::clone(&platform)))
        .with_state(platform)
}
