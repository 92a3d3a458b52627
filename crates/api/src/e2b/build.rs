//! Builds of templates.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v3/templates`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = TemplateBuildRequestV3)]
pub struct NewBuild {
    /// `NAME` or `NAME:TAG`.
    pub name: Option<String>,
    /// As `name`; older clients use it.
    pub alias: Option<String>,
    /// More tags that the build gets when it is ready.
    pub tags: Option<Vec<String>>,
    /// CPUs of its sandboxes.
    #[schema(minimum = 1)]
    pub cpu_count: Option<u32>,
    /// Memory of its sandboxes, in MiB.
    #[serde(rename = "memoryMB")]
    #[schema(minimum = 128)]
    pub memory_mb: Option<u32>,
    /// What its sandboxes may write to their disks, in MiB, at least.
    pub min_free_disk_mb: Option<u64>,
}

/// A build was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TemplateRequestResponseV3)]
pub struct AskedBuild {
    /// The template.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// The build.
    #[serde(rename = "buildID")]
    pub build_id: String,
    /// Whether other teams may use it.
    pub public: bool,
    /// Its names with their team.
    pub names: Vec<String>,
    /// The tags that the build gets.
    pub tags: Vec<String>,
    /// Its names.
    pub aliases: Vec<String>,
}

/// `POST /v2/templates/{id}/builds/{build}`. One of `fromImage` and `fromTemplate` is needed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = TemplateBuildStartV2)]
pub struct StartBuild {
    /// An image.
    pub from_image: Option<String>,
    /// A template.
    pub from_template: Option<String>,
    /// How to log in to the image's registry.
    pub from_image_registry: Option<RegistryLogin>,
    /// Use no layer of an earlier build.
    pub force: Option<bool>,
    /// What is done.
    pub steps: Option<Vec<BuildStep>>,
    /// A shell command that each sandbox begins with.
    pub start_cmd: Option<String>,
    /// A shell command that succeeds when it is ready.
    pub ready_cmd: Option<String>,
}

/// How to log in to a registry.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
#[schema(as = FromImageRegistry)]
pub enum RegistryLogin {
    /// By name and password.
    Registry {
        /// The name.
        username: String,
        /// The password.
        password: String,
    },
    /// With keys of AWS. Not supported.
    #[serde(rename_all = "camelCase")]
    Aws {},
    /// With a service account of Google.
    #[serde(rename_all = "camelCase")]
    Gcp {
        /// The account, as a document of JSON.
        service_account_json: String,
    },
}

impl std::fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Passwords are for registries only.
        f.write_str("RegistryLogin")
    }
}

/// A step of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TemplateStep)]
pub struct BuildStep {
    /// `RUN`, `COPY`, `ENV`, `WORKDIR` or `USER`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Of a `COPY`: what tells its files from others.
    #[serde(default)]
    pub files_hash: Option<String>,
    /// Do it though an earlier build has done it.
    #[serde(default)]
    pub force: Option<bool>,
}

/// `GET /templates/{id}/files/{hash}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = TemplateBuildFileUpload)]
pub struct FileUpload {
    /// Whether the server has them already.
    pub present: bool,
    /// Where a tar archive with them can be put.
    pub url: Option<String>,
}

/// A line of a build's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BuildLogEntry {
    /// When, in RFC 3339.
    pub timestamp: String,
    /// What it says.
    pub message: String,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The step, counted from 1, or `base` or `finalize`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// `GET /templates/{id}/builds/{build}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = TemplateBuildLogsResponse)]
pub struct BuildLogs {
    /// The entries.
    pub logs: Vec<BuildLogEntry>,
}

/// Why a build failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuildStatusReason {
    /// Why.
    pub message: String,
    /// Where: a step, counted from 1, or `base` or `finalize`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The last lines before.
    pub log_entries: Vec<BuildLogEntry>,
}

/// How far a build is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TemplateBuildInfo)]
pub struct BuildInfo {
    /// The template.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// The build.
    #[serde(rename = "buildID")]
    pub build_id: String,
    /// `waiting`, `building`, `ready` or `error`.
    pub status: String,
    /// Always empty: see `logEntries`.
    pub logs: Vec<String>,
    /// Lines of its log from the offset on.
    pub log_entries: Vec<BuildLogEntry>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<BuildStatusReason>,
}
