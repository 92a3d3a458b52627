//! Errors of commands that the node keeps.

use base::id::SandboxId;
use model::{FailureKind, Selector};

/// Something was asked of a command in vain.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum CommandError {
    #[error("there is no command {selector} in sandbox {id}")]
    NotFound { id: SandboxId, selector: Selector },
    #[error("the command has ended")]
    Ended,
    #[error("{message}")]
    NoInput { message: String },
    #[error("the command has no terminal")]
    NoTerminal,
    #[error("{message}")]
    TooMany { message: String },
    #[error("cannot {action}")]
    Holder { action: &'static str, source: holder::Error },
}

impl CommandError {
    pub(super) fn kind(&self) -> FailureKind {
        match self {
            Self::NotFound { .. } => FailureKind::NotFound,
            Self::Ended | Self::NoInput { .. } | Self::NoTerminal | Self::TooMany { .. } => FailureKind::Conflict,
            Self::Holder { .. } => FailureKind::Host,
        }
    }

    /// What the user should do next.
    pub(super) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotFound { .. } => {
                Some("the node keeps the last 32 ended commands of a sandbox and forgets older ones")
            }
            Self::Ended => Some("its output and status can still be read"),
            Self::TooMany { .. } => Some("end commands that are not needed, or wait for the end of some"),
            Self::Holder { .. } => Some("repeat the command: the holder of commands is started again"),
            Self::NoInput { .. } | Self::NoTerminal => None,
        }
    }
}
