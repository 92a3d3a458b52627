//! Mount points: directories of a sandbox's root filesystem on which filesystems from outside are attached.
//!
//! Both making one and attaching to it is done by a child that enters the sandbox's mount namespace and exits: the caller could not come
//! back from there, because entering one also replaces the root and the working directory.
//!
//! The child is privileged and the tree may be a program's work, so a path is walked component by component, and never through a link,
//! out of the root, or into another mount.

use std::{
    ffi::CString,
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path},
};

use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, RawDir, ResolveFlags, Uid, chmodat, chownat, mkdirat, open, openat, openat2},
    io::Errno,
    mount::{MoveMountFlags, move_mount},
    process::{WaitId, WaitIdOptions, waitid},
    thread::{ThreadNameSpaceType, set_thread_res_gid, set_thread_res_uid},
};
use serde::{Deserialize, Serialize};
use sys::clone::{ForkOptions, fork};

use crate::{
    error::{Context, Error},
    init,
    namespaces::Inside,
    report::{self, Answer, Failure, Step},
    spec::PROGRAM_ID,
};

/// The content that a directory may have before it becomes a mount point. The mount hides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hides {
    /// Anything.
    Anything,
    /// Nothing: a directory with entries is refused.
    Nothing,
}

/// Makes a directory that belongs to the program's user; what is missing above it belongs to root. One that is there stays as it is.
pub(crate) fn make(sandbox: Inside<'_>, path: &Path, hides: Hides) -> Result<(), Error> {
    visit(sandbox, path, |components| {
        let mut directory = root()?;
        for (at, name) in components.iter().enumerate() {
            let owner = if at + 1 == components.len() { PROGRAM_ID } else { 0 };
            directory = match enter(directory.as_fd(), name) {
                Err(Failure { errno, .. }) if errno == Errno::NOENT.raw_os_error() => {
                    make_directory(directory.as_fd(), name, owner).step("make it")?;
                    enter(directory.as_fd(), name)?
                }
                found => found?,
            };
        }
        if hides == Hides::Nothing { check_empty(directory.as_fd()) } else { Ok(()) }
    })
}

fn check_empty(directory: BorrowedFd<'_>) -> Result<(), Failure> {
    let step = "hide the content of the directory from a program: name an empty or missing one";
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = openat(directory, ".", flags, Mode::empty()).step("open the directory")?;
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(readable, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry.step("list the directory")?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            return Err(Failure { step, errno: Errno::NOTEMPTY.raw_os_error() });
        }
    }
    Ok(())
}

/// Attaches `mount`, which is attached nowhere, at the directory `path`. Owners in its filesystem are those inside.
pub(crate) fn attach(sandbox: Inside<'_>, mount: BorrowedFd<'_>, path: &Path) -> Result<(), Error> {
    sandbox.map(mount, path)?;
    visit(sandbox, path, |components| {
        let walk = |directory: OwnedFd, name: &CString| enter(directory.as_fd(), name);
        let directory = components.iter().try_fold(root()?, walk)?;
        let here = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(mount, "", &directory, "", here).step("attach it there")
    })
}

fn root() -> Result<OwnedFd, Failure> {
    open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).step("open the root")
}

/// One step down. The errors say what is in the way: these numbers mean nothing to a user.
fn enter(directory: BorrowedFd<'_>, name: &CString) -> Result<OwnedFd, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(directory, name, flags, Mode::empty(), resolve).map_err(|errno| {
        let step = match errno {
            Errno::NOENT => "find all of the path",
            Errno::LOOP | Errno::NOTDIR => "go there through directories only: a part of the path is a link or a file",
            Errno::XDEV => "go there: another filesystem is attached on the way",
            _ => "open a directory of the path",
        };
        Failure { step, errno: errno.raw_os_error() }
    })
}

fn make_directory(parent: BorrowedFd<'_>, name: &CString, owner: u32) -> rustix::io::Result<()> {
    mkdirat(parent, name, Mode::RWXU)?;
    chownat(parent, name, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)), AtFlags::SYMLINK_NOFOLLOW)?;
    // Not by mkdir's mode: the caller's umask must not decide who can get there.
    chmodat(parent, name, Mode::from_raw_mode(0o755), AtFlags::empty())
}

/// Runs `work` on the components of `path` in a child as root of the sandbox, in its mount namespace. The caller must be single-threaded.
fn visit(sandbox: Inside<'_>, path: &Path, work: impl FnOnce(&[CString]) -> Result<(), Failure>) -> Result<(), Error> {
    let components = components(path)?;
    let (reader, writer) = report::channel()?;
    let child = fork(&ForkOptions::default(), || {
        let result = become_root(sandbox).step("enter the sandbox").and_then(|()| work(&components));
        i32::from(report::send(writer.as_fd(), result).is_err())
    });
    let child = child.doing("fork a process that visits the sandbox")?;
    drop(writer);
    let failed = |step: String, source: io::Error| Error::MountPoint { path: path.to_owned(), step, source };
    let visited = match report::receive(reader) {
        Ok(Answer::Ready) => {
            let reaped = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
            return reaped.map(drop).doing("reap a process that visited the sandbox");
        }
        Ok(Answer::Failed { step, source }) => failed(step, source),
        Ok(Answer::End) => failed("report".to_owned(), io::ErrorKind::UnexpectedEof.into()),
        Err(error) => error,
    };
    init::discard(&child);
    Err(visited)
}

/// The host's root has no id inside, and could make nothing there.
fn become_root(sandbox: Inside<'_>) -> rustix::io::Result<()> {
    sandbox.enter(ThreadNameSpaceType::MOUNT)?;
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
}

fn components(path: &Path) -> Result<Vec<CString>, Error> {
    let refused = |reason: &str| Error::MountPoint {
        path: path.to_owned(),
        step: "understand the path".to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidInput, reason),
    };
    let mut parts = path.components();
    if parts.next() != Some(Component::RootDir) {
        return Err(refused("it is not absolute"));
    }
    let names = parts.map(|part| match part {
        Component::Normal(name) => CString::new(name.as_bytes()).map_err(|_| refused("it has a zero byte")),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
            Err(refused("it has `..` in it"))
        }
    });
    let names: Vec<CString> = names.collect::<Result<_, _>>()?;
    if names.is_empty() { Err(refused("it is the root")) } else { Ok(names) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_absolute_and_leads_down() {
        let names = |path: &str| components(Path::new(path)).map(|names| names.len()).ok();
        assert_eq!([names("/a"), names("/a/b/"), names("/a/./b")], [Some(1), Some(2), Some(2)]);
        assert_eq!([names("/"), names(""), names("a"), names("/a/../b"), names("/a\0")], [None; 5]);
    }
}
