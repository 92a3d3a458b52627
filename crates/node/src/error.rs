//! How the node fails.

mod command;
mod failure;

use std::{fmt, io, path::PathBuf};

pub use base::error::chain;
use base::id::{SandboxId, TemplateName, VolumeName};
pub use command::CommandError;
use keeper::{Failure, protocol::FailureKind};
use model::{ExitStatus, SandboxState};

/// What the node could not do. The cause is in `source`, never in the text.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Error {
    #[error("{message}")]
    Invalid { message: String, hint: Option<String> },
    #[error("there is no template {0}")]
    NoTemplate(TemplateName),
    #[error("there is neither a template nor a checkpoint {0}")]
    NothingToRun(TemplateName),
    #[error("there is no sandbox {0}")]
    NoSandbox(SandboxId),
    #[error("template {0} is being built")]
    TemplateBusy(TemplateName),
    #[error("template {name} is in use by {sandboxes} sandbox{}", if *sandboxes == 1 { "" } else { "es" })]
    TemplateInUse { name: TemplateName, sandboxes: usize },
    #[error("sandbox {id} does not run: {}", state_text(.state))]
    NotRunning { id: SandboxId, state: SandboxState },
    #[error("sandbox {id} is not paused: {}", state_text(.state))]
    NotPaused { id: SandboxId, state: SandboxState },
    #[error("sandbox {0} is being resumed")]
    BeingResumed(SandboxId),
    #[error("sandbox {id} is in the hands of node {node}")]
    HeldElsewhere { id: SandboxId, node: String },
    #[error("another node was faster and resumes or removes sandbox {0}")]
    ResumedElsewhere(SandboxId),
    #[error("the store has nothing of sandbox {0} any more: another node has resumed or removed it")]
    GoneFromStore(SandboxId),
    #[error("the sandbox has no user {user:?} in its /etc/passwd")]
    NoUser { user: String },
    #[error("sandboxes of image `host` have no user {user:?}: `user` is the only one")]
    OneUser { user: String },
    #[error("hands work for {max} users of the sandbox at a time")]
    TooManyUsers { max: usize },
    #[error("nothing listens on port {port} in sandbox {id}")]
    PortClosed { id: SandboxId, port: u16 },
    #[error("{what} cannot be forked")]
    CannotFork { what: Forked, refusals: Vec<String> },
    #[error("sandboxes {into} and {from} have changed the same files: nothing was merged")]
    MergeConflict { into: SandboxId, from: SandboxId, conflicts: Vec<String> },
    #[error("the program {status} before it was ready{}", .reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default())]
    ProgramEnded { status: ExitStatus, reason: Option<String>, output: Vec<String> },
    #[error("the template's command for copies (on_fork: {command}) {status}")]
    OnFork { command: String, status: ExitStatus, output: Vec<String> },
    #[error("the command that tells when the program is ready cannot be run: {message}")]
    NoReadyCommand { message: String },
    #[error("the program was not ready within {timeout_ms} ms: waited until {ready}")]
    NotReadyInTime { ready: String, timeout_ms: u64, output: Vec<String> },
    #[error("{message}")]
    ProgramMissing { message: String },
    #[error("{message}")]
    ProgramNotExecutable { message: String },
    #[error("cannot {action}: {message}")]
    Keeper { action: &'static str, message: String },
    #[error("cannot {action}: {message}")]
    ZygoteGone { action: &'static str, message: String },
    #[error("cannot {action}: the keeper died")]
    KeeperLost { action: &'static str },
    #[error("cannot {action}: no answer within {deadline_ms} ms")]
    Deadline { action: &'static str, deadline_ms: u64 },
    #[error("the client went away")]
    Cancelled,
    #[error("cannot {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot {action}")]
    System { action: &'static str, source: io::Error },
    #[error("the record {} is unusable", path.display())]
    Record { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("another node uses the state directory {}", .0.display())]
    StateInUse(PathBuf),
    #[error("another node listens on {}", .0.display())]
    SocketInUse(PathBuf),
    #[error("this host fails the self-test: {0}")]
    SelfTest(String),
    #[error("there is no checkpoint {0}")]
    NoCheckpoint(TemplateName),
    #[error("there is a checkpoint {0} already")]
    CheckpointExists(TemplateName),
    #[error("checkpoint {name} cannot be started on this node")]
    Unfit { name: TemplateName, reasons: Vec<String> },
    #[error("cannot {action}")]
    Store { action: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the file is no whole checkpoint")]
    DamagedFile { source: Box<dyn std::error::Error + Send + Sync> },
    /// The zygote of a checkpoint whose name is another's by now, or nobody's.
    #[error("{}", .0.message)]
    StateGone(Box<model::Failure>),
    #[error("{}", .0.message)]
    VolumeRefused(Box<model::Failure>),
    #[error("cannot {action}")]
    Volumes { action: &'static str, source: volumed::Error },
    #[error("there is no volume mounted on {path} of the host by this node")]
    NotMounted { path: String },
    #[error("there is no directory {path} on the host")]
    NoHostDirectory { path: String },
    #[error("{path} of the host cannot be used: {reason}")]
    HostPath { path: String, reason: String },
    #[error("the volume on {path} of the host is in use by {}", listed(.users))]
    HostBusy { path: String, users: Vec<String> },
    #[error("volume {volume} is held by {}, paused", .sandboxes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    OfPaused { volume: VolumeName, sandboxes: Vec<SandboxId> },
    #[error("too little room is left for what sandboxes change: {} has {} MiB beside its reserve", path.display(), free >> 20)]
    NoRoom { path: PathBuf, free: u64 },
    #[error("the command {status}{}", .reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default())]
    StepFailed { status: ExitStatus, reason: Option<String>, output: Vec<String> },
    #[error("{source}")]
    Copy { source: hands::Error },
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("the image cannot be used")]
    Image(#[from] images::Error),
    #[error(transparent)]
    Registry(#[from] registry::Error),
    #[error("the sandbox has no network that could be used")]
    Network(#[from] network::Error),
    #[error("this node gives sandboxes no network")]
    NoNetwork,
    #[error("the sandbox engine failed")]
    Sandbox(#[from] sandbox::Error),
}

/// Why a recipe was not built.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub struct RecipeError {
    /// Where it failed.
    pub step: StepName,
    /// Why.
    pub source: Box<Error>,
}

/// A part of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepName {
    /// What it begins with.
    Base,
    /// A step, counted from 1.
    Step(usize),
    /// What comes after the last step.
    Finalize,
}

impl std::fmt::Display for StepName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Base => f.write_str("the build cannot begin"),
            Self::Step(number) => write!(f, "step {number} of the build failed"),
            Self::Finalize => f.write_str("the steps are done, but the template cannot be made"),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::KeeperLost { action } => Self::KeeperLost { action },
            Failure::Deadline { action, deadline_ms } => Self::Deadline { action, deadline_ms },
            Failure::Send(source) => Self::System { action: "write to the keeper", source },
            Failure::Failed { action, kind, message } => match kind {
                FailureKind::ZygoteGone => Self::ZygoteGone { action, message },
                FailureKind::ProgramMissing => Self::ProgramMissing { message },
                FailureKind::ProgramNotExecutable => Self::ProgramNotExecutable { message },
                FailureKind::ArgumentsTooLong => {
                    let hint = "the kernel bounds arguments and environment by a quarter of the stack's limit: give the node a higher one (`ulimit -s`)";
                    Self::Invalid { message, hint: Some(hint.to_owned()) }
                }
                FailureKind::Step | FailureKind::UnknownSandbox => Self::Keeper { action, message },
            },
        }
    }
}

/// What was to be forked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forked {
    /// The program of a template that is being built.
    Template(TemplateName),
    /// A sandbox that runs.
    Sandbox(SandboxId),
}

impl fmt::Display for Forked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template(name) => write!(f, "template {name}"),
            Self::Sandbox(id) => write!(f, "sandbox {id}"),
        }
    }
}

