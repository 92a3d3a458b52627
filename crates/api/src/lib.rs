//! Wire types of the node API: HTTP and JSON over a unix socket, every path below [`VERSION_PREFIX`]. Those of E2B's control plane: [`e2b`].
//!
//! | request | body -> answer |
//! |---|---|
//! | `GET /v1/node` | [`NodeInfo`] |
//! | `GET /v1/templates`, `GET /v1/templates/NAME` | [`Template`] (a list of them) |
//! | `POST /v1/builds` | [`Recipe`] -> [`RecipeEvent`]s, one JSON document per line; hanging up cancels the build |
//! | `POST /v1/templates` | [`TemplateSpec`] -> [`BuildEvent`]s, one JSON document per line; hanging up cancels the build |
//! | `DELETE /v1/templates/NAME` | `null` |
//! | `POST /v1/templates/NAME/run` | [`RunRequest`] -> [`RunResponse`]; hanging up removes what was started |
//! | `POST /v1/sandboxes/ID/checkpoint` | [`CheckpointRequest`] -> [`CheckpointEvent`]s, one JSON document per line |
//! | `GET /v1/checkpoints`, `GET /v1/checkpoints/NAME` | [`Checkpoint`] (a list of them) |
//! | `DELETE /v1/checkpoints/NAME` | `null` |
//! | `POST /v1/checkpoints/NAME/verify` | [`CheckpointVerification`] |
//! | `GET /v1/checkpoints/NAME/export` | a checkpoint file, as bytes; an answer that breaks off has failed |
//! | `POST /v1/checkpoints?name=NAME&replace=BOOL` | a checkpoint file -> [`Checkpoint`] |
//! | `GET /v1/store/stats` | [`StoreStats`] |
//! | `POST /v1/store/verify` | [`StoreVerification`]; hanging up ends it |
//! | `POST /v1/store/gc` | [`GcRequest`] -> [`GcReport`] |
//! | `POST /v1/store/rotate-key` | [`KeyRotation`] |
//! | `POST /v1/templates/NAME/warm` | nothing -> [`Template`]: a lost zygote is built again, a checkpoint's restored |
//! | `GET /v1/sandboxes` | a list of [`Sandbox`] |
//! | `GET /v1/sandboxes/ID` | [`SandboxDetail`] |
//! | `GET /v1/tree` | a list of [`Relative`]: all sandboxes, and those that are gone from which they descend |
//! | `DELETE /v1/sandboxes/ID`, `DELETE /v1/sandboxes` | [`Removed`] |
//! | `GET /v1/sandboxes/ID/logs?follow=BOOL` | the output, as bytes |
//! | `GET /v1/sandboxes/ID/usage` | [`Usage`] |
//! | `GET /v1/sandboxes/ID/refusals` | a list of [`Refusal`]: why it could not be forked, nothing is stopped |
//! | `GET /v1/sandboxes/ID/diff/OTHER` | [`Differences`]: files and processes, as seen from the first |
//! | `POST /v1/sandboxes/ID/merge` | [`MergeRequest`] -> [`Merge`]: what another one has changed in its files since a common fork |
//! | `GET /v1/images`, `GET /v1/images/NAME` | [`KeptImage`] (a list of them) |
//! | `POST /v1/images/import` | [`ImportRequest`] -> [`ImportEvent`]s, one JSON document per line |
//! | `POST /v1/images/pull` | [`PullRequest`] -> [`PullEvent`]s, one JSON document per line; hanging up ends the download |
//! | `DELETE /v1/images/NAME` | `null` |
//! | `POST /v1/images/prune` | [`Pruned`] |
//! | `GET /v1/sandboxes/ID/network` | [`NetworkPolicy`] |
//! | `PUT /v1/sandboxes/ID/network` | [`NetworkPolicy`] -> `null`: it holds from now on, for what flows, too |
//! | `/v1/sandboxes/ID/inside/...` | commands and files, as E2B's envd has them |
//! | `POST /v1/sandboxes/ID/fork` | [`ForkRequest`] -> [`ForkResponse`] |
//! | `POST /v1/sandboxes/ID/pause` | [`PauseRequest`] or nothing -> [`PauseEvent`]s, one JSON document per line |
//! | `POST /v1/sandboxes/ID/resume` | [`ResumeRequest`] -> [`Sandbox`] |
//! | `GET /v1/paused` | a list of [`PausedSandbox`] |
//! | `POST /v1/sandboxes/ID/exec` | [`ExecRequest`] -> 101, then [`frame::Frame`]s both ways |
//! | `POST /v1/sandboxes/ID/commands` | [`CommandRequest`] -> [`Command`]: it outlives its client |
//! | `GET /v1/sandboxes/ID/commands` | a list of [`Command`] |
//! | `POST /v1/sandboxes/ID/commands/PID/attach` | 101, then [`frame::Frame`]s both ways; `tag:TAG` in the place of a pid |
//! | `POST /v1/sandboxes/ID/commands/PID/signal` | [`SignalRequest`] -> `null` |
//! | `/v1/volumes...`, `GET /v1/metrics` | see [`volume`] |
//! | `GET /v1/volumes/NAME/diff?from=SNAPSHOT&with=VOLUME&to=SNAPSHOT` | [`VolumeChange`]s, one JSON document per line; without `from` or `to`: the present state; `to` is one of `with`, if that is there |
//! | `POST /v1/volumes/NAME/verify` | [`VolumeVerification`] |
//! | `GET /v1/volumes/NAME/export?snapshot=SNAPSHOT`, `POST /v1/volumes/NAME/import?path=PATH` | a tar archive, as bytes |
//! | `POST /v1/volumes/NAME/mount` | [`MountRequest`] -> [`VolumeMount`] |
//! | `POST /v1/volumes/NAME/unmount` | [`UnmountRequest`] -> `null` |
//! | `GET /v1/sandboxes/ID/dial/PORT` | 101, then the bytes of the TCP connection |
//!
//! Every answer that is not 2xx or 101 carries an [`ErrorBody`].

