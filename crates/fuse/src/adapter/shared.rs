//! What the threads of a superblock share.

use std::sync::Arc;

use fuser::Request;
use rustix::io::Errno;
use volume::{Attributes, Done, Engine, Ino, ROOT, Volume};

/// Set in the number of a request that the kernel repeats (FUSE_UNIQUE_RESEND).
pub(super) const ASKED_AGAIN: u64 = 1 << 63;

/// See the module.
pub(crate) struct Shared {
    volume: Arc<Volume>,
}

impl Shared {
    pub(crate) fn new(volume: Arc<Volume>) -> Self {
        Self { volume }
    }

    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.volume.engine()
    }

    /// A change that may be repeated: it survives this process before the kernel hears of it.
    pub(super) fn kept<T>(&self, changed: Result<T, Errno>) -> Result<T, Errno> {
        let answer = changed?;
        self.engine().write_log()?;
        Ok(answer)
    }

    /// A change that must happen once only. If the process before has made it, and died before the kernel heard of it, the kernel asks
    /// again: then `again` finds out what there is to say of it.
    pub(super) fn once<T>(
        &self,
        request: &Request,
        change: impl FnOnce() -> Result<T, Errno>,
        again: impl FnOnce(Done) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let unique = request.unique().0;
        let number = unique & !ASKED_AGAIN;
        if unique != number
            && let Some(done) = self.engine().done(number)
        {
            return again(done);
        }
        self.kept(change())
    }

    /// As [`Shared::once`], for a change of an inode.
    pub(super) fn inode_once(
        &self,
        request: &Request,
        change: impl FnOnce() -> Result<Attributes, Errno>,
    ) -> Result<Attributes, Errno> {
        self.once(request, change, |done| self.engine().attributes(done.ino.ok_or(Errno::IO)?))
    }

    /// As [`Shared::once`], for a change of which there is no more to say than that it happened.
    pub(super) fn done_once(&self, request: &Request, change: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        self.once(request, change, |_| Ok(()))
    }

    /// The kernel is told of an inode: it may use it, name or not, until it says that it has forgotten it.
    pub(super) fn told(&self, attributes: Attributes) -> Result<Attributes, Errno> {
        if attributes.ino != ROOT {
            self.engine().pin(attributes.ino)?;
        }
        Ok(attributes)
    }

    /// The kernel has forgotten what it was told `count` times; `is_known` asks it whether it has the inode all the same.
    pub(super) fn forgotten(&self, ino: Ino, count: u64, is_known: impl FnOnce() -> bool) {
        if let Err(errno) = self.engine().unpin_unless(ino, count, is_known) {
            tracing::warn!(ino = ino.0, %errno, "a file without a name could not be removed");
        }
    }
}
