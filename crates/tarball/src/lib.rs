//! Tar archives as POSIX.1-2001 (pax), GNU tar and older programs write them: members one after the other, with what their extended headers
//! say, and maps of files with holes.
//!
//! Blocks are read here; the `tar` crate knows their fields. (Its own reader takes extended headers of any size into memory, and none that have
//! line ends in a value, as access lists have them.) An archive may be anybody's: all that is taken into memory is bounded.

use std::io;

mod members;
pub mod pax;
mod sparse;

pub use self::{
    members::{Member, Members},
    sparse::{Extent, Sparse},
};

/// Bytes of a block: everything begins at a multiple of it.
pub const BLOCK: usize = 512;

/// Longest extended header of a member: 64 KiB of attributes, two paths, and much room.
pub const HEADER_BYTES_MAX: u64 = 1 << 20;

/// Most stretches of data of a file with holes: 16 MiB to remember.
pub const EXTENTS_MAX: usize = 1 << 20;

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum TarError {
    #[error("the archive cannot be read")]
    Read(#[source] io::Error),
    #[error("the archive is refused: {0}")]
    Archive(&'static str),
    #[error("{path:?} is refused: {why}")]
    Member { path: String, why: &'static str },
}

impl TarError {
    fn member(path: &[u8], why: &'static str) -> Self {
        Self::Member { path: String::from_utf8_lossy(path).into_owned(), why }
    }
}

/// Bytes from the end of `size` bytes to the next block.
pub fn padding(size: u64) -> usize {
    (BLOCK - (size % BLOCK as u64) as usize) % BLOCK
}
