//! Around every request: its id, its span in the log, and the count of failures.

use std::sync::Arc;

use api::ErrorCode;
use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue},
    middleware::Next,
    response::Response,
};
use base::id::RequestId;
use keeper::origin;
use node::Node;
use tracing::Instrument;

/// Where client and node tell each other the id of a request.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What an answer failed with.
#[derive(Debug, Clone, Copy)]
pub(super) struct FailedWith(pub(super) ErrorCode);

/// Performs a request within its span.
pub(super) async fn around(State(node): State<Arc<Node>>, mut request: Request, next: Next) -> Response {
    let id = id_of(request.headers());
    // The path as it is routed: names are in the fields of the operations.
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let span = tracing::info_span!("request", request = %id, method = %request.method(), path);
    let header = HeaderValue::try_from(id.as_str()).ok();
    if let Some(id) = &header {
        // The process of volumes gets it, too.
        request.headers_mut().insert(REQUEST_ID, id.clone());
    }
    let mut answer = origin::serve(id, next.run(request)).instrument(span).await;
    if let Some(FailedWith(code)) = answer.extensions().get() {
        count_failure(&node, *code);
    }
    if let Some(id) = header {
        answer.headers_mut().insert(REQUEST_ID, id);
    }
    answer
}

/// Counts a failed request.
pub(super) fn count_failure(node: &Node, code: ErrorCode) {
    if let Ok(serde_json::Value::String(code)) = serde_json::to_value(code) {
        node.count_failure(code);
    }
}

/// What the client has chosen; a random id if that is none.
fn id_of(headers: &HeaderMap) -> RequestId {
    let chosen = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()?.parse().ok());
    chosen.unwrap_or_else(RequestId::random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_chooses_the_id_only_if_it_is_one() {
        let headers = |id: &'static str| HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_static(id))]);
        assert_eq!(id_of(&headers("build-7.a_b")).as_str(), "build-7.a_b");
        for random in [id_of(&headers("a b")), id_of(&headers("")), id_of(&HeaderMap::new())] {
            assert_eq!(random.as_str().len(), 12);
        }
    }
}
