//! Descriptors: how many there may be, and those in the async runtime.

use std::{io, os::fd::OwnedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::unix::AsyncFd;

/// What server and keeper need at most: the keeper holds about four for each of some thousand sandboxes.
const DESCRIPTORS_WANTED: u64 = 1 << 16;

/// Raises this process's soft limit of descriptors as far as it needs and may.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(DESCRIPTORS_WANTED).min(DESCRIPTORS_WANTED);
    if limit.current.is_some_and(|current| current < wanted) {
        // It only lowers how many sandboxes there can be.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
}

/// Makes `fd` non-blocking and has the runtime watch it.
pub fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    // Deprecated because a type of the caller's could answer with another descriptor each time. `OwnedFd` cannot, and
    // the successor is an unsafe function, which this crate has none of.
    #[allow(deprecated)]
    AsyncFd::new(fd)
}
