//! Sandboxes: creating, connecting, ending.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Error, Network};

/// `POST /sandboxes`, as SDKs up to 2.50 send it. Its timeout is 15 s if none is given.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewSandbox {
    /// All that the second version has, too.
    #[serde(flatten)]
    pub v2: NewSandboxV2,
    /// Ignored: sandboxes always want their access token.
    pub secure: Option<bool>,
}

/// `POST /v2/sandboxes`. Its timeout is 300 s if none is given.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewSandboxV2 {
    /// Id or name of a template, with an optional `:tag`, or id of a snapshot.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Seconds to live.
    #[schema(minimum = 0, maximum = 2592000)]
    pub timeout: Option<i64>,
    /// Pause at the end instead of kill.
    pub auto_pause: Option<bool>,
    /// Whether that keeps memory, or files only.
    pub auto_pause_memory: Option<bool>,
    /// Whether traffic resumes it.
    pub auto_resume: Option<AutoResume>,
    /// Whether it reaches the internet.
    #[serde(rename = "allow_internet_access")]
    pub allow_internet_access: Option<bool>,
    /// What it reaches, and who reaches it.
    pub network: Option<Network>,
    /// Labels: lists can be filtered by them.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Environment variables of all its commands.
    pub env_vars: Option<BTreeMap<String, String>>,
    /// Not supported.
    #[schema(value_type = Option<Object>)]
    pub mcp: Option<serde_json::Value>,
    /// Not supported.
    pub iam: Option<Iam>,
    /// Volumes and where they are mounted.
    pub volume_mounts: Option<Vec<VolumeMount>>,
}

/// Whether traffic resumes a paused sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AutoResume {
    /// Whether it does.
    pub enabled: bool,
}

/// Identities for programs. Not supported.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
pub struct Iam {
    /// By name.
    pub tokens: Option<BTreeMap<String, IamToken>>,
}

/// One identity.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct IamToken {
    /// For whom the token is.
    pub audience: String,
    /// Its kind.
    pub token_type: String,
}

/// A volume in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeMount {
    /// Of the volume.
    pub name: String,
    /// An absolute path in the sandbox.
    pub path: String,
}

/// What a client needs to use a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
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
    /// The version of E2B's daemon whose behaviour the sandbox has.
    pub envd_version: String,
    /// Access token for its files and commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    /// Access token for its ports, if they are not public.
    pub traffic_access_token: Option<String>,
    /// The domain below which its host names are.
    pub domain: Option<String>,
}

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = SandboxState)]
pub enum State {
    /// It runs.
    Running,
    /// It is in the store.
    Paused,
}

/// What happens when the time of a sandbox is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = SandboxOnTimeout)]
pub enum OnTimeout {
    /// It is removed.
    Kill,
    /// It is paused.
    Pause,
}

/// What a pause keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = SandboxPauseMode)]
pub enum PauseMode {
    /// Memory and files.
    Full,
    /// Files.
    Filesystem,
}

/// What happens at the end, and after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxLifecycle)]
pub struct Lifecycle {
    /// Whether traffic resumes it.
    pub auto_resume: bool,
    /// What happens when its time is up.
    pub on_timeout: OnTimeout,
}

/// `GET /sandboxes/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxDetail {
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
    /// The version of E2B's daemon whose behaviour the sandbox has.
    pub envd_version: String,
    /// Access token for its files and commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    /// Whether it reaches the internet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    /// The domain below which its host names are.
    pub domain: Option<String>,
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
    /// What it reaches, and who reaches it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// What happens at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// What its last pause kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_mode: Option<PauseMode>,
    /// Volumes and where they are mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mounts: Option<Vec<VolumeMount>>,
}

/// `POST /sandboxes/{id}/connect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
pub struct Connect {
    /// Seconds to live from now on.
    #[schema(minimum = 0, maximum = 2592000)]
    pub timeout: i64,
    /// False: a paused sandbox goes on with its files only.
    pub memory: Option<bool>,
}

/// `POST /v2/sandboxes/{id}/connect`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
pub struct ConnectV2 {
    /// Seconds to live from now on; 300 if none is given.
    #[schema(minimum = 0, maximum = 2592000)]
    pub timeout: Option<i64>,
    /// False: a paused sandbox goes on with its files only.
    pub memory: Option<bool>,
}

/// `POST /sandboxes/{id}/resume`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ResumedSandbox)]
pub struct Resumed {
    /// Seconds to live from now on; 15 if none is given.
    #[schema(minimum = 0, maximum = 2592000)]
    pub timeout: Option<i64>,
    /// Pause at the end instead of kill.
    pub auto_pause: Option<bool>,
    /// False: it goes on with its files only.
    pub memory: Option<bool>,
}

/// `POST /sandboxes/{id}/pause`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxPauseRequest)]
pub struct Pause {
    /// False: only files are kept.
    pub memory: Option<bool>,
    /// Ignored: nothing of ours runs inside.
    pub require_healthy_guest: Option<bool>,
}

/// `POST /sandboxes/{id}/fork`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = SandboxForkRequest)]
pub struct Fork {
    /// Seconds that the copies live; 15 if none is given.
    #[schema(minimum = 0, maximum = 2592000)]
    pub timeout: Option<i64>,
    /// How many; 1 if none is given.
    #[schema(minimum = 1, maximum = 100)]
    pub count: Option<u32>,
    /// Whether they have the memory, or the files only, as every sandbox can have. An addition of this server.
    pub memory: Option<bool>,
}

/// What became of one copy: exactly one of both is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = SandboxForkResult)]
pub struct ForkResult {
    /// It runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}

/// `GET /forks`: a sandbox that was forked, or that others were forked from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxRelative)]
pub struct Relative {
    /// The sandbox.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// The one that it was forked from, if it was.
    #[serde(rename = "parentID", skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// When that was, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_at: Option<String>,
    /// Whether it runs or is paused. Not there: it is gone, and remembered because others descend from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
}

/// `POST /sandboxes/{id}/timeout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = SandboxTimeoutRequest)]
pub struct Timeout {
    /// Seconds to live from now on.
    #[schema(minimum = 0, maximum = 2592000)]
    pub timeout: i64,
}

/// `POST /sandboxes/{id}/refreshes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = SandboxRefreshRequest)]
pub struct Refresh {
    /// Seconds to live from now on, if that is longer; 15 if none is given.
    #[schema(minimum = 0, maximum = 2592000)]
    pub duration: Option<i64>,
}
