//! Templates, their names and tags.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One template in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// The id.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// The id of its newest build.
    #[serde(rename = "buildID")]
    pub build_id: String,
    /// CPUs of its sandboxes.
    pub cpu_count: i32,
    /// Memory of its sandboxes, in MiB.
    #[serde(rename = "memoryMB")]
    pub memory_mb: i32,
    /// Disk of its sandboxes, in MiB.
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: i32,
    /// Whether other teams may use it.
    pub public: bool,
    /// Its names.
    pub aliases: Vec<String>,
    /// Its names with their team.
    pub names: Vec<String>,
    /// When it was made, in RFC 3339.
    pub created_at: String,
    /// When it last changed, in RFC 3339.
    pub updated_at: String,
    /// Always null: keys belong to teams.
    #[schema(value_type = Option<Object>)]
    pub created_by: Option<String>,
    /// RFC 3339; null if no sandbox was started from it.
    pub last_spawned_at: Option<String>,
    /// Sandboxes that were started from it.
    pub spawn_count: i64,
    /// How often it was built.
    pub build_count: i32,
    /// The version of E2B's daemon whose behaviour its sandboxes have.
    pub envd_version: String,
    /// How far its newest build is.
    pub build_status: String,
}

/// `GET /templates/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateWithBuilds {
    /// The template.
    #[serde(flatten)]
    pub template: Template,
    /// Its builds that are kept, the newest first. Only its own team sees them.
    pub builds: Vec<TemplateBuild>,
}

/// One build of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateBuild {
    /// The id.
    #[serde(rename = "buildID")]
    pub build_id: String,
    /// How far it is.
    pub status: String,
    /// When it was asked for, in RFC 3339.
    pub created_at: String,
    /// When its status last changed, in RFC 3339.
    pub updated_at: String,
    /// When it was ready, or failed, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// CPUs of its sandboxes.
    pub cpu_count: i32,
    /// Memory of its sandboxes, in MiB.
    #[serde(rename = "memoryMB")]
    pub memory_mb: i32,
    /// Disk of its sandboxes, in MiB.
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: i32,
    /// The version of E2B's daemon whose behaviour its sandboxes have.
    pub envd_version: String,
}

/// `GET /templates/aliases/{alias}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TemplateAliasResponse)]
pub struct TemplateAlias {
    /// The id.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Whether other teams may use it.
    pub public: bool,
}

/// `POST /templates/tags`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = AssignTemplateTagsRequest)]
pub struct AssignTags {
    /// `NAME:TAG` of the build that gets them.
    #[schema(pattern = r"^([a-z0-9-]+/)?[A-Za-z0-9][A-Za-z0-9._-]*(:[A-Za-z0-9][A-Za-z0-9._-]*)?$")]
    pub target: String,
    /// The tags.
    pub tags: Vec<String>,
}

/// Tags were assigned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = AssignedTemplateTags)]
pub struct AssignedTags {
    /// The tags.
    pub tags: Vec<String>,
    /// The build that has them.
    #[serde(rename = "buildID")]
    pub build_id: String,
}

/// `DELETE /templates/tags`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = DeleteTemplateTagsRequest)]
pub struct DeleteTags {
    /// Of the template.
    #[schema(pattern = r"^([a-z0-9-]+/)?[A-Za-z0-9][A-Za-z0-9._-]*(:[A-Za-z0-9][A-Za-z0-9._-]*)?$")]
    pub name: String,
    /// The tags.
    pub tags: Vec<String>,
}

/// One tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateTag {
    /// Its name.
    pub tag: String,
    /// The build that has it.
    #[serde(rename = "buildID")]
    pub build_id: String,
    /// When it was made, in RFC 3339.
    pub created_at: String,
}
