//! What sandboxes use, and what happened to them.

use std::collections::{BTreeMap, BTreeSet};

use api::e2b;
use axum::{Json, extract::State};
use control::{Event, EventKind};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Path, Query, Shared, found, wanted::Wanted};
use crate::e2b::{
    auth::Team,
    failed::{Failed, Result},
    openapi::NoSandbox,
    platform::{Platform, sandbox_id},
};

/// Most sandboxes of one request for metrics.
const METRICS_MAX: usize = 100;

/// Whose metrics are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Ids {
    /// Ids of sandboxes.
    #[param(value_type = Vec<String>, style = Form, explode = false, max_items = 100)]
    sandbox_ids: String,
}

/// The span of time.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Span {
    /// From when on, in seconds since 1970.
    start: Option<i64>,
    /// Until when, in seconds since 1970.
    end: Option<i64>,
}

/// Measures a sandbox: the values of the last hour, and those of now.
#[utoipa::path(
    get,
    path = "/sandboxes/{id}/metrics",
    operation_id = "getSandboxMetrics",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox"), Span),
    responses((status = 200, description = "What it uses, the oldest value first", body = Vec<e2b::Metric>), NoSandbox),
)]
pub(crate) async fn metrics(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Query(Span { start, end }): Query<Span>,
) -> Result<Json<Vec<e2b::Metric>>> {
    let id = sandbox_id(&id)?;
    let sandbox = platform.control.sandboxes().get(&team, &id).await.map_err(|error| found(error, &id))?;
    let span = start.unwrap_or(i64::MIN)..=end.unwrap_or(i64::MAX);
    if span.contains(&platform.now_s()) {
        platform.measure(&sandbox).await;
    }
    Ok(Json(platform.history.of(&id, span)))
}

/// Measures several sandboxes; those that do not run are left out.
#[utoipa::path(
    get,
    path = "/sandboxes/metrics",
    operation_id = "getSandboxesMetrics",
    tag = "sandboxes",
    params(Ids),
    responses((status = 200, description = "What each uses now", body = e2b::MetricsOf)),
)]
pub(crate) async fn metrics_of(
    State(platform): Shared,
    Team(team): Team,
    Query(Ids { sandbox_ids }): Query<Ids>,
) -> Result<Json<e2b::MetricsOf>> {
    let ids: BTreeSet<&str> = ids(&sandbox_ids)?.into_iter().collect();
    let measured = ids.into_iter().map(async |id| {
        let found = platform.control.sandboxes().get(&team, &sandbox_id(id).ok()?).await.ok()?;
        Some((id.to_owned(), platform.measure(&found).await?))
    });
    // Each takes a tenth of a second: side by side.
    let measured = futures::future::join_all(measured).await;
    Ok(Json(e2b::MetricsOf { sandboxes: measured.into_iter().flatten().collect::<BTreeMap<_, _>>() }))
}

/// Which part of a log is wanted.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogsQuery {
    /// From when on, in milliseconds since 1970.
    start: Option<u64>,
    /// Most lines.
    #[param(minimum = 0, maximum = 1000)]
    limit: Option<usize>,
}

/// Reads what happened to a sandbox, as text and with fields.
#[utoipa::path(
    get,
    path = "/sandboxes/{id}/logs",
    operation_id = "getSandboxLogsV1",
    tag = "sandboxes",
    params(
        ("id" = String, Path, description = "The sandbox"),
        LogsQuery),
    responses((status = 200, description = "Its log", body = e2b::Logs), NoSandbox),
)]
pub(crate) async fn logs(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Query(LogsQuery { start, limit }): Query<LogsQuery>,
) -> Result<Json<e2b::Logs>> {
    let wanted = Wanted { cursor: start, limit, ..Wanted::default() };
    let log_entries = platform.entries(&team, &id, &wanted).await?;
    let line = |entry: &e2b::LogEntry| e2b::LogLine {
        timestamp: entry.timestamp.clone(),
        line: serde_json::to_string(entry).unwrap_or_default(),
    };
    Ok(Json(e2b::Logs { logs: log_entries.iter().map(line).collect(), log_entries }))
}

/// Reads what happened to a sandbox.
#[utoipa::path(
    get,
    path = "/v2/sandboxes/{id}/logs",
    operation_id = "getSandboxLogs",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox"), Wanted),
    responses((status = 200, description = "Its log", body = e2b::LogsV2), NoSandbox),
)]
pub(crate) async fn logs_v2(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<e2b::LogsV2>> {
    Ok(Json(e2b::LogsV2 { logs: platform.entries(&team, &id, &wanted).await? }))
}

/// Ids with a comma between them.
fn ids(text: &str) -> Result<Vec<&str>> {
    if text.split(',').count() > METRICS_MAX {
        return Err(Failed::invalid(format!("sandbox_ids: at most {METRICS_MAX}")));
    }
    Ok(text.split(',').filter(|id| !id.is_empty()).collect())
}

impl Platform {
    async fn entries(&self, team: &base::id::TeamId, id: &str, wanted: &Wanted) -> Result<Vec<e2b::LogEntry>> {
        let id = sandbox_id(id)?;
        wanted.check()?;
        let events = self.control.sandboxes().events(team, &id, 0).await?;
        if events.is_empty() {
            return Err(Failed::no_sandbox(id.as_str()));
        }
        Ok(wanted.of(events.iter().map(|event| (event.at.ms(), entry(event))).collect()))
    }
}

fn entry(event: &Event) -> e2b::LogEntry {
    let level = match event.kind {
        EventKind::PauseRefused | EventKind::KillRefused => e2b::LogLevel::Warn,
        EventKind::Created | EventKind::TimeoutSet | EventKind::Paused | EventKind::Resumed | EventKind::Killed => {
            e2b::LogLevel::Info
        }
    };
    let detail = Some(&event.detail).filter(|detail| !detail.is_empty());
    e2b::LogEntry {
        timestamp: event.at.to_string(),
        message: format!("sandbox {}", event.kind.as_str()),
        level,
        fields: detail.map(|detail| ("detail".to_owned(), detail.clone())).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_ids_count_as_ids() {
        assert_eq!(ids("a,,b").unwrap(), ["a", "b"]);
        assert!(ids("").unwrap().is_empty());
        assert!(ids(&",".repeat(METRICS_MAX - 1)).is_ok() && ids(&",".repeat(METRICS_MAX)).is_err());
    }
}
