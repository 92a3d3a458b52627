//! What sandboxes use and what happened to them, and their network policy.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use api::e2b;
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use control::{Event, EventKind, Sandbox, Time};
use serde::Deserialize;

use super::{Body, Query, Shared, found};
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

/// The present values: earlier ones are not kept.
pub(crate) async fn metrics(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
) -> Result<Json<Vec<e2b::Metric>>> {
    let id = sandbox_id(&id)?;
    let sandbox = platform.control.sandboxes().get(&team, &id).await.map_err(|error| found(error, &id))?;
    Ok(Json(platform.measure(&sandbox).await.into_iter().collect()))
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

impl Platform {
    /// None if it does not run.
    pub(crate) async fn measure(&self, sandbox: &Sandbox) -> Option<e2b::Metric> {
        let usage = self.node.usage(&sandbox.id).await.ok()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let bytes = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        Some(e2b::Metric {
            timestamp: Time::from_ms(now.as_millis() as u64).to_string(),
            timestamp_unix: bytes(now.as_secs()),
            cpu_count: i32::try_from(sandbox.spec.size.cpus).unwrap_or(i32::MAX),
            cpu_used_pct: usage.cpu_percent,
            mem_used: bytes(usage.memory_bytes),
            mem_total: bytes(sandbox.spec.size.memory_mb << 20),
            mem_cache: 0,
            disk_used: bytes(usage.disk_used_bytes),
            disk_total: bytes(usage.disk_total_bytes),
        })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LogsQuery {
    direction: Option<String>,
    limit: Option<usize>,
}

/// What happened to the sandbox, as lines.
pub(crate) async fn logs(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Query(query): Query<LogsQuery>,
) -> Result<Json<e2b::Logs>> {
    let log_entries = platform.entries(&team, &id, &query).await?;
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
    Query(query): Query<LogsQuery>,
) -> Result<Json<e2b::LogsV2>> {
    Ok(Json(e2b::LogsV2 { logs: platform.entries(&team, &id, &query).await? }))
}

impl Platform {
    async fn entries(&self, team: &base::id::TeamId, id: &str, query: &LogsQuery) -> Result<Vec<e2b::LogEntry>> {
        let id = sandbox_id(id)?;
        let events = self.control.sandboxes().events(team, &id, 0).await?;
        if events.is_empty() {
            return Err(Failed::no_sandbox(id.as_str()));
        }
        let mut entries: Vec<_> = events.iter().map(entry).collect();
        if query.direction.as_deref() == Some("backward") {
            entries.reverse();
        }
        entries.truncate(query.limit.unwrap_or(usize::MAX));
        Ok(entries)
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

/// Notes the policy. Sandboxes have no network to apply it to yet.
pub(crate) async fn network(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Body(request): Body<e2b::NetworkUpdate>,
) -> Result<StatusCode> {
    let id = sandbox_id(&id)?;
    let sandbox = platform.control.sandboxes().get(&team, &id).await.map_err(|error| found(error, &id))?;
    let allow = request.allow_internet_access.unwrap_or(sandbox.spec.allow_internet);
    let mut policy = serde_json::to_value(&request).map_err(|error| Failed::invalid(error.to_string()))?;
    if let (Some(policy), Some(serde_json::Value::Object(old))) = (policy.as_object_mut(), &sandbox.spec.network) {
        policy.remove("allow_internet_access");
        // These are of its creation, and stay.
        for key in ["allowPublicTraffic", "maskRequestHost", "httpsPorts"] {
            if let Some(value) = old.get(key) {
                policy.insert(key.to_owned(), value.clone());
            }
        }
    }
    let noted = platform.control.sandboxes().set_network(&team, &id, Some(&policy), allow).await;
    noted.map_err(|error| found(error, &id))?;
    Ok(StatusCode::NO_CONTENT)
}
