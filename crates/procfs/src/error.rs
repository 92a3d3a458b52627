//! Errors of reading `/proc`.

use std::{fmt, io};

/// What could not be read or written back.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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
    /// The kernel's text has a form that this program does not know.
    #[error("{path} has an unexpected line: {line}")]
    Format {
        /// Which file.
        path: String,
        /// The line.
        line: String,
    },
    /// A process that has begun to end does not.
    #[error("process {pid} does not end")]
    Lingers {
        /// Which process.
        pid: i32,
    },
    /// A process moves its mappings each time that they are looked at.
    #[error("process {pid} never ceases to move its mappings")]
    Moves {
        /// Which process.
        pid: i32,
    },
}

impl Error {
    /// Whether the process or thread is gone (`ENOENT`, or `ESRCH` if it ended after the file was opened).
    pub fn is_gone(&self) -> bool {
        self.file_error().is_some_and(|error| matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)))
    }

    /// Why a file could not be read or written, if that is what failed.
    pub fn file_error(&self) -> Option<&io::Error> {
        match self {
            Self::File { source, .. } => Some(source),
            Self::Format { .. } | Self::Lingers { .. } | Self::Moves { .. } => None,
        }
    }
}

impl From<Error> for io::Error {
    /// An error of the same kind, with what was tried.
    fn from(error: Error) -> Self {
        let kind = error.file_error().map_or(io::ErrorKind::Other, io::Error::kind);
        Self::new(kind, error)
    }
}

/// Attaches what was tried to an I/O error.
pub(crate) trait Context<T> {
    fn on(self, what: &'static str, path: impl fmt::Display) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn on(self, what: &'static str, path: impl fmt::Display) -> Result<T, Error> {
        self.map_err(|source| Error::File { what, path: path.to_string(), source: source.into() })
    }
}
