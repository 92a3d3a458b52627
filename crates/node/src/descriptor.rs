//! Descriptors in the async runtime.

use std::{io, os::fd::OwnedFd};

use tokio::io::unix::AsyncFd;

/// Makes `fd` non-blocking and has the runtime watch it.
pub(crate) fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    // Deprecated because a type of the caller's could answer with another descriptor each time. `OwnedFd` cannot, and
    // the successor is an unsafe function, which this crate has none of.
    #[allow(deprecated)]
    AsyncFd::new(fd)
}
