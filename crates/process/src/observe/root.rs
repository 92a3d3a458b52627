//! The root filesystem of a process, looked at from outside.

use std::{
    ffi::OsStr,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::error::{Context, Error};

/// Never leaves the directory that is looked in, and never follows a link.
pub(crate) const INSIDE: ResolveFlags =
    ResolveFlags::IN_ROOT.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// The root directory of a process.
pub(crate) fn open_root(pid: i32) -> Result<OwnedFd, Error> {
    let path = format!("/proc/{pid}/root");
    rustix::fs::open(&path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).on("open", path)
}

/// Opens `path` below `root` for looking at only; never leaves `root`, never follows a link.
pub(crate) fn open_inside(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat2(root, OsStr::from_bytes(path), OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), INSIDE)
}