/// What the node's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn listed(users: &[String]) -> String {
    if users.is_empty() { "a process that this node cannot see".to_owned() } else { users.join(", ") }
}

fn state_text(state: &SandboxState) -> String {
    match state {
        SandboxState::Running => "it runs".to_owned(),
        SandboxState::Pausing => "it is being paused".to_owned(),
        SandboxState::Paused => "it is paused".to_owned(),
        SandboxState::Exited(status) => format!("its program {status}"),
        SandboxState::Lost => "it was lost".to_owned(),
    }
}

/// Adds what was being done to an error of the system.
pub trait Context<T> {
    /// While `action` was being done to the file at `path`.
    fn at(self, action: &'static str, path: &std::path::Path) -> Result<T>;
    /// While `action` was being done.
    fn doing(self, action: &'static str) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn at(self, action: &'static str, path: &std::path::Path) -> Result<T> {
        self.map_err(|source| Error::File { action, path: path.to_owned(), source: source.into() })
    }

    fn doing(self, action: &'static str) -> Result<T> {
        self.map_err(|source| Error::System { action, source: source.into() })
    }
}

/// Adds what was being done to an error of the store, or of what was to be stored.
pub(crate) trait Storing<T> {
    fn storing(self, action: &'static str) -> Result<T>;
}

impl<T, E: Into<Box<dyn std::error::Error + Send + Sync>>> Storing<T> for std::result::Result<T, E> {
    fn storing(self, action: &'static str) -> Result<T> {
        self.map_err(|source| Error::Store { action, source: source.into() })
    }
}

impl From<checkpoint::Error> for Error {
    fn from(error: checkpoint::Error) -> Self {
        use checkpoint::Error as E;
        match error {
            E::Store { action, source } => Self::Store { action, source },
            E::System { action, source } => Self::System { action, source },
            E::Exists(name) => Self::CheckpointExists(name),
            E::DamagedFile { source } => Self::DamagedFile { source },
            E::Cancelled => Self::Cancelled,
            E::Sandbox(source) => Self::Sandbox(source),
        }
    }
}