mod change;
mod checkpoint;
mod command;
mod convert;
mod difference;
pub mod e2b;
pub mod error;
pub mod frame;
mod image;
mod mount;
mod network;
mod node;
mod recipe;
mod sandbox;
mod store;
mod template;
pub mod volume;

pub use change::{Change, VolumeChange, VolumeVerification};
pub use checkpoint::{
    Checkpoint, CheckpointEvent, CheckpointProgress, CheckpointRequest, CheckpointStage, CheckpointVolume,
    MemoryProgress,
};
pub use command::{Command, CommandRequest, CommandSignal, EndReason, SignalRequest};
pub use difference::{Differences, FileAspect, FileChange, FileDifference, Merge, MergeConflict, MergeRequest};
pub use error::{ErrorBody, ErrorCode, ErrorDetail};
pub use image::{ImportEvent, ImportRequest, KeptImage, Pruned, PullEvent, PullRequest, RegistryCredentials};
pub use mount::{MountRequest, UnmountRequest, VolumeMount};
pub use network::{Addresses, Destination, Domain, HeaderRule, Hidden, NetworkPolicy, rule};
pub use node::{NodeInfo, PoolInfo};
pub use recipe::{Origin, Recipe, RecipeEvent, RecipeStep};
pub use sandbox::{
    ExecRequest, ExitStatus, ForkRequest, ForkResponse, Interpreter, MachineIds, MemoryUse, PauseEvent, PauseRequest,
    PauseResponse, PausedSandbox, ProcessInfo, Refusal, Relative, Removed, ResumeRequest, RunRequest, RunResponse,
    Sandbox, SandboxDetail, SandboxState, TIMED_OUT, TerminalSize, Usage,
};
pub use store::{
    CheckpointVerification, Damage, GcReport, GcRequest, KeyRotation, PeerStats, StoreDamage, StoreReads,
    StoreRequests, StoreStats, StoreVerification, Tally,
};
pub use template::{
    BuildEvent, BuildStage, BuildTimings, Image, Limits, Ready, Template, TemplateFacts, TemplateSpec, TemplateState,
};

/// What every path begins with; a change that an older client cannot read gets another one.
pub const VERSION_PREFIX: &str = "/v1";

/// Value of the `upgrade` header for the exec stream.
pub const EXEC_PROTOCOL: &str = "pando-exec";

/// Value of the `upgrade` header for a dialled connection.
pub const DIAL_PROTOCOL: &str = "pando-dial";
