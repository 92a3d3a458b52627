//! The way into a sandbox's namespaces, of a child for good.

use std::{
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};

use crate::{error::Error, ids::Ids, processors::Processors, spec::Users};

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
