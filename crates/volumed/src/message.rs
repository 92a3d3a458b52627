//! What the processes say to each other: one JSON document per SEQPACKET message, descriptors beside it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use api::ErrorDetail;
use base::id::{SnapshotName, VolumeName};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::limits::MESSAGE_BYTES_MAX;

/// What is open, and may be mounted. Each has one superblock on this node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Source {
    pub(crate) volume: VolumeName,
    pub(crate) state: State,
}

/// Which state of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum State {
    /// As it is: this node writes it.
    Current,
    /// As another node, which writes it, has committed it lately.
    Followed,
    /// As it was then.
    Snapshot(SnapshotName),
}

impl Source {
    pub(crate) fn current(volume: VolumeName) -> Self {
        Self { volume, state: State::Current }
    }

    pub(crate) fn followed(volume: VolumeName) -> Self {
        Self { volume, state: State::Followed }
    }

    /// A snapshot; without one, the volume as it is.
    pub(crate) fn new(volume: VolumeName, snapshot: Option<SnapshotName>) -> Self {
        Self { volume, state: snapshot.map_or(State::Current, State::Snapshot) }
    }

    pub(crate) fn is_current(&self) -> bool {
        self.state == State::Current
    }

    pub(crate) fn is_followed(&self) -> bool {
        self.state == State::Followed
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.state {
            State::Current => write!(f, "{}", self.volume),
            State::Followed => write!(f, "{}:followed", self.volume),
            State::Snapshot(snapshot) => write!(f, "{}@{snapshot}", self.volume),
        }
    }
}

/// What a mount allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the words say it
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// A wish for a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// Of this volume.
    pub volume: VolumeName,
    /// As it was then; none: as it is, and will be. If it is only to be read and another node writes it, that goes on, and what is committed there
    /// is seen here.
    pub snapshot: Option<SnapshotName>,
    /// Who it is for, until [`crate::Client::detach`] says otherwise: a sandbox's id, or `host:DIRECTORY`.
    pub holder: String,
    /// What it allows. Snapshots are read only in any case.
    pub access: Access,
}

/// From a client to the worker, one at a time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    /// -> `Done` with a detached mount
    Attach(Attach),
    /// -> `Done`; also if there is no such holder
    Detach { holder: String },
    /// -> `Holders`, or `SomeHolders`
    Holders,
    /// The same, of those that come behind this one in order. A worker that knows `SomeHolders` knows it.
    HoldersAfter { after: String },
    /// -> `Done` when everything is committed and closed, and both processes end; `Refused` while anybody holds a volume
    Shutdown,
}

/// The worker's answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    /// In order; there are no more.
    Holders(Vec<String>),
    /// In order, as many as fit into a message: there are more behind the last.
    SomeHolders(Vec<String>),
    Refused {
        status: u16,
        error: ErrorDetail,
    },
}

/// From a guardian to its worker, and from a worker to its new guardian: first `Shared`, then each mount, then `Ready`. After that only the
/// worker speaks: it tells of all changes, and nobody answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Telling {
    /// With the lock of the folder and the sockets of HTTP and of [`Request`]s: clients wait in them while there is no worker.
    Shared,
    /// With tree and devices of a superblock.
    Mount { source: Source, holders: Vec<String> },
    /// All was said that there was to say.
    Ready,
    /// Others hold it now.
    Holders { source: Source, holders: Vec<String> },
    /// It is served no more, and its descriptors may be closed.
    Unmount { source: Source },
    /// The worker ends and is not wanted any more.
    End,
}

/// Sends one message.
pub(crate) fn send<T: Serialize>(socket: impl AsFd, message: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
    }
    sys::seqpacket::send(socket, &bytes, descriptors)
}

/// Receives one message; none at the end.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    match sys::seqpacket::recv(socket, &mut buffer)? {
        (0, _) => Ok(None),
        (length, descriptors) => Ok(Some((serde_json::from_slice(&buffer[..length])?, descriptors))),
    }
}
