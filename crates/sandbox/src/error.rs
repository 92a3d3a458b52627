//! What can go wrong with a sandbox.

use std::{
    io,
    path::{Path, PathBuf},
};

use base::frame::FrameError;

/// Why an operation on a sandbox failed. The cause is in `source`, never in the text.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Error {
    #[error("cannot {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot {action}")]
    System { action: &'static str, source: io::Error },
    #[error("the sandbox's first process could not {step}")]
    Init { step: String, source: io::Error },
    #[error("cannot run {command:?} in the sandbox")]
    Exec { command: String, source: io::Error },
    #[error("cannot start {command:?} in the sandbox: {step}")]
    Start { command: String, step: String, source: io::Error },
    #[error("cannot use the mount point {}: the node could not {step}", path.display())]
    MountPoint { path: PathBuf, step: String, source: io::Error },
    #[error("the process that works on the sandbox's files could not {step}")]
    Hand { step: String, source: io::Error },
    #[error("a command needs at least the name of a program")]
    NoProgram,
    #[error("{command:?} was not started: the time for its start was up before")]
    Late { command: String },
    #[error("the sandbox is frozen; thaw it first")]
    Frozen,
    #[error(
        "cannot fork a process of the sandbox: it has as many tasks as it may have (`--pids`), or all sandboxes of the host together have"
    )]
    TooManyTasks(#[source] io::Error),
    #[error("a process of the sandbox has stopped the new process before it was the program")]
    Stopped,
    #[error("no answer from a new process within {0} ms")]
    Silent(u64),
    #[error("the processes in {} do not stop within {waited_ms} ms", group.display())]
    StillRunning { group: PathBuf, waited_ms: u64 },
    #[error("processes are left in {} after {waited_ms} ms", group.display())]
    StillPopulated { group: PathBuf, waited_ms: u64 },
    #[error("this kernel offers no cgroup v2 hierarchy")]
    NoCgroup2,
    #[error("{} is nested too deep to copy (more than {levels} levels)", path.display())]
    TooDeep { path: PathBuf, levels: usize },
    #[error("cannot archive {}: {reason}", path.display())]
    NotCarried { path: PathBuf, reason: &'static str },
    #[error("{} is there already", .0.display())]
    Exists(PathBuf),
    #[error("the layer archive is refused at {}: {reason}", path.display())]
    ArchiveRefused { path: PathBuf, reason: &'static str },
    #[error("the layer archive is damaged")]
    ArchiveFrame(#[source] FrameError),
    #[error("a record of the layer archive is malformed")]
    ArchiveRecord(#[source] postcard::Error),
    #[error("all {} ranges of user ids are in use: remove sandboxes, or links in {} whose processes are not there", base::limits::ID_RANGES_MAX, .0.display())]
    NoIds(PathBuf),
    #[error(
        "cannot give the owners of {} to a sandbox: its filesystem has no idmapped mounts (`pando doctor` says more)", path.display()
    )]
    NotMapped { path: PathBuf, source: io::Error },
    #[error("the sandboxes differ in more than {most} entries")]
    TooManyDifferences { most: usize },
    #[error("a root filesystem needs at least one layer")]
    NoLayer,
    #[error("the system-call filter is too long")]
    Filter,
}

impl Error {
    /// Whether a file had no room.
    pub fn is_of_full_disk(&self) -> bool {
        let Self::File { source, .. } = self else { return false };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// Why a process of the sandbox could not be forked.
    pub(crate) fn fork(source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EAGAIN) => Self::TooManyTasks(source),
            _ => Self::System { action: "fork a process of the sandbox", source },
        }
    }
}

/// Adds what was being done to an error of the system.
pub(crate) trait Context<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, Error>;
    fn doing(self, action: &'static str) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::File { action, path: path.to_owned(), source: source.into() })
    }

    fn doing(self, action: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::System { action, source: source.into() })
    }
}
