//! Why something could not be done with a volume as a whole. Operations on files say why with an `Errno`.

use std::{io, path::PathBuf};

use rustix::io::Errno;
use store::heads::HeadsError;

/// The cause of an error.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// See the module.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum VolumeError {
    #[error(
        "{name:?} cannot be a volume's name: use 1 to 63 of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit"
    )]
    Name { name: String },
    #[error("there is no {}", of_head(.name))]
    NotFound { name: String },
    #[error("{keeper} does not have the state {manifest} of a volume (any more)")]
    NotKept { keeper: String, manifest: String },
    #[error("{} exists already", of_head(.name))]
    Exists { name: String },
    #[error(
        "{name} was taken over by another node: what was written here since its last commit is only in this node's log"
    )]
    Fenced { name: String },
    #[error("{name} is open for reading only")]
    ReadOnly { name: String },
    #[error("{name} is written by another node")]
    Elsewhere { name: String },
    #[error("{name} was removed, and another volume has its name: what is here is of the past")]
    Replaced { name: String },
    #[error("a note of {bytes} bytes is too long: a snapshot takes {}", crate::limits::NOTE_BYTES_MAX)]
    Note { bytes: usize },
    #[error("the log of {name} on this node does not go on from its head: what used it before cannot go on")]
    NotOurs { name: String },
    #[error("the heads do not answer for {name}")]
    Heads { name: String, source: Box<HeadsError> },
    #[error("cannot {action}")]
    Store { action: &'static str, source: Cause },
    #[error("the volume's tree is damaged: {what}")]
    Damaged { what: &'static str },
    #[error("manifest {manifest} is not one of a volume that this program knows")]
    NotAVolume { manifest: String },
    #[error("operation {sequence} of the log does not apply to the state that it was recorded for")]
    Replay { sequence: u64, source: Errno },
    #[error(transparent)]
    Wal(#[from] WalError),
}

/// A volume or a snapshot, by the name of its head, for people.
fn of_head(name: &str) -> String {
    let parts: Vec<&str> = name.split('/').collect();
    match parts[..] {
        ["volumes", volume, "snapshots", snapshot] => format!("snapshot {snapshot} of volume {volume}"),
        [volume] | ["volumes", volume, _] => format!("volume {volume}"),
        _ => format!("volume or snapshot {name}"),
    }
}

/// Why the log on this node's disk cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum WalError {
    #[error("cannot {action} the log {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("the log {path} is damaged at byte {offset}, before records that were synced: it is left as it is")]
    Damaged { path: PathBuf, offset: usize },
    #[error("the log {path} begins with operation {found}, and {expected} is missing: it is left as it is")]
    Gap { path: PathBuf, expected: u64, found: u64 },
    #[error("the log failed before: nothing that was not synced then can be promised")]
    Failed,
    #[error("the key of the log {path} is not to be had")]
    Key { path: PathBuf, source: Box<store::keys::KeyError> },
}

impl VolumeError {
    pub(crate) fn store<E: Into<Cause>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Store { action, source: source.into() }
    }

    /// What went wrong with the heads of `name`.
    pub(crate) fn heads(name: &str) -> impl FnOnce(HeadsError) -> Self {
        move |source| match source {
            HeadsError::NotFound { .. } => Self::NotFound { name: name.to_owned() },
            // Often a name that something new was to get.
            HeadsError::Exists { name, .. } => Self::Exists { name: name.to_string() },
            HeadsError::Fenced { .. } | HeadsError::Moved { .. } => Self::Fenced { name: name.to_owned() },
            source => Self::Heads { name: name.to_owned(), source: source.into() },
        }
    }
}
