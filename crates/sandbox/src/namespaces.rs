//! The way into a sandbox's namespaces: of a child for good, of the calling thread for a short visit.
//!
//! A visit must end: if the way back fails, everything this process did from then on would happen inside a sandbox, so
//! it aborts instead (its sandboxes live on and are adopted by its successor).

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces};

use crate::{
    error::{Context, Error},
    ids::Ids,
    processors::Processors,
    spec::Users,
};

/// Where the namespaces of a sandbox are.
#[derive(Clone, Copy)]
pub(crate) struct Inside<'a> {
    /// pidfd of its pid 1.
    pub(crate) init: BorrowedFd<'a>,
    pub(crate) ids: Ids,
    pub(crate) users: Users,
    /// Those that its programs may run on; none: all.
    pub(crate) processors: Option<Processors>,
}

impl Inside<'_> {
    /// Whether only the program's user may be there, without privileges: also where root of the sandbox is the host's.
    pub(crate) fn is_for_program_only(self) -> bool {
        self.users == Users::ProgramOnly || !self.ids.are_own()
    }

    /// Enters `kinds` and the user namespace, in which the caller has all capabilities then, and whatever ids it had outside.
    pub(crate) fn enter(self, kinds: ThreadNameSpaceType) -> rustix::io::Result<()> {
        move_into_thread_name_spaces(self.init, kinds | self.ids.namespace())
    }

    /// Makes a mount that is attached nowhere show the owners on the disk as those inside. `path` is for errors.
    pub(crate) fn map(self, mount: impl AsFd, path: &Path) -> Result<(), Error> {
        self.ids.map(mount.as_fd(), self.init, path)
    }
}

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
