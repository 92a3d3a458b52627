//! What can go wrong with a page image.

use std::io;

use base::frame::FrameError;

use crate::chunks::ChunkId;

/// An error of a chunk store or of a target of pages: theirs, passed through.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What can go wrong with a page image.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Error {
    #[error("cannot {operation} of process {pid}")]
    Process { operation: &'static str, pid: i32, source: io::Error },
    #[error("cannot write a chunk of the page image")]
    Write { source: BoxError },
    #[error("cannot read chunk {id} of the page image")]
    Read { id: ChunkId, source: BoxError },
    #[error("the {what} of the page image is damaged")]
    Damaged { what: &'static str, source: Damage },
    #[error("cannot put pages at {address:#x} into place")]
    Place { address: u64, source: BoxError },
    #[error("the page image is too large: {0}")]
    TooLarge(&'static str),
    #[error("pages must come in order, but page {page:#x} follows {last:#x}")]
    Order { page: u64, last: u64 },
    #[error("page {page:#x} is in a parent image that was not given")]
    NoParent { page: u64 },
    #[error("an image on {have} others: at most {most} in all")]
    TooManyLayers { have: usize, most: usize },
    #[error("a chunk of {chunk_pages} pages in clusters of {cluster_pages}: both must be between 1 and {most}")]
    Packing { chunk_pages: u16, cluster_pages: u16, most: usize },
    #[error("compression failed")]
    Compression { source: io::Error },
}

/// What is wrong with bytes that should be part of an image.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Damage {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Layout(&'static str),
}

impl Damage {
    pub(crate) fn of(self, what: &'static str) -> Error {
        Error::Damaged { what, source: self }
    }
}
