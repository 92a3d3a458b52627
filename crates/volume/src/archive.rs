//! Volumes as tar archives, for everybody's tools: pax format with owners, times in nanoseconds, extended attributes, holes (GNU's
//! format 1.0; all of its formats are read) and hard links. Both ways are streams: memory does not grow with the archive, but for hard links and directories, which are
//! remembered.

use std::io;

use rustix::io::Errno;
use tarball::TarError;

mod export;
mod import;

pub use self::{export::export, import::import};

/// Sockets, for which tar has no type, are empty files to others.
const KIND: &str = "PANDO.kind";
const SOCKET: &[u8] = b"socket";

/// Why an archive cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum ArchiveError {
    #[error("the archive cannot be written")]
    Write(#[source] io::Error),
    #[error(transparent)]
    Read(#[from] TarError),
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
