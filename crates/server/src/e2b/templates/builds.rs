//! Builds of templates, as the builders of E2B's SDKs drive them.
//!
//! ```text
//! ask (waiting) ─► files: present? else PUT ─► start (building) ─► status ... ─► ready | error
//! ```

mod files;
mod jobs;
mod steps;
mod turns;

use std::sync::Arc;

use api::e2b;
use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
};
use base::{
    id::{BuildId, TeamId, TemplateId},
    limits::{CPU_MILLIS_MAX, DISK_BYTES_DEFAULT, DISK_BYTES_MAX, MEMORY_BYTES_MAX},
};
use control::{Build, BuildStatus, Noun, TemplateRef};
use gateway::serve::Origin;
use model::Limits;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use self::jobs::FailedAt;
pub(crate) use self::jobs::Jobs;
use super::size;
use crate::e2b::{
    auth::Team,
    failed::{Failed, Result},
    openapi::{Conflict, NoTemplate, OverQuota},
    platform::Platform,
    sandboxes::{Body, Path, Query, Shared, finish},
};

/// Least memory of a sandbox, in MiB: what E2B's has.
const MEMORY_MB_MIN: u32 = 128;
/// Most log entries of one answer: clients ask again until they get none.
const ENTRIES_MAX: usize = 100;

pub(crate) fn routes() -> OpenApiRouter<Arc<Platform>> {
    OpenApiRouter::new()
        .routes(routes!(ask))
        .routes(routes!(start))
        .routes(routes!(status))
        .routes(routes!(logs))
        .routes(routes!(upload_link, upload))
}

/// Asks for a build. The template is made if there is none of that name.
#[utoipa::path(
    post,
    path = "/v3/templates",
    operation_id = "requestTemplateBuild",
    tag = "templates",
    request_body = e2b::NewBuild,
    responses((status = 202, description = "It can be started", body = e2b::AskedBuild), Conflict, OverQuota),
)]
async fn ask(
    State(platform): Shared,
    Team(team): Team,
    Body(request): Body<e2b::NewBuild>,
) -> Result<(StatusCode, Json<e2b::AskedBuild>)> {
    let name = request.name.as_ref().or(request.alias.as_ref()).filter(|name| !name.is_empty());
    let name: TemplateRef = name.ok_or_else(|| Failed::invalid("the template needs a name"))?.parse()?;
    let tags = request.tags.clone().unwrap_or_default();
    let limits = limits(&request)?;
    let asked = platform.control.templates().request_build(&team, &name, &tags, size(&limits)).await?;
    if !asked.dropped.is_empty() {
        let (platform, dropped) = (Arc::clone(&platform), asked.dropped);
        tokio::spawn(async move { platform.remove_sources(dropped).await });
    }
    let template = asked.template;
    let answer = e2b::AskedBuild {
        template_id: template.id.to_string(),
        build_id: asked.build.id.to_string(),
        public: template.public,
        names: template.names.iter().map(|name| format!("{}/{name}", template.slug)).collect(),
        tags: asked.tags,
        aliases: template.names,
    };
    Ok((StatusCode::ACCEPTED, Json(answer)))
}

fn limits(request: &e2b::NewBuild) -> Result<Limits> {
    let mut limits = Limits::default();
    if let Some(cpus) = request.cpu_count {
        let millis = cpus.checked_mul(1000).filter(|millis| (1..=CPU_MILLIS_MAX).contains(millis));
        let wrong = || Failed::invalid(format!("cpuCount must be 1 to {}", CPU_MILLIS_MAX / 1000));
        limits.cpu_millis = Some(millis.ok_or_else(wrong)?);
    }
    if let Some(memory_mb) = request.memory_mb {
        let bytes = u64::from(memory_mb) << 20;
        if memory_mb < MEMORY_MB_MIN || bytes > MEMORY_BYTES_MAX {
            let most = MEMORY_BYTES_MAX >> 20;
            return Err(Failed::invalid(format!("memoryMB must be {MEMORY_MB_MIN} to {most}")));
        }
        limits.memory_bytes = bytes;
    }
    let disk_mb = request.min_free_disk_mb.unwrap_or(0);
    if disk_mb > DISK_BYTES_MAX >> 20 {
        return Err(Failed::invalid(format!("minFreeDiskMb must be {} at most", DISK_BYTES_MAX >> 20)));
    }
    // Each sandbox may write so much anyway.
    limits.disk_bytes = Some(disk_mb << 20).filter(|bytes| *bytes > DISK_BYTES_DEFAULT);
    Ok(limits)
}

