//! Why a call failed.

use std::io;

use api::ErrorDetail;
use hyper::StatusCode;

use crate::address::{Address, InvalidUrl};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node, or the server, answered with an error.
    #[error("{}", .0.message)]
    Node(ErrorDetail),
    /// Nothing answers there.
    #[error("{at} cannot be reached")]
    Unreachable {
        /// Where it should listen.
        at: Address,
        /// Why it cannot be reached.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It closed the connection before it answered.
    #[error("{at} cannot be reached: it hung up")]
    NoAnswer {
        /// Where it listens.
        at: Address,
        /// How the connection ended.
        source: hyper::Error,
    },
    /// The answer ended before its last event.
    #[error("the other side hung up before it had finished")]
    HungUp,
    /// The connection ended in the middle of the answer.
    #[error("the answer broke off")]
    BrokenOff(#[source] hyper::Error),
    /// The answer is of no known form.
    #[error("the answer is not understood; it may be of another version")]
    NotUnderstood(#[source] serde_json::Error),
    /// The answer is an error of no known form.
    #[error("the answer was {0}, which this program does not understand")]
    Status(StatusCode),
    /// The path of a file in a volume is that of a directory.
    #[error("{0} is a directory")]
    IsDirectory(String),
    /// The URL of the server is none.
    #[error(transparent)]
    Url(#[from] InvalidUrl),
    /// The command was ended because its time was up.
    #[error("{0}")]
    TimedOut(String),
    /// A message of a stream is longer than any that this program takes.
    #[error("the answer has a message of {bytes} bytes, which is too long")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// What should be sent cannot be read.
    #[error("cannot read what is to be sent")]
    Upload(#[source] hyper::Error),
    /// The request cannot be put together.
    #[error("cannot make the request")]
    Request(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The connection cannot be closed at an interrupt.
    #[error("cannot hang up")]
    HangUp(#[source] io::Error),
}

impl Error {
    /// Whether there is no answer, or not all of it.
    pub(crate) fn has_hung_up(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NoAnswer { .. } | Self::HungUp | Self::BrokenOff(_) => true,
            Self::Node(_)
            | Self::NotUnderstood(_)
            | Self::Status(_)
            | Self::IsDirectory(_)
            | Self::Url(_)
            | Self::TimedOut(_)
            | Self::TooLong { .. }
            | Self::Upload(_)
            | Self::Request(_)
            | Self::HangUp(_) => false,
        }
    }

    /// Whether the node says that what was named does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Node(detail) if detail.code == api::ErrorCode::NotFound)
    }
}
