//! Why the control plane refused.

use std::{fmt, time::Duration};

use base::id::SandboxId;
use db::{DbError, Transient};

/// A thing that has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noun {
    /// A tenant.
    Team,
    /// An API key.
    Key,
    /// A sandbox.
    Sandbox,
    /// A template, or a snapshot.
    Template,
    /// A build of a template.
    Build,
    /// A tag of a template.
    Tag,
    /// A volume.
    Volume,
    /// A secret.
    Secret,
    /// A server of the database.
    Server,
}

impl fmt::Display for Noun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Team => "team",
            Self::Key => "key",
            Self::Sandbox => "sandbox",
            Self::Template => "template",
            Self::Build => "build",
            Self::Tag => "tag",
            Self::Volume => "volume",
            Self::Secret => "secret",
            Self::Server => "server",
        })
    }
}

/// What a team has a limit of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Sandboxes that run.
    Sandboxes,
    /// Memory of sandboxes that run, in MiB.
    MemoryMb,
    /// CPUs of sandboxes that run.
    Cpus,
    /// Starts under way.
    Starts,
    /// Keys, templates, names, tags, builds or volumes that exist.
    Kept(Noun),
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sandboxes => f.write_str("running sandboxes"),
            Self::MemoryMb => f.write_str("MiB of memory"),
            Self::Cpus => f.write_str("CPUs"),
            Self::Starts => f.write_str("starts at once"),
            Self::Kept(noun) => write!(f, "{noun}s"),
        }
    }
}

/// What a server does with a sandbox at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// It ends.
    Killing,
    /// It will be paused.
    Pausing,
    /// It will run.
    Resuming,
}

impl Doing {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Killing => "killing",
            Self::Pausing => "pausing",
            Self::Resuming => "resuming",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Killing, Self::Pausing, Self::Resuming].into_iter().find(|doing| doing.as_str() == text)
    }
}

/// The classes of errors. An adapter has one answer for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The team has no such thing.
    NotFound,
    /// The key is unknown.
    Unauthorised,
    /// The key, or the team, may not do this.
    Forbidden,
    /// The thing is in another state than the request needs.
    Conflict,
    /// The team has no more of it. Another attempt after this time may succeed.
    OverQuota {
        /// When to try again.
        retry_after: Duration,
    },
    /// The request is wrong.
    Invalid,
    /// The server cannot do it now. Another attempt after this time may succeed.
    Unavailable {
        /// When to try again.
        retry_after: Duration,
    },
}

/// Why the control plane refused. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // of the fields: the messages say it
pub enum ControlError {
    /// The team has no such thing. A thing of another team is not found either.
    #[error("there is no {noun} {name}")]
    NotFound { noun: Noun, name: String },
    /// The API key is malformed, unknown or revoked. The key is not shown.
    #[error("the API key is not valid: list the team's keys with `pando key ls`")]
    Unauthorised,
    /// The access token of a sandbox or volume, or a signature made with it, is wrong.
    #[error("the access token is not valid")]
    Token,
    /// The key has not the scope for this.
    #[error("the API key may only read: create one with all scopes")]
    ReadOnly,
    /// The template belongs to another team, which has not made it public.
    #[error("template {name} belongs to another team")]
    ForeignTemplate { name: String },
    /// The name is taken.
    #[error("{noun} {name} exists already")]
    Exists { noun: Noun, name: String },
    /// A running sandbox was needed.
    #[error("sandbox {id} is paused: connect to it first")]
    Paused { id: SandboxId },
    /// A paused sandbox was needed.
    #[error("sandbox {id} is running")]
    Running { id: SandboxId },
    /// A server pauses or resumes the sandbox at the moment.
    #[error("a server is {} sandbox {id} at the moment: try again", doing.as_str())]
    Busy { id: SandboxId, doing: Doing },
    /// The sandbox runs on the node of another server of the database.
    #[error("sandbox {id} runs on server {server}: send the request there")]
    Elsewhere { id: SandboxId, server: String },
    /// A server that is to be removed has given a sign of life.
    #[error("server {name} still runs, or has just stopped: stop it, and remove it in {} s", wait.as_secs() + 1)]
    ServerRuns { name: String, wait: Duration },
    /// The value of a secret cannot be sealed or opened.
    #[error("the keys that seal secrets are out of reach")]
    Keys(#[from] store::keys::KeyError),
    /// The value of a secret is damaged, or is that of another secret.
    #[error("the value of secret {name} is damaged: set it again")]
    Seal { name: String },
    /// Another request with the same idempotency key is under way.
    #[error("a request with the idempotency key {key:?} is under way: try again")]
    KeyInUse { key: String },
    /// An idempotency key was used for another request.
    #[error("the idempotency key {key:?} was used for another request: choose a new one")]
    KeyReused { key: String },
    /// The build is not ready to start sandboxes.
    #[error("build {build} of template {template} is not ready: it is {status}")]
    NotReady { template: String, build: String, status: &'static str },
    /// The team has no more of it.
    #[error("the team may have {limit} {resource}, has {used} and asked for {asked} more: {}", what_next(*resource))]
    OverQuota { resource: Resource, limit: u64, used: u64, asked: u64, retry_after: Duration },
    /// The request is wrong.
    #[error("{what} is not valid: {rule}")]
    Invalid { what: &'static str, rule: String },
    /// The database failed.
    #[error("the server's database failed")]
    Database(#[from] DbError),
}

fn what_next(resource: Resource) -> &'static str {
    match resource {
        Resource::Sandboxes | Resource::MemoryMb | Resource::Cpus => "kill or pause a sandbox, or raise the quota",
        Resource::Starts => "try again when one has ended",
        Resource::Kept(_) => "remove one",
    }
}

impl ControlError {
    /// The class that it is of.
    pub fn kind(&self) -> Kind {
        match self {
            Self::NotFound { .. } | Self::Busy { doing: Doing::Killing, .. } => Kind::NotFound,
            Self::Unauthorised | Self::Token => Kind::Unauthorised,
            Self::ReadOnly | Self::ForeignTemplate { .. } => Kind::Forbidden,
            Self::Exists { .. }
            | Self::Paused { .. }
            | Self::Running { .. }
            | Self::KeyInUse { .. }
            | Self::KeyReused { .. }
            | Self::ServerRuns { .. }
            | Self::NotReady { .. } => Kind::Conflict,
            Self::OverQuota { retry_after, .. } => Kind::OverQuota { retry_after: *retry_after },
            Self::Invalid { .. } => Kind::Invalid,
            Self::Busy { doing: Doing::Pausing | Doing::Resuming, .. }
            | Self::Database(_)
            | Self::Keys(_)
            | Self::Seal { .. } => Kind::Unavailable { retry_after: base::limits::RETRY_AFTER },
            Self::Elsewhere { .. } => Kind::Unavailable { retry_after: crate::servers::ELSEWHERE_RETRY },
        }
    }

    pub(crate) fn not_found(noun: Noun, name: impl fmt::Display) -> Self {
        Self::NotFound { noun, name: name.to_string() }
    }

    pub(crate) fn invalid(what: &'static str, rule: impl Into<String>) -> Self {
        Self::Invalid { what, rule: rule.into() }
    }
}

impl Transient for ControlError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Database(error) => error.is_transient(),
            _ => false,
        }
    }
}
