//! How E2B's clients are told of failures: one table from kinds to statuses, and their JSON body.

use api::e2b;
use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use model::FailureKind;
use node::chain;

/// An answer from 400 on.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    status: StatusCode,
    message: String,
    error_code: Option<&'static str>,
}

/// Of a handler.
pub(crate) type Result<T> = std::result::Result<T, Failed>;

impl Failed {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), error_code: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// As a part of another answer.
    pub(crate) fn body(&self) -> e2b::Error {
        let error_code = self.error_code.map(str::to_owned);
        e2b::Error { code: i32::from(self.status.as_u16()), message: self.message.clone(), error_code }
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}

impl From<node::Error> for Failed {
    fn from(error: node::Error) -> Self {
        let model::Failure { kind, message, details, .. } = error.failure();
        if kind == FailureKind::Host {
            tracing::error!(error = chain(&error), "a request failed");
        }
        let details = if details.is_empty() { String::new() } else { format!(": {}", details.join("; ")) };
        Self::new(status(kind), format!("{message}{details}"))
    }
}

/// The status of each kind.
fn status(kind: FailureKind) -> StatusCode {
    match kind {
        FailureKind::InvalidRequest | FailureKind::ProgramMissing | FailureKind::ProgramNotExecutable => {
            StatusCode::BAD_REQUEST
        }
        FailureKind::NotFound => StatusCode::NOT_FOUND,
        FailureKind::Conflict | FailureKind::CannotFork | FailureKind::ReadOnly => StatusCode::CONFLICT,
        FailureKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        FailureKind::Interrupted | FailureKind::StoreUnavailable | FailureKind::Cancelled => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        FailureKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        FailureKind::NotReady | FailureKind::StartFailed | FailureKind::Damaged | FailureKind::Host => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}
