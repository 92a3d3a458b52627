//! The document and its page over HTTP. Neither wants a key.

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderName, HeaderValue, header},
    response::IntoResponse,
    routing::get,
};

use super::{document, page};

/// The page runs no script and loads nothing but its own style.
const POLICY: &str =
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const STYLE: &str = include_str!("style.css");

/// What is served, made once.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    document: Arc<str>,
    page: Arc<str>,
}

impl Served {
    /// Makes the document and the page.
    pub(crate) fn new() -> serde_json::Result<Self> {
        let document = serde_json::to_value(document())?;
        Ok(Self { page: page::render(&document).into(), document: serde_json::to_string(&document)?.into() })
    }

    /// The paths.
    pub(crate) fn router<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        let Self { document, page } = self;
        Router::new()
            .route("/openapi.json", get(async move || answer("application/json", document.to_string())))
            .route("/docs", get(async move || answer("text/html; charset=utf-8", page.to_string())))
            .route("/docs/style.css", get(async || answer("text/css; charset=utf-8", STYLE.to_owned())))
    }
}

fn answer(kind: &'static str, body: String) -> impl IntoResponse {
    let headers: [(HeaderName, HeaderValue); 4] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (headers, body)
}
