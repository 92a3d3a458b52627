//! Sandboxes: what was asked for, in what state they are, when they end.
//!
//! ```text
//!   reserve ──► confirm ──► running ──claim(Pausing)──► paused ──► ...
//!      │                      ▲  │                        │  │
//!   abandon                   │  └──claim(Killing)──► (no row) ◄┘
//!                             └─────────claim(Resuming)───┘
//! ```
//!
//! A server claims a sandbox before it pauses, resumes or kills it. It renews the claim while it works. When its claim
//! ends without an answer, the server has died, and another one may claim. A kill takes any claim over.

mod forks;
mod lifetime;
mod list;
mod record;
mod start;
mod transition;

use std::{collections::BTreeMap, time::Duration};

use base::id::{BuildId, SandboxId, TeamId, TemplateId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::AnyConnection;

pub use self::{
    forks::Relative,
    list::{Filter, ListedPage, States},
    start::{IdempotencyKey, Reservation, Reserved, Started},
    transition::{Observed, Transition},
};
pub(crate) use self::{
    record::on_timeout_of,
    transition::{claim, refuse},
};
use crate::{ControlError, Doing, Inner, Noun, Time, Token, secret::Purpose};

/// What a sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Size {
    /// Processors.
    pub cpus: u64,
    /// Memory, in MiB.
    pub memory_mb: u64,
    /// Disk, in MiB.
    pub disk_mb: u64,
}

/// What a pause keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PauseMode {
    /// Memory and files: processes go on where they were.
    Full,
    /// Files only: the sandbox boots when it is resumed.
    Filesystem,
}

impl PauseMode {
    /// The word of the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Filesystem => "filesystem",
        }
    }
}

/// What happens when the time of a sandbox is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnTimeout {
    /// It is killed.
    Kill,
    /// It is paused.
    Pause(PauseMode),
}

/// How long a sandbox lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// From its start on.
    pub timeout: Duration,
    /// What happens then.
    pub on_timeout: OnTimeout,
    /// Whether traffic resumes it when it is paused.
    pub auto_resume: bool,
}

/// A volume in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VolumeMount {
    /// The volume's name.
    pub name: String,
    /// Where programs find it.
    pub path: String,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSandbox {
    /// The template that it is made from.
    pub template: TemplateId,
    /// The build of the template.
    pub build: BuildId,
    /// The name under which the client knows the template.
    pub alias: Option<String>,
    /// What the client wants to find it by.
    pub metadata: BTreeMap<String, String>,
    /// The environment of its commands.
    pub env_vars: BTreeMap<String, String>,
    /// The network policy as the client wrote it.
    pub network: Option<Value>,
    /// Its volumes.
    pub volume_mounts: Vec<VolumeMount>,
    /// Whether it reaches the internet.
    pub allow_internet: bool,
    /// What it may use.
    pub size: Size,
    /// How long it lives.
    pub lifetime: Lifetime,
}

/// In what state a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// It uses its team's quota.
    Running,
    /// It uses none.
    Paused(PauseMode),
}

impl State {
    /// The word of the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused(_) => "paused",
        }
    }
}

/// A sandbox as its team sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    /// Its id on the node.
    pub id: SandboxId,
    /// Whose it is.
    pub team: TeamId,
    /// What was asked for. The network policy, and `lifetime.timeout`, are the newest ones.
    pub spec: NewSandbox,
    /// In what state it is.
    pub state: State,
    /// Whether its processes did not answer when it was paused.
    pub unresponsive: bool,
    /// What a server does with it at the moment.
    pub doing: Option<Doing>,
    /// When it was made. A resume does not change it.
    pub started: Time,
    /// When its time is over, or was.
    pub end: Time,
    /// Pauses at its end that were refused one after the other.
    pub refusals: u64,
    /// The server whose node has it, or had it when it was paused. Empty: none.
    pub server: String,
    token_generation: u64,
}

impl Sandbox {
    /// Whether the server may act on it: it is that server's, or none's.
    pub(crate) fn is_of(&self, server: &str) -> bool {
        self.server.is_empty() || self.server == server
    }
}

/// The sandboxes of a server.
#[derive(Debug, Clone, Copy)]
pub struct Sandboxes<'a>(pub(crate) &'a Inner);

impl Sandboxes<'_> {
    /// The sandbox of a team. One that is being killed is not found.
    pub async fn get(&self, team: &TeamId, id: &SandboxId) -> Result<Sandbox, ControlError> {
        let found = record::of_team(&mut *record::reader(self.0).await?, team, id, (self.0.clock.now(), "")).await?;
        match found.doing {
            Some(Doing::Killing) => Err(ControlError::not_found(Noun::Sandbox, id)),
            Some(Doing::Pausing | Doing::Resuming) | None => Ok(found),
        }
    }

    /// The sandbox, of whatever team. For the server itself: the caller has a token of the sandbox, or works for no
    /// team.
    pub async fn find(&self, id: &SandboxId) -> Result<Sandbox, ControlError> {
        record::of_any(&mut *record::reader(self.0).await?, id, (self.0.clock.now(), "")).await
    }

    /// The token for its files and commands.
    pub fn envd_token(&self, sandbox: &Sandbox) -> Token {
        self.0.secret.token(Purpose::Envd, sandbox.id.as_str(), sandbox.token_generation)
    }

    /// The token for traffic to its ports.
    pub fn traffic_token(&self, sandbox: &Sandbox) -> Token {
        self.0.secret.token(Purpose::Traffic, sandbox.id.as_str(), sandbox.token_generation)
    }
}

pub(crate) use self::{
    list::of_server,
    record::{metadata_text, reader, remove},
};

/// A sandbox, of whatever team.
pub(crate) async fn of_any(connection: &mut AnyConnection, id: &SandboxId, now: Time) -> Result<Sandbox, ControlError> {
    record::of_any(connection, id, (now, "")).await
}
