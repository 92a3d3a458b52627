//! The open files of a process, as far as they have been read.

use std::collections::HashSet;

use crate::{
    image::{Added, Connection, FileLock, OpenFile, Pipe, UnixPair},
    refusal::Refusal,
};

/// The open files of a process.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) files: Vec<OpenFile>,
    pub(crate) pipes: Vec<Pipe>,
    pub(crate) pairs: Vec<UnixPair>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) locks: Vec<FileLock>,
    pub(crate) added: Added,
    pub(crate) refusals: Vec<Refusal>,
    /// Inodes of the process's sockets.
    pub(crate) socket_inodes: HashSet<u64>,
}

impl Files {
    /// Whether the process itself holds the socket with this inode.
    pub(crate) fn has_socket(&self, inode: u64) -> bool {
        self.socket_inodes.contains(&inode)
    }
}
