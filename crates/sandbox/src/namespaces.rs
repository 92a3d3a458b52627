//! Short visits of the calling thread to a sandbox's namespaces.
//!
//! A visit must end: if the way back fails, everything this process did from then on would happen inside a sandbox, so
//! it aborts instead (its sandboxes live on and are adopted by its successor).

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces};

use crate::error::{Context, Error};

/// Runs `visit` so that the children it forks belong to the pid namespace of `process`; it stays in its own.
pub(crate) fn with_children_in_pid_namespace<T>(
    process: BorrowedFd<'_>,
    visit: impl FnOnce() -> T,
) -> Result<T, Error> {
    let way = (ThreadNameSpaceType::PROCESS_ID, LinkNameSpaceType::ProcessID, Path::new("/proc/self/ns/pid"));
    with(process, way, visit)
}

/// Runs `visit` in the network namespace of `process`.
pub(crate) fn in_network_namespace<T>(process: BorrowedFd<'_>, visit: impl FnOnce() -> T) -> Result<T, Error> {
    let way = (ThreadNameSpaceType::NETWORK, LinkNameSpaceType::Network, Path::new("/proc/thread-self/ns/net"));
    with(process, way, visit)
}

fn with<T>(
    process: BorrowedFd<'_>,
    (kind, kind_back, own): (ThreadNameSpaceType, LinkNameSpaceType, &Path),
    visit: impl FnOnce() -> T,
) -> Result<T, Error> {
    let home = File::open(own).at("open", own)?;
    move_into_thread_name_spaces(process, kind).doing("enter the sandbox")?;
    let way_back = WayBack { home, kind: kind_back };
    let result = visit();
    drop(way_back);
    Ok(result)
}

/// Goes back when dropped, so that a panic does too.
struct WayBack {
    home: File,
    kind: LinkNameSpaceType,
}

impl Drop for WayBack {
    fn drop(&mut self) {
        if let Err(error) = move_into_link_name_space(self.home.as_fd(), Some(self.kind)) {
            tracing::error!(%error, "cannot leave a sandbox's namespace: aborting");
            std::process::abort();
        }
    }
}
