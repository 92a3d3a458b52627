//! What can go wrong.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Why an image could not be had.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Error {
    #[error("cannot {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot unpack {entry:?}")]
    Entry { entry: String, source: io::Error },
    #[error("the image is refused: {0}")]
    Refused(String),
    #[error("the archive cannot be read")]
    Archive(#[source] io::Error),
    #[error("{0}")]
    NoImage(String),
    #[error("{what} is not what its digest says: it is {found}, and {wanted} is wanted")]
    Digest { what: String, wanted: String, found: String },
    #[error("{0:?} is no name of an image: use letters, digits and the signs . _ - / :, such as python:3.12-slim")]
    Name(String),
    #[error("there is no image {0}")]
    NotFound(String),
}

impl Error {
    /// Whether the machine is at fault, and not the image.
    pub fn is_of_host(&self) -> bool {
        match self {
            Self::File { source, .. } => source.kind() != io::ErrorKind::NotFound,
            // Of room, memory and descriptors, or of the disk.
            Self::Entry { source, .. } => matches!(
                source.raw_os_error(),
                Some(
                    libc::ENOSPC | libc::EDQUOT | libc::EIO | libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EROFS
                )
            ),
            Self::Refused(_)
            | Self::Archive(_)
            | Self::NoImage(_)
            | Self::Digest { .. }
            | Self::Name(_)
            | Self::NotFound(_) => false,
        }
    }
}

impl From<tarball::TarError> for Error {
    fn from(error: tarball::TarError) -> Self {
        match error {
            tarball::TarError::Read(source) => Self::Archive(source),
            tarball::TarError::Archive(why) => Self::Refused(why.to_owned()),
            tarball::TarError::Member { path, why } => Self::Refused(format!("{}: {why}", shown(&path))),
        }
    }
}

/// Adds what was being done to an error of the system.
pub(crate) trait Context<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::File { action, path: path.to_owned(), source: source.into() })
    }
}

/// As much of a text as people want to see.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(200).collect()
}

pub(crate) fn refused<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::Refused(why.into()))
}
