//! Secrets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is known of a secret. Its value is never shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Secret {
    /// `sec_` and a UUID.
    #[serde(rename = "secretID")]
    pub secret_id: String,
    /// The team's name for it.
    pub name: String,
    /// How often it was set.
    pub current_version: i64,
    /// What the team keeps with it.
    pub metadata: BTreeMap<String, String>,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339.
    pub updated_at: String,
}

/// A secret to make.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewSecret {
    /// The team's name for it.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What the team keeps with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
}

/// A new value of a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretUpdate {
    /// The value.
    pub value: String,
    /// Replaces the metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
}
