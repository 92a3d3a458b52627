//! Open files whose names were deleted.

use std::{
    fs::Metadata,
    os::{
        fd::AsFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::Path,
};

use rustix::fs::{FileType, Mode, OFlags};

use crate::{
    image::FileKind,
    observe::{listed::Listed, root},
    refusal::Refusal,
};

/// How the kernel marks a name that was deleted. A file may be called so.
pub(crate) const MARK: &[u8] = b" (deleted)";

/// Whether `path` names this file in the root filesystem of process `pid`: the file itself, not one that a link leads to.
pub(crate) fn is_named(pid: i32, path: &[u8], status: &Metadata) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |root| rustix::fs::openat2(root, std::ffi::OsStr::from_bytes(path), flags, Mode::empty(), root::INSIDE);
    let named = root::open_root(pid).ok().and_then(|root| open(root).and_then(rustix::fs::fstat).ok());
    named.is_some_and(|named| named.st_ino == status.ino() && named.st_dev == status.dev())
}

/// Whether the name of an open file was deleted. Its number of links does not tell: an overlay shows that of the layer's file.
pub(crate) fn is_gone(pid: i32, listed: &Listed, status: &Metadata) -> bool {
    status.nlink() == 0 || (listed.link.ends_with(MARK) && !is_named(pid, &listed.link, status))
}

/// Whether nothing but descriptors and mappings has a regular file any more. Through a descriptor that can write, what was written would be seen
/// by another name if it had one.
pub(crate) fn is_file_gone(pid: i32, listed: &Listed, status: &Metadata) -> bool {
    let writes = listed.flags & libc::O_ACCMODE != libc::O_RDONLY;
    status.nlink() == 0 || (!writes && is_gone(pid, listed, status))
}

/// A deleted directory is empty for ever. A copy makes one where it was, and removes it again, if the program may.
pub(crate) fn directory(pid: i32, listed: &Listed, status: &Metadata) -> Result<FileKind, Refusal> {
    let path = listed.link.strip_suffix(MARK).unwrap_or(&listed.link);
    if may_make(pid, path).unwrap_or(false) {
        return Ok(FileKind::GoneDirectory { path: path.to_vec(), mode: status.mode() & 0o7777 });
    }
    Err(Refusal::DeletedFile { fd: listed.fd, path: String::from_utf8_lossy(&listed.link).into_owned() })
}

/// Whether nothing is at this path, and the program's user may make a directory there.
fn may_make(pid: i32, path: &[u8]) -> Option<bool> {
    const MAY_MAKE: u32 = 0o3;
    let root = root::open_root(pid).ok()?;
    if root::open_inside(root.as_fd(), path).is_ok() {
        return Some(false);
    }
    let above = Path::new(std::ffi::OsStr::from_bytes(path)).parent()?;
    let above = root::open_inside(root.as_fd(), above.as_os_str().as_bytes()).and_then(rustix::fs::fstat).ok()?;
    let user = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let as_owner = above.st_uid == user && above.st_mode >> 6 & MAY_MAKE == MAY_MAKE;
    let may = as_owner || above.st_mode & MAY_MAKE == MAY_MAKE;
    Some(FileType::from_raw_mode(above.st_mode).is_dir() && may)
}
