//! Copying single entries: their data, owners, modes, times and extended attributes.

use std::{
    ffi::{CStr, OsStr},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, chmod, chownat,
        copy_file_range, fchmod, fchown, ftruncate, futimens, ioctl_ficlone, lgetxattr, lremovexattr, mknodat, openat,
        readlinkat, seek, symlinkat, unlinkat, utimensat,
    },
    io::{Errno, pread, pwrite},
};

use crate::{
    attributes::{OPAQUE, entry_path, open_dir, set_xattr, xattr, xattr_names},
    machine::{IDENTITY_DIRECTORIES, IDENTITY_FILES, is_one_of},
};

/// Bytes that are copied at once where the kernel does not copy by itself.
const BUFFER_BYTES: usize = 256 << 10;

/// A directory, and a name in it.
pub(crate) type Place<'a> = (&'a OwnedFd, &'a CStr);

/// Makes what is neither a directory nor a regular file. `stat` has the owner of the copy; `shift`: how much higher ids are there.
pub(crate) fn make(from: Place<'_>, to: Place<'_>, stat: &Stat, shift: u32) -> rustix::io::Result<()> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::Symlink {
        let target = readlinkat(from.0, from.1, Vec::new())?;
        symlinkat(target, to.0, to.1)?;
        return finish_by_name(from, to, stat, shift);
    }
    // Whiteouts are character devices 0:0.
    mknodat(to.0, to.1, kind, Mode::from_raw_mode(stat.st_mode), stat.st_rdev)?;
    finish_by_name(from, to, stat, shift)?;
    // By a descriptor: the call takes a path and follows it, and a sandbox that runs may have put a link there meanwhile.
    let made = openat(to.0, to.1, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    chmod(format!("/proc/self/fd/{}", made.as_raw_fd()), Mode::from_raw_mode(stat.st_mode))
}

/// Opens what is to be copied. Not to wait for the writer of a pipe, if one has taken the file's place.
pub(crate) fn open_source((directory, name): Place<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::empty())
}

/// Removes an entry of the copy, and all below it.
pub(crate) fn remove(directory: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
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
pub(crate) fn has_identity_only(directory: &OwnedFd, path: &[u8]) -> rustix::io::Result<bool> {
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

/// Copies the data of a file of this size, with its holes, or shares it. `clone`: whether the filesystem may be able to, which is found out.
pub(crate) fn copy_data(from: &OwnedFd, to: &OwnedFd, size: u64, clone: &mut bool) -> rustix::io::Result<()> {
    if *clone {
        match ioctl_ficlone(to, from) {
            Ok(()) => return Ok(()),
            Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY) => *clone = false,
            Err(error) => return Err(error),
        }
    }
    // The size first: it makes the hole that data is then put into.
    ftruncate(to, size)?;
    let mut at = 0;
    while at < size {
        at = match seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error),
        };
        let end = seek(from, SeekFrom::Hole(at))?.min(size);
        copy_range(from, to, at, end)?;
        at = end;
    }
    Ok(())
}

fn copy_range(from: &OwnedFd, to: &OwnedFd, begin: u64, end: u64) -> rustix::io::Result<()> {
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
fn finish_by_name(from: Place<'_>, to: Place<'_>, stat: &Stat, shift: u32) -> rustix::io::Result<()> {
    let (uid, gid) = owner(stat);
    chownat(to.0, to.1, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    copy_xattrs(from, to, shift)?;
    utimensat(to.0, to.1, &times(stat), AtFlags::SYMLINK_NOFOLLOW)
}

/// The same of what is open as `file`. `stat` and `shift` as with [`make`].
pub(crate) fn finish_open(
    from: Place<'_>,
    to: Place<'_>,
    file: &OwnedFd,
    stat: &Stat,
    shift: u32,
) -> rustix::io::Result<()> {
    let (uid, gid) = owner(stat);
    // The owner first: a change of owner clears mode bits and file capabilities.
    fchown(file, Some(uid), Some(gid))?;
    copy_xattrs(from, to, shift)?;
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

fn copy_xattrs(from: Place<'_>, to: Place<'_>, shift: u32) -> rustix::io::Result<()> {
    let (from, to) = (entry_path(from.0, from.1), entry_path(to.0, to.1));
    for name in xattr_names(&from)? {
        let mut value = xattr(&from, &name)?;
        if shift != 0 && name.starts_with(ACL) {
            shift_acl(&mut value, shift);
        }
        set_xattr(&to, &name, &value)?;
    }
    Ok(())
}

/// How the names of access control lists begin.
const ACL: &[u8] = b"system.posix_acl_";

/// Shifts the users and groups of a list (struct posix_acl_xattr_entry in include/uapi/linux/posix_acl_xattr.h: tag, permissions, id).
fn shift_acl(list: &mut [u8], shift: u32) {
    const USER: u16 = 2;
    const GROUP: u16 = 8;
    let entries = list.get_mut(4..).unwrap_or_default();
    for entry in entries.as_chunks_mut::<8>().0 {
        let [tag_low, tag_high, _, _, id @ ..] = entry;
        if [USER, GROUP].contains(&u16::from_le_bytes([*tag_low, *tag_high])) {
            *id = u32::from_le_bytes(*id).wrapping_add(shift).to_le_bytes();
        }
    }
}

/// Removes attributes that the source has no more.
pub(crate) fn drop_xattrs(from: Place<'_>, to: Place<'_>) -> rustix::io::Result<()> {
    let (from, to) = (entry_path(from.0, from.1), entry_path(to.0, to.1));
    let wanted = xattr_names(&from)?;
    let gone = xattr_names(&to)?.into_iter().filter(|name| !wanted.contains(name));
    gone.into_iter().try_for_each(|name| lremovexattr(&to, &name))
}
