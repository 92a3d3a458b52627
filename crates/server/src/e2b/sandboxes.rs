//! Requests about sandboxes.

pub(crate) mod connect;
pub(crate) mod create;
pub(crate) mod end;
pub(crate) mod fork;
pub(crate) mod forks;
pub(crate) mod list;
pub(crate) mod network;
pub(crate) mod wanted;
pub(crate) mod watch;

use std::{sync::Arc, time::Duration};

use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::{
    Json,
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Request, State, rejection::JsonRejection},
    http::request::Parts,
};
use base::{id::SandboxId, limits::SANDBOX_TIMEOUT_S_MAX};
use control::{ControlError, PageToken};
use keeper::origin::carried;
use model::Keep;
use serde::de::DeserializeOwned;

use super::{
    failed::{Failed, Result},
    platform::Platform,
};

/// What all handlers share.
pub(crate) type Shared = State<Arc<Platform>>;

const NEXT_HEADER: &str = "x-next-token";

/// Where the next page of a list begins, for the client.
pub(crate) fn with_next(next: Option<PageToken>) -> HeaderMap {
    let next = next.and_then(|next| next.to_string().parse().ok());
    next.map(|next| (HeaderName::from_static(NEXT_HEADER), next)).into_iter().collect()
}

/// A sandbox that is not found is said in E2B's words.
fn found(error: ControlError, id: &SandboxId) -> Failed {
    match error {
        ControlError::NotFound { .. } => Failed::no_sandbox(id.as_str()),
        error => error.into(),
    }
}

/// What every body is. A struct alone would be read from a list, too.
type Object = serde_json::Map<String, serde_json::Value>;

fn read<T: DeserializeOwned>(body: Object) -> Result<T> {
    let body = serde_json::from_value(body.into());
    body.map_err(|error| Failed::invalid(format!("the body: {error}")))
}

/// A JSON body whose mistakes are answered like any other error.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Failed;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let Json(body) = Json::<Object>::from_request(request, state).await.map_err(|rejection| match rejection {
            // E2B's server has no 422.
            JsonRejection::JsonDataError(error) => Failed::invalid(error.body_text()),
            rejection => Failed::new(rejection.status(), rejection.body_text()),
        })?;
        read(body).map(Self)
    }
}

/// A part of the path whose mistakes are answered like any other error.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        let axum::extract::Path(path) =
            path.map_err(|rejection| Failed::new(rejection.status(), rejection.body_text()))?;
        Ok(Self(path))
    }
}

/// A query whose mistakes are answered like any other error.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let query = axum::extract::Query::from_request_parts(parts, state).await;
        let axum::extract::Query(query) =
            query.map_err(|rejection| Failed::new(rejection.status(), rejection.body_text()))?;
        Ok(Self(query))
    }
}

/// As [`Body`]; a request without one, or with `null`, means the defaults.
pub(crate) struct Optional<T>(pub(crate) T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for Optional<T> {
    type Rejection = Failed;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| Failed::new(rejection.status(), rejection.body_text()))?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        match serde_json::from_slice::<Option<Object>>(&bytes) {
            Ok(Some(body)) => read(body).map(Self),
            Ok(None) => Ok(Self(T::default())),
            Err(error) => Err(Failed::invalid(format!("the body: {error}"))),
        }
    }
}

/// Seconds to live, as a client gives them.
fn timeout(seconds: Option<i64>, default_s: u64) -> Result<Duration> {
    let wrong = || Failed::invalid(format!("the timeout must be 0 to {SANDBOX_TIMEOUT_S_MAX} seconds"));
    let seconds = seconds.map_or(Ok(default_s), |seconds| u64::try_from(seconds).map_err(|_| wrong()))?;
    if seconds > SANDBOX_TIMEOUT_S_MAX { Err(wrong()) } else { Ok(Duration::from_secs(seconds)) }
}

/// What is kept of a sandbox, or goes on, or is forked: everything, unless a request says `"memory": false`.
fn keep(memory: Option<bool>) -> Keep {
    if memory == Some(false) { Keep::Files } else { Keep::Memory }
}

/// Does something to its end, also if the client leaves meanwhile.
pub(crate) async fn finish<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let internal = |_| Failed::new(StatusCode::INTERNAL_SERVER_ERROR, "the request broke off: see the log");
    tokio::spawn(carried(work)).await.map_err(internal)?
}

#[cfg(test)]
mod tests {
    use api::e2b::{Fork, Timeout};

    use super::*;

    fn sent(body: &'static str) -> Request {
        let request = Request::post("/").header("content-type", "application/json");
        request.body(axum::body::Body::from(body)).unwrap()
    }

    #[tokio::test]
    async fn a_body_is_an_object_and_null_means_the_defaults() {
        for body in ["[1]", "[null, null]", "7", "{", "{\"timeout\": \"x\"}"] {
            assert!(Body::<Timeout>::from_request(sent(body), &()).await.is_err(), "{body}");
            assert!(Optional::<Fork>::from_request(sent(body), &()).await.is_err(), "{body}");
        }
        let Body(request) = Body::<Timeout>::from_request(sent("{\"timeout\": 7}"), &()).await.unwrap();
        assert_eq!(request.timeout, 7);
        for body in ["", "null", "{}"] {
            let Optional(request) = Optional::<Fork>::from_request(sent(body), &()).await.unwrap();
            assert_eq!(request.count, None, "{body}");
        }
    }
}
