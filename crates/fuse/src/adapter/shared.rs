//! What the threads of a superblock share.

use std::sync::Arc;

use rustix::io::Errno;
use volume::{Attributes, Engine, Ino, ROOT, Volume};

use crate::handshake::Beginning;

/// See the module.
pub(crate) struct Shared {
    volume: Arc<Volume>,
    beginning: Beginning,
}

impl Shared {
    pub(crate) fn new(volume: Arc<Volume>, beginning: Beginning) -> Self {
        Self { volume, beginning }
    }

    pub(super) fn volume(&self) -> &Volume {
        &self.volume
    }

    pub(super) fn engine(&self) -> &Engine {
        self.volume.engine()
    }

    /// A change has happened; it survives this process before the kernel hears of it.
    pub(super) fn kept<T>(&self, changed: Result<T, Errno>) -> Result<T, Errno> {
        let answer = changed?;
        self.engine().write_log()?;
        Ok(answer)
    }

    /// The kernel is told of an inode: it may use it, name or not, until it says that it has forgotten it.
    pub(super) fn told(&self, attributes: Attributes) -> Result<Attributes, Errno> {
        if attributes.ino != ROOT {
            self.engine().pin(attributes.ino)?;
        }
        Ok(attributes)
    }

    /// The kernel has forgotten what it was told `count` times. What it was told by a process before nobody knows.
    pub(super) fn forgotten(&self, ino: Ino, count: u64) {
        if self.beginning == Beginning::New
            && let Err(errno) = self.engine().unpin(ino, count)
        {
            tracing::warn!(ino = ino.0, %errno, "a file without a name could not be removed");
        }
    }

    /// Inodes that the kernel may know.
    pub(crate) fn known(&self) -> Vec<Ino> {
        Vec::new()
    }
}
