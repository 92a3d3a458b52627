//! Templates, their names and tags.

pub(crate) mod builds;
mod built;
pub(crate) mod snapshots;

use std::sync::Arc;

use api::e2b;
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use base::{
    id::{TeamId, TemplateName},
    limits::{DISK_BYTES_DEFAULT, PAGE_MAX},
};
use control::{Build, BuildStatus, ControlError, Page, Resolved, Size, Template, TemplateRef};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    auth::Team,
    failed::{Failed, Result},
    openapi::{Conflict, NoTemplate, OverQuota},
    platform::Platform,
    sandboxes::{Body, Path, Query, Shared, finish, with_next},
};

/// One page, and where the next one begins.
type Listed = (HeaderMap, Json<Vec<e2b::Template>>);

impl Platform {
    /// The template that a request for a sandbox names, and its name on the node.
    pub(crate) async fn resolve(self: &Arc<Self>, team: &TeamId, name: &str) -> Result<(Resolved, TemplateName)> {
        let shown: String = name.chars().take(80).collect();
        let missing = || Failed::new(StatusCode::NOT_FOUND, format!("template '{shown}' not found"));
        let wanted: TemplateRef = name.parse().map_err(|_| missing())?;
        let resolved = match self.control.templates().resolve(team, &wanted).await {
            // It may have been built a moment ago.
            Err(ControlError::NotFound { .. }) if self.note_named(&wanted).await? => {
                self.control.templates().resolve(team, &wanted).await?
            }
            Err(ControlError::NotFound { .. }) => return Err(missing()),
            resolved => resolved?,
        };
        let source = resolved.build.source.parse().map_err(|_| missing())?;
        Ok((resolved, source))
    }
}

/// What a sandbox may use, in the units of the control plane.
pub(crate) fn size(limits: &model::Limits) -> Size {
    let all = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    Size {
        cpus: limits.cpu_millis.map_or(all, |millis| u64::from(millis).div_ceil(1000)),
        memory_mb: limits.memory_bytes >> 20,
        disk_mb: limits.disk_bytes.unwrap_or(DISK_BYTES_DEFAULT) >> 20,
    }
}

/// What [`size`] was made of, as near as it tells.
pub(crate) fn limits(size: &Size) -> model::Limits {
    let all = self::size(&model::Limits::default()).cpus;
    let millis = u32::try_from(size.cpus.saturating_mul(1000)).ok();
    model::Limits {
        memory_bytes: size.memory_mb << 20,
        cpu_millis: millis.filter(|_| size.cpus != all),
        disk_bytes: Some(size.disk_mb << 20).filter(|bytes| *bytes != DISK_BYTES_DEFAULT),
        ..model::Limits::default()
    }
}

/// A page of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// The `x-next-token` of the page before.
    next_token: Option<String>,
    /// Most items of one page.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
}

impl PageQuery {
    pub(crate) fn page(&self) -> Result<Page> {
        page(self.next_token.as_deref(), self.limit)
    }
}

/// The part of a list that a query asks for.
pub(crate) fn page(next_token: Option<&str>, limit: Option<u32>) -> Result<Page> {
    let after = next_token.filter(|token| !token.is_empty()).map(str::parse).transpose()?;
    let limit = limit.map_or(PAGE_MAX, |limit| limit as usize);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Failed::invalid(format!("limit must be 1 to {PAGE_MAX}")));
    }
    Ok(Page { limit, after })
}

/// Lists the templates of the team; `GET /v2/templates` is the same.
#[utoipa::path(
    get,
    path = "/templates",
    operation_id = "listTemplatesV1",
    tag = "templates",
    params(PageQuery),
    responses((status = 200, description = "One page", body = Vec<e2b::Template>, headers(("x-next-token" = String, description = "Where the next page begins; absent on the last page")))),
)]
#[deprecated]
pub(crate) async fn list_v1(platform: Shared, team: Team, query: Query<PageQuery>) -> Result<Listed> {
    list(platform, team, query).await
}

/// Lists the templates of the team.
#[utoipa::path(
    get,
    path = "/v2/templates",
    operation_id = "listTemplates",
    tag = "templates",
    params(PageQuery),
    responses((status = 200, description = "One page", body = Vec<e2b::Template>, headers(("x-next-token" = String, description = "Where the next page begins; absent on the last page")))),
)]
pub(crate) async fn list(State(platform): Shared, Team(team): Team, Query(query): Query<PageQuery>) -> Result<Listed> {
    let (found, next) = platform.control.templates().list(&team, &query.page()?).await?;
    Ok((with_next(next), Json(found.iter().filter_map(template).collect())))
}

/// Describes a template, with its builds.
#[utoipa::path(
    get,
    path = "/templates/{id}",
    operation_id = "getTemplate",
    tag = "templates",
    params(("id" = String, Path, description = "Id or name of a template")),
    responses((status = 200, description = "The template", body = e2b::TemplateWithBuilds), NoTemplate),
)]
pub(crate) async fn one(
    State(platform): Shared,
    Team(team): Team,
    Path(name): Path<String>,
) -> Result<Json<e2b::TemplateWithBuilds>> {
    let found = platform.control.templates().get(&team, &name.parse()?).await?;
    let missing = || Failed::new(StatusCode::NOT_FOUND, format!("template '{name}' has no build yet"));
    let shown = template(&found).ok_or_else(missing)?;
    let builds = match found.team == team {
        true => platform.control.templates().builds(&team, &found.id).await?,
        false => Vec::new(),
    };
    Ok(Json(e2b::TemplateWithBuilds { template: shown, builds: builds.iter().map(build).collect() }))
}

