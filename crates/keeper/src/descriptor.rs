//! Descriptors: the limit of their number, and descriptors in the async runtime.

use std::{io, os::fd::OwnedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::unix::AsyncFd;

/// The number of descriptors that server and keeper need at most. The keeper holds about four for each of several thousand sandboxes.
const DESCRIPTORS_WANTED: u64 = 1 << 16;

/// Raises this process's soft limit of descriptors, up to the number it needs and the hard limit.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(DESCRIPTORS_WANTED).min(DESCRIPTORS_WANTED);
    if limit.current.is_some_and(|current| current < wanted) {
        // If it fails, the node can only hold fewer sandboxes.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
}

/// How many descriptors this process may have.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS_WANTED)
}

/// Makes `fd` non-blocking and registers it with the runtime.
pub fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    // Deprecated because some types could return another descriptor each time. `OwnedFd` cannot, and the successor is unsafe, which this crate
    // does not use.
    #[allow(deprecated)]
    AsyncFd::new(fd)
}
