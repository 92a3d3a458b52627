//! Errors of the fork engine.

use std::{fmt, io};

use crate::{
    refusal::{Refusal, Unfit},
    stop::stopped::ENDED,
};

/// What the engine could not do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program has something that cannot be forked; nothing was changed and it runs on.
    #[error("the program cannot be forked: {}", Joined(.0))]
    Refused(Vec<Refusal>),
    /// A system call about a process failed.
    #[error("{what} of process {pid}")]
    Process {
        /// What was tried.
        what: &'static str,
        /// Which process or thread.
        pid: i32,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A file could not be read or written.
    #[error("{what} {path}")]
    File {
        /// What was tried.
        what: &'static str,
        /// Which file.
        path: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// `/proc` could not be read.
    #[error(transparent)]
    Proc(#[from] procfs::Error),
    /// A thread stopped for another reason than expected, or ended.
    #[error("process {pid} {what}")]
    Unexpected {
        /// Which process or thread.
        pid: i32,
        /// What it did.
        what: String,
    },
    /// A step inside another process failed.
    #[error("{step}")]
    Step {
        /// Which system call, where.
        step: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// What the caller does while the program is stopped failed.
    #[error("while the program was stopped")]
    DuringPause(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// There is no free place in the program's address space.
    #[error("no {bytes} free bytes in the program's address space")]
    NoRoom {
        /// How many were wanted.
        bytes: u64,
    },
    /// The zygote is gone.
    #[error("the zygote is gone")]
    ZygoteGone,
    /// A checkpoint lacks a page that its index names.
    #[error("the page at {address:#x} is missing from the checkpoint")]
    MissingPage {
        /// Its address in the program.
        address: u64,
    },
    /// A checkpoint needs what this host does not have; nothing was made.
    #[error("the checkpoint does not fit this host: {}", Joined(.0))]
    Unfit(Vec<Unfit>),
}

impl Error {
    /// Whether it may be about a process that has ended, or executed another program, while it was looked at.
    pub(crate) fn is_of_change(&self) -> bool {
        let changed = |error: &io::Error| {
            error.kind() == io::ErrorKind::UnexpectedEof
                || matches!(error.raw_os_error(), Some(libc::ECHILD | libc::EIO | libc::EBADF | libc::ENOTSOCK))
        };
        match self {
            Self::Process { source, .. } | Self::File { source, .. } => self.is_gone() || changed(source),
            Self::Unexpected { what, .. } => what == ENDED,
            error => error.is_gone(),
        }
    }

    /// Whether it says that the process or thread is gone.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Proc(error) => error.is_gone(),
            Self::Process { source, .. } | Self::File { source, .. } => {
                matches!(source.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
            }
            Self::Refused(_)
            | Self::Unexpected { .. }
            | Self::Step { .. }
            | Self::DuringPause(_)
            | Self::NoRoom { .. }
            | Self::ZygoteGone
            | Self::MissingPage { .. }
            | Self::Unfit(_) => false,
        }
    }
}

/// Attaches what was tried to an I/O error.
pub(crate) trait Context<T> {
    /// About a process or thread.
    fn of(self, what: &'static str, pid: i32) -> Result<T, Error>;
    /// About a file.
    fn on(self, what: &'static str, path: impl fmt::Display) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn of(self, what: &'static str, pid: i32) -> Result<T, Error> {
        self.map_err(|source| Error::Process { what, pid, source: source.into() })
    }

    fn on(self, what: &'static str, path: impl fmt::Display) -> Result<T, Error> {
        self.map_err(|source| Error::File { what, path: path.to_string(), source: source.into() })
    }
}

struct Joined<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Joined<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, reason) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str("; ")?;
            }
            reason.fmt(f)?;
        }
        Ok(())
    }
}