/// Finds a template by its name.
#[utoipa::path(
    get,
    path = "/templates/aliases/{alias}",
    operation_id = "getTemplateAlias",
    tag = "templates",
    params(("alias" = String, Path, description = "The name")),
    responses((status = 200, description = "The template", body = e2b::TemplateAlias), NoTemplate),
)]
pub(crate) async fn alias(
    State(platform): Shared,
    Team(team): Team,
    Path(name): Path<String>,
) -> Result<Json<e2b::TemplateAlias>> {
    let found = platform.control.templates().get(&team, &name.parse()?).await?;
    Ok(Json(e2b::TemplateAlias { template_id: found.id.to_string(), public: found.public }))
}

/// Deletes a template or a snapshot.
#[utoipa::path(
    delete,
    path = "/templates/{id}",
    operation_id = "deleteTemplate",
    tag = "templates",
    params(("id" = String, Path, description = "Id or name of a template")),
    responses((status = 204, description = "It is gone"), NoTemplate, Conflict),
)]
pub(crate) async fn delete(State(platform): Shared, Team(team): Team, Path(name): Path<String>) -> Result<StatusCode> {
    let named: TemplateRef = name.parse()?;
    finish(async move {
        let removed = match platform.control.templates().delete(&team, &named).await {
            // SDKs take 404 for "it is not there", and so it is for this team.
            Err(ControlError::ForeignTemplate { name }) => {
                return Err(Failed::new(StatusCode::NOT_FOUND, format!("template '{name}' not found")));
            }
            removed => removed?,
        };
        platform.jobs.cancel(&removed);
        platform.remove_sources(removed).await;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Lists the tags of a template.
#[utoipa::path(
    get,
    path = "/templates/{id}/tags",
    operation_id = "listTemplateTags",
    tag = "templates",
    params(("id" = String, Path, description = "Id or name of a template")),
    responses((status = 200, description = "Its tags", body = Vec<e2b::TemplateTag>), NoTemplate),
)]
pub(crate) async fn tags(
    State(platform): Shared,
    Team(team): Team,
    Path(name): Path<String>,
) -> Result<Json<Vec<e2b::TemplateTag>>> {
    let tags = platform.control.templates().tags(&team, &name.parse()?).await?;
    let tag = |tag: control::Tag| e2b::TemplateTag {
        tag: tag.tag,
        build_id: tag.build.to_string(),
        created_at: tag.assigned.to_string(),
    };
    Ok(Json(tags.into_iter().map(tag).collect()))
}

/// Gives a build of a template more tags.
#[utoipa::path(
    post,
    path = "/templates/tags",
    operation_id = "assignTemplateTags",
    tag = "templates",
    request_body = e2b::AssignTags,
    responses((status = 201, description = "The build has the tags", body = e2b::AssignedTags), NoTemplate, Conflict, OverQuota),
)]
pub(crate) async fn assign_tags(
    State(platform): Shared,
    Team(team): Team,
    Body(request): Body<e2b::AssignTags>,
) -> Result<(StatusCode, Json<e2b::AssignedTags>)> {
    let build = platform.control.templates().assign_tags(&team, &request.target.parse()?, &request.tags).await?;
    let assigned = e2b::AssignedTags { tags: request.tags, build_id: build.to_string() };
    Ok((StatusCode::CREATED, Json(assigned)))
}

/// Removes tags of a template.
#[utoipa::path(
    delete,
    path = "/templates/tags",
    operation_id = "removeTemplateTags",
    tag = "templates",
    request_body = e2b::DeleteTags,
    responses((status = 204, description = "The tags are gone"), NoTemplate, Conflict),
)]
pub(crate) async fn remove_tags(
    State(platform): Shared,
    Team(team): Team,
    Body(request): Body<e2b::DeleteTags>,
) -> Result<StatusCode> {
    platform.control.templates().remove_tags(&team, &request.name.parse()?, &request.tags).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// As the wire has numbers.
fn count(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn build(found: &Build) -> e2b::TemplateBuild {
    let is_done = matches!(found.status, BuildStatus::Ready | BuildStatus::Error);
    e2b::TemplateBuild {
        build_id: found.id.to_string(),
        status: found.status.as_str().to_owned(),
        created_at: found.created.to_string(),
        updated_at: found.updated.to_string(),
        finished_at: is_done.then(|| found.updated.to_string()),
        cpu_count: count(found.size.cpus),
        memory_mb: count(found.size.memory_mb),
        disk_size_mb: count(found.size.disk_mb),
        envd_version: envd::VERSION.to_owned(),
    }
}

fn template(found: &Template) -> Option<e2b::Template> {
    let build = found.build.as_ref()?;
    Some(e2b::Template {
        template_id: found.id.to_string(),
        build_id: build.id.to_string(),
        cpu_count: count(build.size.cpus),
        memory_mb: count(build.size.memory_mb),
        disk_size_mb: count(build.size.disk_mb),
        public: found.public,
        aliases: found.names.clone(),
        names: found.names.iter().map(|name| format!("{}/{name}", found.slug)).collect(),
        created_at: found.created.to_string(),
        updated_at: found.updated.to_string(),
        created_by: None,
        last_spawned_at: found.spawned.map(|at| at.to_string()),
        spawn_count: i64::try_from(found.spawn_count).unwrap_or(i64::MAX),
        build_count: count(found.build_count),
        envd_version: envd::VERSION.to_owned(),
        build_status: build.status.as_str().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_one_to_a_hundred_items() {
        assert_eq!(page(Some(""), None).unwrap().limit, PAGE_MAX);
        assert!(page(None, Some(1)).is_ok() && page(None, Some(100)).is_ok());
        assert!(page(None, Some(0)).is_err() && page(None, Some(101)).is_err() && page(Some("x"), None).is_err());
    }
}
