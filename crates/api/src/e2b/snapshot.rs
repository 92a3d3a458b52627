//! Snapshots: templates made of sandboxes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /sandboxes/{id}/snapshots`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = SandboxSnapshotRequest)]
pub struct Snapshot {
    /// A name for it, with an optional `:tag`.
    #[schema(pattern = r"^([a-z0-9-]+/)?[A-Za-z0-9][A-Za-z0-9._-]*(:[A-Za-z0-9][A-Za-z0-9._-]*)?$")]
    pub name: Option<String>,
    /// False: only files are kept.
    pub memory: Option<bool>,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotInfo {
    /// Sandboxes are created from it like from a template.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    /// Its names.
    pub names: Vec<String>,
}
