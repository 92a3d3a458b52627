//! Volumes: durable workspaces.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
pub struct NewVolume {
    /// Unique for the team.
    pub name: String,
}

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its id.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// Its name.
    pub name: String,
}

/// One volume, and what its files are read and written with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeAndToken {
    /// Its id.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// Its name.
    pub name: String,
    /// For its files.
    pub token: String,
    /// Below which its files are served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}
