//! What sandboxes use, and what happened to them.

use std::collections::BTreeMap;

use api::e2b;
use axum::{
    Json,
    extract::{Path, State},
};
use control::{Event, EventKind};
use serde::Deserialize;

use super::{Query, Shared, found, wanted::Wanted};
use crate::e2b::{
    auth::Team,
    failed::{Failed, Result},
    platform::{Platform, sandbox_id},
};

/// Most sandboxes of one request for metrics.
const METRICS_MAX: usize = 100;

#[derive(Debug, Deserialize)]
pub(crate) struct Ids {
    sandbox_ids: String,
}

/// Of which time, in seconds since 1970.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Span {
    start: Option<i64>,
    end: Option<i64>,
}

/// The values of the last hour, and those of now.
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

pub(crate) async fn metrics_of(
    State(platform): Shared,
    Team(team): Team,
    Query(Ids { sandbox_ids }): Query<Ids>,
) -> Result<Json<e2b::MetricsOf>> {
    let ids: Vec<&str> = sandbox_ids.split(',').filter(|id| !id.is_empty()).collect();
    if ids.len() > METRICS_MAX {
        return Err(Failed::invalid(format!("sandbox_ids: at most {METRICS_MAX}")));
    }
    let measured = ids.into_iter().map(async |id| {
        let found = platform.control.sandboxes().get(&team, &sandbox_id(id).ok()?).await.ok()?;
        Some((id.to_owned(), platform.measure(&found).await?))
    });
    // Each takes a tenth of a second: side by side.
    let measured = futures::future::join_all(measured).await;
    Ok(Json(e2b::MetricsOf { sandboxes: measured.into_iter().flatten().collect::<BTreeMap<_, _>>() }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LogsQuery {
    start: Option<u64>,
    limit: Option<usize>,
}

/// What happened to the sandbox, as lines.
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

pub(crate) async fn logs_v2(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<e2b::LogsV2>> {
    Ok(Json(e2b::LogsV2 { logs: platform.entries(&team, &id, &wanted).await? }))
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