/// Starts a build that was asked for.
#[utoipa::path(
    post,
    path = "/v2/templates/{id}/builds/{build}",
    operation_id = "startTemplateBuild",
    tag = "templates",
    params(("id" = String, Path, description = "The template"), ("build" = String, Path, description = "The build")),
    request_body = e2b::StartBuild,
    responses((status = 202, description = "It is under way"), NoTemplate, Conflict, OverQuota),
)]
async fn start(
    State(platform): Shared,
    Team(team): Team,
    Path((id, build)): Path<(String, String)>,
    Body(request): Body<e2b::StartBuild>,
) -> Result<StatusCode> {
    let build = platform.build_of(&team, &id, &build).await?;
    if build.status != BuildStatus::Waiting {
        return Err(Failed::new(StatusCode::CONFLICT, format!("build {} was started already", build.id)));
    }
    platform.jobs.check_started(&team)?;
    let asked = match platform.recipe(&team, &build, request).await {
        Ok(asked) => asked,
        Err(failed) => {
            // It would count among those of its template.
            platform.fail_build(&team, &build, &failed).await;
            return Err(failed);
        }
    };
    finish(async move {
        platform.begin_build(team, build, asked).await?;
        Ok(StatusCode::ACCEPTED)
    })
    .await
}

/// Which part of a log is wanted.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
struct StatusQuery {
    /// The first entry.
    logs_offset: Option<u64>,
    /// Most entries.
    #[param(minimum = 0, maximum = 100)]
    limit: Option<u32>,
    /// Only entries of this level, or above: `debug`, `info`, `warn`, `error`.
    level: Option<String>,
}

/// Says how far a build is, with a part of its log. Logs are kept for an hour after the end.
#[utoipa::path(
    get,
    path = "/templates/{id}/builds/{build}/status",
    operation_id = "getTemplateBuildStatus",
    tag = "templates",
    params(("id" = String, Path, description = "The template"), ("build" = String, Path, description = "The build"), StatusQuery),
    responses((status = 200, description = "How far it is", body = e2b::BuildInfo), NoTemplate),
)]
async fn status(
    State(platform): Shared,
    Team(team): Team,
    Path((id, build)): Path<(String, String)>,
    Query(query): Query<StatusQuery>,
) -> Result<Json<e2b::BuildInfo>> {
    let build = platform.build_of(&team, &id, &build).await?;
    let limit = query.limit.map_or(ENTRIES_MAX, |limit| (limit as usize).min(ENTRIES_MAX));
    let (log_entries, failed_at) = platform.jobs.log(&build.id, query.logs_offset, limit, query.level.as_deref());
    let reason = (build.status == BuildStatus::Error).then(|| {
        let FailedAt { step, last } = failed_at.unwrap_or_default();
        e2b::BuildStatusReason { message: build.reason.clone(), step, log_entries: last }
    });
    Ok(Json(e2b::BuildInfo {
        template_id: build.template.to_string(),
        build_id: build.id.to_string(),
        status: build.status.as_str().to_owned(),
        logs: Vec::new(),
        log_entries,
        reason,
    }))
}

/// Which part of a log is wanted.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
struct LogsQuery {
    /// From when on, in milliseconds since 1970.
    cursor: Option<u64>,
    /// Most entries.
    #[param(minimum = 0, maximum = 100)]
    limit: Option<u32>,
    /// `forward`, or `backward`: the newest first, from the cursor back.
    direction: Option<String>,
    /// Only entries of this level, or above: `debug`, `info`, `warn`, `error`.
    level: Option<String>,
}

