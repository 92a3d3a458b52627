//! How the control plane answers a request that fails.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every answer from 400 on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Error)]
pub struct Error {
    /// The HTTP status.
    pub code: i32,
    /// What failed and why, for people.
    pub message: String,
    /// For programs, where the status alone does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}
