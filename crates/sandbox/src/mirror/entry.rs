//! Single entries: their data, owners, modes, times and extended attributes.

use std::{
    ffi::{CStr, CString, OsStr},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, chownat, copy_file_range, fchmod, fchown,
        futimens, lgetxattr, lremovexattr, mknodat, readlinkat, symlinkat, unlinkat, utimensat,
    },
    io::{Errno, pread, pwrite},
};

use super::Level;
use crate::{
    attributes::{OPAQUE, entry_path, open_dir, set_xattr, xattr, xattr_names},
    machine::{IDENTITY_DIRECTORIES, IDENTITY_FILES, is_one_of},
};

/// Bytes that are copied at once where the kernel does not copy by itself.
const BUFFER_BYTES: usize = 256 << 10;

/// Makes what is neither a directory nor a regular file.
pub(super) fn make(level: &Level, name: &CString, stat: &Stat, kind: FileType) -> rustix::io::Result<()> {
    if kind == FileType::Symlink {
        let target = readlinkat(&level.from, name, Vec::new())?;
        symlinkat(target, &level.to, name)?;
        return finish_by_name(level, name, stat);
    }
    // Whiteouts are character devices 0:0.
    mknodat(&level.to, name, kind, Mode::from_raw_mode(stat.st_mode), stat.st_rdev)?;
    finish_by_name(level, name, stat)?;
    rustix::fs::chmodat(&level.to, name, Mode::from_raw_mode(stat.st_mode), AtFlags::empty())
}

/// Removes an entry of the copy, and all below it.
pub(super) fn remove(directory: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {
            let path = entry_path(directory, name);
            sys::tree::remove(Path::new(OsStr::from_bytes(&path))).map_err(|_| Errno::IO)
        }
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Whether the directory is one that every sandbox has of its own, whose attributes are what shows, with nothing in it but what every one has.
pub(super) fn has_identity_only(directory: &OwnedFd, path: &[u8]) -> rustix::io::Result<bool> {
    if !is_one_of(&IDENTITY_DIRECTORIES, path) {
        return Ok(false);
    }
    for name in sys::tree::list(directory)? {
        let inner = [path, b"/", name.to_bytes()].concat();
        let is_own = is_one_of(&IDENTITY_FILES, &inner)
            || is_one_of(&IDENTITY_DIRECTORIES, &inner) && has_identity_only(&open_dir(directory, &name)?, &inner)?;
        if !is_own {
            return Ok(false);
        }
    }
    // An opaque one hides what is below it.
    match lgetxattr(entry_path(directory, c"."), OPAQUE, &mut [0; 1][..]) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(true),
        opaque => opaque.map(|_| false),
    }
}

pub(super) fn copy_range(from: &OwnedFd, to: &OwnedFd, begin: u64, end: u64) -> rustix::io::Result<()> {
    let (mut read_at, mut write_at) = (begin, begin);
    while read_at < end {
        let length = usize::try_from(end - read_at).unwrap_or(usize::MAX);
        // Zero: the file was cut meanwhile; the rest stays a hole.
        match copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), length) {
            Ok(0) => break,
            Ok(_) => {}
            // The kernel copies within one kind of filesystem only.
            Err(Errno::XDEV) => return copy_through(from, to, read_at, end),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn copy_through(from: &OwnedFd, to: &OwnedFd, mut at: u64, end: u64) -> rustix::io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    while at < end {
        let most = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        let read = pread(from, &mut buffer[..most], at)?;
        if read == 0 {
            break;
        }
        let mut written = 0;
        while written < read {
            written += pwrite(to, &buffer[written..read], at + written as u64)?;
        }
        at += read as u64;
    }
    Ok(())
}

/// Owner, extended attributes and times of what cannot be opened.
fn finish_by_name(level: &Level, name: &CString, stat: &Stat) -> rustix::io::Result<()> {
    let (uid, gid) = owner(stat);
    chownat(&level.to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    copy_xattrs((&level.from, name), (&level.to, name))?;
    utimensat(&level.to, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)
}

/// The same of what is open as `file`.
pub(super) fn finish_open(from: Place<'_>, to: Place<'_>, file: &OwnedFd, stat: &Stat) -> rustix::io::Result<()> {
    let (uid, gid) = owner(stat);
    // The owner first: a change of owner clears mode bits and file capabilities.
    fchown(file, Some(uid), Some(gid))?;
    copy_xattrs(from, to)?;
    fchmod(file, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    futimens(file, &times(stat))
}

fn owner(stat: &Stat) -> (Uid, Gid) {
    (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid))
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds: i64, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as i64 };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// A directory, and a name in it.
pub(super) type Place<'a> = (&'a OwnedFd, &'a CStr);

fn copy_xattrs(from: Place<'_>, to: Place<'_>) -> rustix::io::Result<()> {
    let (from, to) = (entry_path(from.0, from.1), entry_path(to.0, to.1));
    for name in xattr_names(&from)? {
        set_xattr(&to, &name, &xattr(&from, &name)?)?;
    }
    Ok(())
}

/// Removes attributes that the source has no more.
pub(super) fn drop_xattrs(from: Place<'_>, to: Place<'_>) -> rustix::io::Result<()> {
    let (from, to) = (entry_path(from.0, from.1), entry_path(to.0, to.1));
    let wanted = xattr_names(&from)?;
    let gone = xattr_names(&to)?.into_iter().filter(|name| !wanted.contains(name));
    gone.into_iter().try_for_each(|name| lremovexattr(&to, &name))
}
