//! Volumes as tar archives, for everybody's tools: pax format with owners, times in nanoseconds, extended attributes, holes (GNU's
//! format 1.0) and hard links. Both ways are streams: memory does not grow with the archive, but for hard links and directories, which are
//! remembered.
//!
//! Blocks are written and read here; the `tar` crate knows their fields. (Its own reader takes extended headers of any size into memory.)

use std::io;

use rustix::io::Errno;

mod export;
mod import;
mod member;
mod pax;

pub use self::{export::export, import::import};

/// Bytes of a block: everything begins at a multiple of it.
const BLOCK: usize = 512;

/// Holes are told by these records, of which the first two say 1.0; the list of what is no hole is before the data.
const SPARSE_MAJOR: &str = "GNU.sparse.major";
const SPARSE_MINOR: &str = "GNU.sparse.minor";
const SPARSE_NAME: &str = "GNU.sparse.name";
const SPARSE_SIZE: &str = "GNU.sparse.realsize";
/// Before the name of an extended attribute.
const XATTR: &[u8] = b"SCHILY.xattr.";
/// Sockets, for which tar has no type, are empty files to others.
const KIND: &str = "PANDO.kind";
const SOCKET: &[u8] = b"socket";

/// Why an archive cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum ArchiveError {
    #[error("the archive cannot be {action}")]
    Stream { action: &'static str, source: io::Error },
    #[error("{path:?} is refused: {why}")]
    Refused { path: String, why: &'static str },
    #[error("{path:?} cannot be {action} in the volume")]
    Volume { path: String, action: &'static str, source: Errno },
}

impl ArchiveError {
    fn volume(action: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> Self {
        move |source| Self::Volume { path: shown(path), action, source }
    }

    fn refused(path: &[u8], why: &'static str) -> Self {
        Self::Refused { path: shown(path), why }
    }
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Bytes from the end of `size` bytes to the next block.
fn padding(size: u64) -> usize {
    (BLOCK - (size % BLOCK as u64) as usize) % BLOCK
}
