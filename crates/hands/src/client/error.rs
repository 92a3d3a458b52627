//! How file work fails.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::protocol::Problem;

/// Why file work in a sandbox was not done.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Error {
    #[error("cannot {action} {}", path.display())]
    Refused {
        action: &'static str,
        path: PathBuf,
        #[source]
        problem: Problem,
    },
    /// The hand ended, or was told to. Whether a change was made is not known.
    #[error("cannot {action} {}: interrupted, because the sandbox stops or its file server ended", path.display())]
    Interrupted { action: &'static str, path: PathBuf },
    #[error("cannot {action} {}: no answer within {seconds} s; its disk or volume may hang", path.display())]
    Deadline { action: &'static str, path: PathBuf, seconds: u64 },
    #[error("cannot {action} {}", path.display())]
    System { action: &'static str, path: PathBuf, source: io::Error },
}

impl Error {
    /// What the sandbox's filesystem, or a bound, had against it.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused { problem, .. } => Some(problem),
            Self::Interrupted { .. } | Self::Deadline { .. } | Self::System { .. } => None,
        }
    }

    pub(super) fn interrupted(action: &'static str, path: &Path) -> Self {
        Self::Interrupted { action, path: path.to_owned() }
    }
}
