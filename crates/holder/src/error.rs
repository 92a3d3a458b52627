//! What can go wrong between a client and the holder.

use std::{io, path::PathBuf};

use serde::{Deserialize, Serialize};

/// Why the holder did not do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// It holds no such command.
    NotFound,
    /// As many commands run as may.
    TooMany,
    /// The command has ended.
    Ended,
    /// The command takes no input: it was started without, or its input was closed.
    NoInput,
    /// The command has no terminal.
    NoTerminal,
    /// It still holds commands.
    Busy,
    /// The request is not understood.
    Invalid,
    /// A system call failed.
    Failed,
}

/// An operation of the holder failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Error {
    #[error("cannot {action}")]
    System { action: &'static str, source: io::Error },
    #[error("another holder has {0}")]
    InUse(PathBuf),
    #[error("the holder died while it did what was asked")]
    Lost,
    #[error("{message}")]
    Refused { refusal: Refusal, message: String },
    #[error("the holder gave an answer to another question")]
    Answer,
}

impl Error {
    /// Makes an error of a failed system call.
    pub(crate) fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::System { action, source: error.into() }
    }

    /// Why the holder refused, if it did.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused { refusal, .. } => Some(*refusal),
            Self::System { .. } | Self::InUse(_) | Self::Lost | Self::Answer => None,
        }
    }
}
