//! How E2B's clients are told of failures: one table from kinds to statuses, and their JSON body.

use std::time::Duration;

use api::e2b;
use axum::{
    Json,
    http::{HeaderValue, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use control::{ControlError, Kind};
use model::FailureKind;
use node::chain;

/// The SDKs' own header.
const SHOULD_RETRY: &str = "should-retry";

/// An answer from 400 on.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    status: StatusCode,
    message: String,
    retry_after: Option<Duration>,
    /// Whether clients repeat it by themselves, if they would otherwise.
    repeat: bool,
}

/// Of a handler.
pub(crate) type Result<T> = std::result::Result<T, Failed>;

impl Failed {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after: None, repeat: true }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A sandbox that the team does not have. SDKs look for these words.
    pub(crate) fn no_sandbox(id: &str) -> Self {
        let shown: String = id.chars().take(80).collect();
        Self::new(StatusCode::NOT_FOUND, format!("Sandbox \"{shown}\" was not found"))
    }

    /// The client may try again after so long.
    pub(crate) fn after(self, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..self }
    }

    /// A pause that was refused. SDKs take 409 for "paused already", and would repeat any other 503.
    pub(crate) fn not_paused(self) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, repeat: false, ..self }
    }

    /// In the client's words: what the node calls `inner` is `outer` to it.
    pub(crate) fn renamed(self, inner: &str, outer: &str) -> Self {
        Self { message: self.message.replace(inner, outer), ..self }
    }

    /// Something else is done with it at the moment, or it is in another state.
    pub(crate) fn is_conflict(&self) -> bool {
        self.status == StatusCode::CONFLICT
    }

    /// As a part of another answer.
    pub(crate) fn body(&self) -> e2b::Error {
        e2b::Error { code: i32::from(self.status.as_u16()), message: self.message.clone(), error_code: None }
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs().max(1);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if !self.repeat {
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }
}

impl From<node::Error> for Failed {
    fn from(error: node::Error) -> Self {
        let model::Failure { kind, message, details, .. } = error.failure();
        if kind == FailureKind::Host {
            tracing::error!(error = chain(&error), "a request failed");
            // Paths of this machine mean nothing to a client.
            return Self::new(status(kind), "the server failed: its log says why");
        }
        let details = if details.is_empty() { String::new() } else { format!(": {}", details.join("; ")) };
        Self::new(status(kind), format!("{message}{details}"))
    }
}

impl From<model::Failure> for Failed {
    fn from(model::Failure { kind, message, .. }: model::Failure) -> Self {
        Self::new(status(kind), message)
    }
}

impl From<ControlError> for Failed {
    fn from(error: ControlError) -> Self {
        let (status, retry_after) = match error.kind() {
            Kind::NotFound => (StatusCode::NOT_FOUND, None),
            Kind::Unauthorised => (StatusCode::UNAUTHORIZED, None),
            Kind::Forbidden => (StatusCode::FORBIDDEN, None),
            Kind::Conflict => (StatusCode::CONFLICT, None),
            Kind::Invalid => (StatusCode::BAD_REQUEST, None),
            Kind::OverQuota { retry_after } => (StatusCode::TOO_MANY_REQUESTS, Some(retry_after)),
            Kind::Unavailable { retry_after } => (StatusCode::SERVICE_UNAVAILABLE, Some(retry_after)),
        };
        if let ControlError::Database(_) = error {
            tracing::error!(error = base::error::chain(&error), "the database failed");
        }
        Self { status, message: error.to_string(), retry_after, repeat: true }
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
