//! What can go wrong.

use std::{io, path::PathBuf, time::Duration};

use crate::limits::PULL_MAX;

/// Why an image could not be had from a registry.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Error {
    #[error("{name} cannot be pulled: {why}")]
    Reference { name: String, why: String },
    #[error("{what} is not fetched")]
    Denied { what: String, source: network::Denied },
    #[error("{what} is not fetched: {why}")]
    Redirect { what: String, why: String },
    #[error("{registry} refuses {what}: it is not there, or the credentials are wrong or missing{message}")]
    Unauthorized { registry: String, what: String, message: String },
    #[error("{what} is not at {registry}{message}")]
    NotFound { registry: String, what: String, message: String },
    #[error("{host} answers {status} about {what}{message}")]
    Answer { host: String, status: u16, what: String, message: String, after: Option<Duration> },
    #[error("{host} cannot be asked for {what}")]
    Unreachable { host: String, what: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{host} cannot be spoken to by TLS")]
    Tls { host: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{host} ends in the middle of {what}")]
    BrokenOff { host: String, what: String, source: Option<Box<dyn std::error::Error + Send + Sync>> },
    #[error("{host} takes too long for {what}")]
    Slow { host: String, what: String },
    #[error("the pull takes longer than {} hours: the next one goes on with what is there", PULL_MAX.as_secs() / 3600)]
    TooLong,
    #[error("{what} has more than {bytes_max} bytes")]
    TooLarge { what: String, bytes_max: u64 },
    #[error("the token service {host} gives no token: {why}")]
    Token { host: String, why: String },
    #[error("{what} is not what its digest says: it is {found}")]
    Digest { what: String, found: String },
    #[error("{what} has {found} bytes, and its manifest says {wanted}")]
    Length { what: String, wanted: u64, found: u64 },
    #[error("the image needs {needed} MiB beside what it unfolds to, and {} has {free} MiB", path.display())]
    NoRoom { path: PathBuf, needed: u64, free: u64 },
    #[error("the authorities in {} cannot be used", path.display())]
    Authorities { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the registry client cannot be made")]
    Client(#[source] reqwest::Error),
    #[error(transparent)]
    Image(#[from] images::Error),
    #[error("cannot {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
}

impl Error {
    /// Whether the same request may succeed a moment later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Answer { status, .. } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            Self::Unreachable { .. } | Self::BrokenOff { .. } | Self::Slow { .. } => true,
            Self::Reference { .. }
            | Self::Denied { .. }
            | Self::Redirect { .. }
            | Self::Tls { .. }
            | Self::Unauthorized { .. }
            | Self::NotFound { .. }
            | Self::TooLong
            | Self::TooLarge { .. }
            | Self::Token { .. }
            | Self::Digest { .. }
            | Self::Length { .. }
            | Self::NoRoom { .. }
            | Self::Authorities { .. }
            | Self::Client(_)
            | Self::Image(_)
            | Self::File { .. } => false,
        }
    }

    /// How long the registry wants to be left alone.
    pub(crate) fn wanted_pause(&self) -> Option<Duration> {
        if let Self::Answer { after, .. } = self { *after } else { None }
    }
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds what was being done to an error of the system.
pub(crate) trait Context<T> {
    fn at(self, action: &'static str, path: &std::path::Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn at(self, action: &'static str, path: &std::path::Path) -> Result<T> {
        self.map_err(|source| Error::File { action, path: path.to_owned(), source: source.into() })
    }
}
