//! Lists of sandboxes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{State, VolumeMount};

/// One sandbox in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListedSandbox {
    /// The template or snapshot that it was created from.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// The id.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// Always the same. E2B's clients expect it.
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// A name of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// When it started, in RFC 3339.
    pub started_at: String,
    /// When its time is up, in RFC 3339.
    pub end_at: String,
    /// CPUs.
    pub cpu_count: i32,
    /// Memory, in MiB.
    #[serde(rename = "memoryMB")]
    pub memory_mb: i32,
    /// Disk, in MiB.
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: i32,
    /// Labels: lists can be filtered by them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Running or paused.
    pub state: State,
    /// The version of E2B's daemon whose behaviour the sandbox has.
    pub envd_version: String,
    /// Volumes and where they are mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mounts: Option<Vec<VolumeMount>>,
}

/// In which order a list is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = OrderDirection)]
pub enum Order {
    /// The oldest first.
    Asc,
    /// The newest first.
    #[default]
    Desc,
}

/// Which sandboxes are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// URL-encoded pairs that all must be there: `a=b&c=d`.
    pub metadata: Option<String>,
    /// `running`, `paused`, or both with a comma.
    #[param(value_type = Option<Vec<State>>, style = Form, explode = false)]
    pub state: Option<String>,
    /// By the time of the start.
    pub order: Option<Order>,
    /// RFC 3339: only those started later.
    #[param(format = DateTime)]
    pub started_after: Option<String>,
    /// Id or name of their template.
    pub template: Option<String>,
    /// Where an earlier page ended.
    pub next_token: Option<String>,
    /// Most of one page, 1 to 100.
    #[param(minimum = 1, maximum = 100)]
    pub limit: Option<u32>,
}
