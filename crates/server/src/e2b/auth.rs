//! Who sends a request to the control plane.

use std::sync::Arc;

use axum::{
    extract::FromRequestParts,
    http::{Method, StatusCode, header::AUTHORIZATION, request::Parts},
};
use base::id::TeamId;
use control::Caller;

use super::{failed::Failed, platform::Platform};

/// The header of API keys.
const KEY_HEADER: &str = "x-api-key";

/// Who sends a request, with what the key may do.
#[derive(Debug, Clone)]
pub(crate) struct Asking(pub(crate) Caller);

impl FromRequestParts<Arc<Platform>> for Asking {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, platform: &Arc<Platform>) -> Result<Self, Failed> {
        let key = key_of(parts).ok_or_else(|| {
            Failed::new(StatusCode::UNAUTHORIZED, "no API key: set E2B_API_KEY, `pando key create` makes one")
        })?;
        Ok(Self(platform.control.keys().authenticate(key).await?))
    }
}

/// The team whose key came with a request. The key may do what the method asks for.
#[derive(Debug, Clone)]
pub(crate) struct Team(pub(crate) TeamId);

impl FromRequestParts<Arc<Platform>> for Team {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, platform: &Arc<Platform>) -> Result<Self, Failed> {
        let Asking(caller) = Asking::from_request_parts(parts, platform).await?;
        if parts.method != Method::GET && parts.method != Method::HEAD {
            caller.may_write()?;
        }
        Ok(Self(caller.team))
    }
}

fn key_of(parts: &Parts) -> Option<&str> {
    let text = |name: &str| parts.headers.get(name)?.to_str().ok();
    text(KEY_HEADER).or_else(|| text(AUTHORIZATION.as_str())?.strip_prefix("Bearer "))
}
