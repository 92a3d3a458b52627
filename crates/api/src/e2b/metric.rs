//! Metrics and logs of sandboxes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a sandbox used at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxMetric)]
pub struct Metric {
    /// RFC 3339.
    pub timestamp: String,
    /// Seconds since 1970.
    pub timestamp_unix: i64,
    /// CPUs.
    pub cpu_count: i32,
    /// CPU time, in percent of one CPU.
    pub cpu_used_pct: f32,
    /// Memory in use, in bytes.
    pub mem_used: i64,
    /// Memory that it may use, in bytes.
    pub mem_total: i64,
    /// Memory of the page cache, in bytes; always 0.
    pub mem_cache: i64,
    /// Disk in use, in bytes.
    pub disk_used: i64,
    /// Disk in all, in bytes.
    pub disk_total: i64,
}

/// `GET /sandboxes/metrics`: the newest of each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = SandboxesWithMetrics)]
pub struct MetricsOf {
    /// By id.
    pub sandboxes: BTreeMap<String, Metric>,
}

/// `GET /sandboxes/{id}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxLogs)]
pub struct Logs {
    /// As text.
    pub logs: Vec<LogLine>,
    /// With fields.
    pub log_entries: Vec<LogEntry>,
}

/// `GET /v2/sandboxes/{id}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = SandboxLogsV2Response)]
pub struct LogsV2 {
    /// In the order that was asked for.
    pub logs: Vec<LogEntry>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = SandboxLog)]
pub struct LogLine {
    /// RFC 3339.
    pub timestamp: String,
    /// As JSON.
    pub line: String,
}

/// How important a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For those who look for a fault.
    Debug,
    /// What happened.
    Info,
    /// A person should look at it.
    Warn,
    /// What failed.
    Error,
}

/// One line with its fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = SandboxLogEntry)]
pub struct LogEntry {
    /// RFC 3339.
    pub timestamp: String,
    /// What happened.
    pub message: String,
    /// How important it is.
    pub level: LogLevel,
    /// What else is known.
    pub fields: BTreeMap<String, String>,
}
