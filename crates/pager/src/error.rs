//! What can go wrong.

use std::io;

pub(crate) use base::error::chain;

/// Any cause.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a source has no page to give.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Worth trying again: the store does not answer, or not in time.
    #[error("the page cannot be had now")]
    Transient(#[source] BoxError),
    /// It will be the same next time: the object is missing or damaged.
    #[error("the page is lost")]
    Permanent(#[source] BoxError),
}

/// Why a client's wish was not fulfilled, or a guardian did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("cannot {doing}")]
    System {
        /// What for.
        doing: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The guardian said no.
    #[error("{0}")]
    Refused(String),
    /// The guardian ended, or said something else than was asked.
    #[error("the pager's guardian gave no answer")]
    NoAnswer,
    /// More than the limits allow.
    #[error("{what}: {have}, at most {most}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// How much there is.
        have: u64,
        /// The limit.
        most: u64,
    },
}

impl Error {
    /// For `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { doing, source: source.into() }
    }
}
