//! Secrets of teams. Their values go in and never come out.

use api::e2b;
use axum::{
    Json,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
};
use control::{NewSecret, SecretInfo, SecretUpdate};

use super::{
    auth::Team,
    failed::Result,
    sandboxes::{Body, Query, Shared, with_next},
    templates::PageQuery,
};

/// A page, the newest first.
pub(crate) async fn list(
    State(platform): Shared,
    Team(team): Team,
    Query(query): Query<PageQuery>,
) -> Result<(HeaderMap, Json<Vec<e2b::Secret>>)> {
    let secrets = platform.control.secrets(platform.node.data_keys());
    let (found, next) = secrets.list(&team, &query.page()?).await?;
    Ok((with_next(next), Json(found.iter().map(shown).collect())))
}

pub(crate) async fn create(
    State(platform): Shared,
    Team(team): Team,
    Body(request): Body<e2b::NewSecret>,
) -> Result<(StatusCode, Json<e2b::Secret>)> {
    let e2b::NewSecret { name, value, metadata } = request;
    let new = NewSecret { name, value: value.into(), metadata: metadata.unwrap_or_default() };
    let secret = platform.control.secrets(platform.node.data_keys()).create(&team, &new).await?;
    Ok((StatusCode::CREATED, Json(shown(&secret))))
}

/// By its id or name.
pub(crate) async fn one(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
) -> Result<Json<e2b::Secret>> {
    let secret = platform.control.secrets(platform.node.data_keys()).get(&team, &id).await?;
    Ok(Json(shown(&secret)))
}

/// Sets it: by its id or name.
pub(crate) async fn update(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Body(request): Body<e2b::SecretUpdate>,
) -> Result<Json<e2b::Secret>> {
    let e2b::SecretUpdate { value, metadata } = request;
    let new = SecretUpdate { value: value.into(), metadata };
    let secret = platform.control.secrets(platform.node.data_keys()).update(&team, &id, &new).await?;
    Ok(Json(shown(&secret)))
}

/// By its id or name.
pub(crate) async fn delete(State(platform): Shared, Team(team): Team, Path(id): Path<String>) -> Result<StatusCode> {
    platform.control.secrets(platform.node.data_keys()).delete(&team, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn shown(secret: &SecretInfo) -> e2b::Secret {
    e2b::Secret {
        secret_id: secret.public_id(),
        name: secret.name.clone(),
        current_version: i64::try_from(secret.version).unwrap_or(i64::MAX),
        metadata: secret.metadata.clone(),
        created_at: secret.created.to_string(),
        updated_at: secret.updated.to_string(),
    }
}