/// Reads the log of a build. Logs are kept for an hour after the end.
#[utoipa::path(
    get,
    path = "/templates/{id}/builds/{build}/logs",
    operation_id = "getTemplateBuildLogs",
    tag = "templates",
    params(("id" = String, Path, description = "The template"), ("build" = String, Path, description = "The build"), LogsQuery),
    responses((status = 200, description = "Its log", body = e2b::BuildLogs), NoTemplate),
)]
async fn logs(
    State(platform): Shared,
    Team(team): Team,
    Path((id, build)): Path<(String, String)>,
    Query(query): Query<LogsQuery>,
) -> Result<Json<e2b::BuildLogs>> {
    let build = platform.build_of(&team, &id, &build).await?;
    let limit = query.limit.map_or(ENTRIES_MAX, |limit| (limit as usize).min(ENTRIES_MAX));
    let is_backward = query.direction.as_deref() == Some("backward");
    let logs = platform.jobs.entries(&build.id, query.cursor, is_backward, limit, query.level.as_deref());
    Ok(Json(e2b::BuildLogs { logs }))
}

/// Says whether the server has the files of a `COPY`, and where they can be put.
#[utoipa::path(
    get,
    path = "/templates/{id}/files/{hash}",
    operation_id = "getTemplateFiles",
    tag = "templates",
    params(("id" = String, Path, description = "The template"), ("hash" = String, Path, description = "What tells them from others: a SHA-256 in hexadecimal")),
    responses((status = 201, description = "Whether they are there", body = e2b::FileUpload), NoTemplate),
)]
async fn upload_link(
    State(platform): Shared,
    Team(team): Team,
    Path((id, hash)): Path<(String, String)>,
    origin: Option<axum::Extension<Origin>>,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<e2b::FileUpload>)> {
    let template = platform.own_template(&team, &id).await?;
    let hash = files::Hash::parse(&hash)?;
    let present = platform.jobs.files.find(&team, &hash).is_some();
    let token = platform.jobs.files.admit(&team, &hash);
    // The client has reached this server under that name.
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
    let host = host.unwrap_or_else(|| format!("api.{}", platform.domain));
    let scheme = if origin.is_some_and(|origin| origin.is_tls) { "https" } else { "http" };
    let url = format!("{scheme}://{host}/templates/{template}/files/{hash}?token={token}");
    Ok((StatusCode::CREATED, Json(e2b::FileUpload { present, url: Some(url) })))
}

/// What an upload has in its query.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct UploadQuery {
    /// Of the address that the server gave.
    token: String,
}

/// Takes the files of a `COPY`, as a tar archive. The address is its own key.
#[utoipa::path(
    put,
    path = "/templates/{id}/files/{hash}",
    operation_id = "putTemplateFiles",
    tag = "templates",
    security(),
    params(("id" = String, Path, description = "The template"), ("hash" = String, Path, description = "What tells them from others"), UploadQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, description = "They are stored"), (status = 403, description = "The address is not valid any more", body = e2b::Error), (status = 413, description = "They are too large", body = e2b::Error)),
)]
async fn upload(
    State(platform): Shared,
    Path((_, hash)): Path<(String, String)>,
    Query(query): Query<UploadQuery>,
    request: Request,
) -> Result<StatusCode> {
    let hash = files::Hash::parse(&hash)?;
    platform.jobs.files.take(&hash, &query.token, request.into_body()).await?;
    Ok(StatusCode::OK)
}

impl Platform {
    /// The id of a template of the team, which a request names by id or name.
    async fn own_template(&self, team: &TeamId, text: &str) -> Result<TemplateId> {
        let found = self.control.templates().get(team, &text.parse()?).await?;
        if found.team == *team {
            return Ok(found.id);
        }
        Err(Failed::new(StatusCode::FORBIDDEN, format!("template '{text}' belongs to another team")))
    }

    async fn build_of(&self, team: &TeamId, template: &str, build: &str) -> Result<Build> {
        let missing = || Failed::new(StatusCode::NOT_FOUND, format!("{} not found", Noun::Build));
        let template = self.own_template(team, template).await?;
        let id: BuildId = build.parse().map_err(|_| missing())?;
        Ok(self.control.templates().build(team, &template, &id).await?)
    }
}
