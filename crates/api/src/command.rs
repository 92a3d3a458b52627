//! Commands that outlive their clients.

use serde::{Deserialize, Serialize};

use crate::{ExitStatus, TerminalSize};

/// Start a command that outlives its client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandRequest {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment, beside that of the template.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Working directory; none: that of the template.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Give it a terminal of this size.
    #[serde(default)]
    pub terminal: Option<TerminalSize>,
    /// End it, with all that it has started, if it has not ended after so many milliseconds. 1 ms to 30 days.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Whose rights it has: `user`, the default.
    #[serde(default)]
    pub user: Option<String>,
    /// A name for it; at most 256 bytes.
    #[serde(default)]
    pub tag: Option<String>,
    /// It can be sent input. Without, it reads end of file at once.
    #[serde(default)]
    pub stdin: bool,
}

/// A command that was started in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Its pid inside of the sandbox.
    pub pid: i32,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The environment that the client gave.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: String,
    /// The client's name for it.
    pub tag: Option<String>,
    /// Whose rights it has.
    pub user: String,
    /// Its output is a terminal's.
    pub terminal: bool,
    /// It can be sent input.
    pub stdin: bool,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: u64,
    /// How it ended; none: it runs.
    pub status: Option<ExitStatus>,
    /// Why the node ended it; none: it runs, ended by itself or by a signal of a client.
    pub reason: Option<EndReason>,
}

/// Why the node ended a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// It ran longer than its time limit.
    TimedOut,
    /// It ran in the foreground of a client that left.
    ClientLeft,
    /// The processes that hold commands were both killed, and its streams with them.
    Lost,
}

/// Send a signal to all processes of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalRequest {
    /// Which.
    pub signal: CommandSignal,
}

/// A signal that a client can send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandSignal {
    /// SIGTERM.
    Terminate,
    /// SIGKILL. What has a terminal gets SIGHUP first.
    Kill,
}
