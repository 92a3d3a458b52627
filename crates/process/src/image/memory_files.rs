//! Files in memory (`/dev/shm`), as data.

use serde::{Deserialize, Serialize};

/// What the directory for shared memory holds: parents before what is in them, and further names of a file after its first.
pub(crate) type MemoryFiles = Vec<MemoryFile>;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryFile {
    /// As the sandbox sees it.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: MemoryFileKind,
    /// Without the kind of the file.
    pub(crate) mode: u32,
    /// Seconds and nanoseconds of the last access and change.
    pub(crate) times: [(i64, u64); 2],
    /// Extended attributes: names and values.
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MemoryFileKind {
    Directory,
    Regular {
        size: u64,
        content: Vec<Part>,
    },
    Link {
        to: Vec<u8>,
    },
    /// One more name of the file at this place.
    Name {
        of: usize,
    },
    /// A FIFO or a socket, as in `st_mode`.
    Special {
        kind: u32,
    },
}

/// Bytes of a file that are no hole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) offset: u64,
    #[serde(with = "serde_bytes")]
    pub(crate) bytes: Vec<u8>,
}

impl MemoryFile {
    /// Its bytes that are no holes.
    pub(crate) fn content(&self) -> &[Part] {
        match &self.kind {
            MemoryFileKind::Regular { content, .. } => content,
            MemoryFileKind::Directory
            | MemoryFileKind::Link { .. }
            | MemoryFileKind::Name { .. }
            | MemoryFileKind::Special { .. } => &[],
        }
    }
}

/// Whether every further name is one of a file before it.
pub(crate) fn are_sound(files: &[MemoryFile]) -> bool {
    files.iter().enumerate().all(|(at, file)| match file.kind {
        MemoryFileKind::Name { of } => of < at,
        MemoryFileKind::Directory
        | MemoryFileKind::Regular { .. }
        | MemoryFileKind::Link { .. }
        | MemoryFileKind::Special { .. } => true,
    })
}
