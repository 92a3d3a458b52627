//! How a request fails on the wire.

use api::{ErrorBody, ErrorDetail};
use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use node::{Error, Node, chain};

use super::around::{FailedWith, count_failure};

/// As a line of an answer that has begun with success; counted like a failed answer.
pub(super) fn failed_late<T: From<model::Failure>>(node: &Node, error: &Error) -> T {
    let failure = error.failure();
    count_failure(node, failure.kind.into());
    failure.into()
}

/// An error of a handler; axum makes its answer of it.
#[derive(Debug)]
pub(crate) struct Failed(Error);

/// What handlers return.
pub(crate) type Result<T, E = Failed> = std::result::Result<T, E>;

impl<E: Into<Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let error = ErrorDetail::from(self.0.failure());
        let status = StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::warn!(error = chain(&self.0), "a request failed");
        }
        let code = error.code;
        let mut answer = (status, Json(ErrorBody { error })).into_response();
        answer.extensions_mut().insert(FailedWith(code));
        answer
    }
}
