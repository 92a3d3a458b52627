//! Wire types of E2B's control plane, as its SDKs send and expect them. The packages are the authority about names.

mod build;
mod error;
mod list;
mod metric;
mod network;
mod sandbox;
mod secret;
mod snapshot;
mod template;
mod volume;

pub use build::{
    AskedBuild, BuildInfo, BuildLogEntry, BuildLogs, BuildStatusReason, BuildStep, FileUpload, NewBuild, RegistryLogin,
    StartBuild,
};
pub use error::Error;
pub use list::{ListQuery, ListedSandbox, Order};
pub use metric::{LogEntry, LogLevel, LogLine, Logs, LogsV2, Metric, MetricsOf};
pub use network::{EgressProxy, EgressTls, Network, NetworkUpdate, Rule, Transform};
pub use sandbox::Fork;
pub use sandbox::{
    AutoResume, Connect, ConnectV2, ForkResult, Iam, IamToken, Lifecycle, NewSandbox, NewSandboxV2, OnTimeout, Pause,
    PauseMode, Refresh, Relative, Resumed, Sandbox, SandboxDetail, State, Timeout, VolumeMount,
};
pub use secret::{NewSecret, Secret, SecretUpdate};
pub use snapshot::{Snapshot, SnapshotInfo};
pub use template::{
    AssignTags, AssignedTags, DeleteTags, Template, TemplateAlias, TemplateBuild, TemplateTag, TemplateWithBuilds,
};
pub use volume::{
    NewVolume, NewVolumeFork, NewVolumeSnapshot, Volume, VolumeAndToken, VolumeAttributes, VolumeEntry,
    VolumeEntryType, VolumeError, VolumePathChange, VolumeRestore, VolumeRestored, VolumeSnapshot,
};
