//! Secrets of teams. Their values go in and never come out.

use api::e2b;
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use control::{NewSecret, SecretInfo, SecretUpdate};

use super::{
    auth::Team,
    failed::Result,
    openapi::{Conflict, NoSecret, OverQuota},
    sandboxes::{Body, Path, Query, Shared, with_next},
    templates::PageQuery,
};

/// Lists the secrets of the team, the newest first. Values are never shown.
#[utoipa::path(
    get,
    path = "/secrets",
    operation_id = "listSecrets",
    tag = "secrets",
    params(PageQuery),
    responses((status = 200, description = "One page", body = Vec<e2b::Secret>, headers(("x-next-token" = String, description = "Where the next page begins; absent on the last page")))),
)]
pub(crate) async fn list(
    State(platform): Shared,
    Team(team): Team,
    Query(query): Query<PageQuery>,
) -> Result<(HeaderMap, Json<Vec<e2b::Secret>>)> {
    let secrets = platform.control.secrets(platform.node.data_keys());
    let (found, next) = secrets.list(&team, &query.page()?).await?;
    Ok((with_next(next), Json(found.iter().map(shown).collect())))
}

/// Stores a secret.
#[utoipa::path(
    post,
    path = "/secrets",
    operation_id = "createSecret",
    tag = "secrets",
    request_body = e2b::NewSecret,
    responses((status = 201, description = "It is stored", body = e2b::Secret), Conflict, OverQuota),
)]
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

/// Describes a secret, without its value.
#[utoipa::path(
    get,
    path = "/secrets/{id}",
    operation_id = "getSecret",
    tag = "secrets",
    params(("id" = String, Path, description = "Id or name of a secret")),
    responses((status = 200, description = "The secret", body = e2b::Secret), NoSecret),
)]
pub(crate) async fn one(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
) -> Result<Json<e2b::Secret>> {
    let secret = platform.control.secrets(platform.node.data_keys()).get(&team, &id).await?;
    Ok(Json(shown(&secret)))
}

/// Gives a secret another value.
#[utoipa::path(
    post,
    path = "/secrets/{id}",
    operation_id = "updateSecret",
    tag = "secrets",
    params(("id" = String, Path, description = "Id or name of a secret")),
    request_body = e2b::SecretUpdate,
    responses((status = 200, description = "The secret", body = e2b::Secret), NoSecret, Conflict),
)]
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

/// Deletes a secret.
#[utoipa::path(
    delete,
    path = "/secrets/{id}",
    operation_id = "deleteSecret",
    tag = "secrets",
    params(("id" = String, Path, description = "Id or name of a secret")),
    responses((status = 204, description = "It is gone"), NoSecret),
)]
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
