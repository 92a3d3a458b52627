//! Commands of clients that the node keeps.

use std::fmt;

use crate::ExitStatus;

/// Which command of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// The one with this pid inside of the sandbox: one that runs, else the one that ended last.
    Pid(i32),
    /// The one with this tag: one that runs, else the one that ended last.
    Tag(String),
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "with pid {pid}"),
            Self::Tag(tag) => write!(f, "with tag {tag:?}"),
        }
    }
}

/// A command that was started in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// How it ended, if it has.
    pub end: Option<CommandEnd>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandEnd {
    /// Its status.
    pub status: ExitStatus,
    /// Why the node ended it; none: it ended by itself, or by a signal of a client.
    pub reason: Option<EndReason>,
}

/// Why the node ended a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// It ran longer than its time limit.
    TimedOut,
    /// It ran in the foreground of a client that left.
    ClientLeft,
    /// The processes that hold commands were both killed, and its streams with them.
    Lost,
}

/// Something of a command for a client that is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandEvent {
    /// It runs, or has run, with this pid inside of the sandbox. The first event.
    Started(i32),
    /// Bytes of standard output, at most 32 KiB. A character may be cut.
    Stdout(Vec<u8>),
    /// Bytes of standard error, at most 32 KiB. A character may be cut.
    Stderr(Vec<u8>),
    /// Bytes of the terminal, at most 16 KiB. A character may be cut.
    Terminal(Vec<u8>),
    /// So many bytes of output are not kept any more, and this client did not get them.
    Missed(u64),
    /// It has ended. Nothing follows.
    Ended(CommandEnd),
}

/// A signal that a client can send to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandSignal {
    /// SIGTERM, to each process of the command.
    Terminate,
    /// SIGKILL, to each process of the command. A terminal's get SIGHUP first.
    Kill,
}
