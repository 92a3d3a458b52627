//! Why a request on a volume or a file failed. `http::errors` maps each to an answer.

use base::id::VolumeName;
use rustix::io::Errno;
use volume::{VolumeError, archive::ArchiveError};

use crate::{limits::HOLDERS_NAMED, message::Source};

/// See the module.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{message}")]
    Invalid { message: String },
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("cannot {action} {path} in volume {volume}")]
    File { action: &'static str, volume: VolumeName, path: String, source: Errno },
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error("volume {what} is held by {}", named(.holders).join(", "))]
    Held { what: Source, holders: Vec<String> },
    #[error("{what} is not wanted any more: its removal came first")]
    Unwanted { what: Source },
    #[error("volume {volume} has as many holders on this node as it can have")]
    TooManyHolders { volume: VolumeName },
    #[error("volume {volume} is being opened or closed for too long")]
    Closing { volume: VolumeName },
    #[error("the file has {size} bytes, and what is asked for lies behind them")]
    Range { size: u64 },
    #[error("volume {volume} cannot be mounted")]
    Mount { volume: VolumeName, source: crate::BoxError },
    #[error("volumes are in use: {}", named(.holders).join(", "))]
    InUse { holders: Vec<String> },
    #[error("the request was interrupted")]
    Interrupted,
    #[error("what was sent broke off")]
    BrokenOff(#[source] crate::BoxError),
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// Whether the same may go well some time later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Volume(VolumeError::Heads { .. } | VolumeError::Store { .. }) | Self::Interrupted => true,
            Self::Volume(_)
            | Self::Invalid { .. }
            | Self::Archive(_)
            | Self::File { .. }
            | Self::Held { .. }
            | Self::InUse { .. }
            | Self::Unwanted { .. }
            | Self::TooManyHolders { .. }
            | Self::Closing { .. }
            | Self::Range { .. }
            | Self::Mount { .. }
            | Self::BrokenOff(_) => false,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }
}

/// The first of them, and how many there are beside these.
pub(crate) fn named(holders: &[String]) -> Vec<String> {
    let (first, rest) = holders.split_at(HOLDERS_NAMED.min(holders.len()));
    let more = (!rest.is_empty()).then(|| format!("and {} more", rest.len()));
    first.iter().cloned().chain(more).collect()
}
