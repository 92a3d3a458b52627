//! Copying an overlay's upper directory exactly: whiteouts, opaque marks, owners, modes, times, links, holes, pipes,
//! devices and sockets. Only what makes a sandbox a machine of its own is left out: every one has its own.

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    os::fd::OwnedFd,
    path::Path,
    vec,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, chownat, copy_file_range,
        fchmod, fchown, ftruncate, futimens, ioctl_ficlone, lgetxattr, linkat, mkdirat, mknodat, openat, readlinkat,
        seek, statat, symlinkat, utimensat,
    },
    io::Errno,
};

use crate::{
    attributes::{LEVELS_MAX, OPAQUE, entry_path, open_dir, set_xattr, xattr, xattr_names},
    error::{Context, Error},
    machine::{IDENTITY_DIRECTORIES, IDENTITY_FILES, is_one_of},
    tree,
};

/// Copies `source` to the new directory `dest`; a failure leaves none.
pub(crate) fn copy(source: &Path, dest: &Path) -> Result<(), Error> {
    let from = open_dir(CWD, source).at("open", source)?;
    mkdirat(CWD, dest, Mode::RWXU).at("create", dest)?;
    let result = copy_into(from, source, dest);
    if result.is_err() {
        // The first error is the one to report.
        let _ = tree::remove(dest);
    }
    result
}

fn copy_into(from: OwnedFd, source: &Path, dest: &Path) -> Result<(), Error> {
    let to = open_dir(CWD, dest).at("open", dest)?;
    let mut copier = Copier { links: HashMap::new(), root: rustix::io::dup(&to).at("open", dest)?, clone: true };
    let mut levels = vec![Level::enter(from, to, Vec::new()).at("list", source)?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.next() else {
            level.finish().at("set the attributes of", dest)?;
            levels.pop();
            continue;
        };
        let deeper = copier.copy_entry(level, &name).at("copy", &source.join(name.to_string_lossy().as_ref()))?;
        levels.extend(deeper);
        if levels.len() > LEVELS_MAX {
            return Err(Error::TooDeep { path: source.to_owned(), levels: LEVELS_MAX });
        }
    }
    Ok(())
}

/// A directory that is being copied.
struct Level {
    from: OwnedFd,
    to: OwnedFd,
    /// Below the root of the copy, with a slash at its end unless empty.
    path: Vec<u8>,
    names: vec::IntoIter<CString>,
}

impl Level {
    fn enter(from: OwnedFd, to: OwnedFd, path: Vec<u8>) -> rustix::io::Result<Self> {
        let names = tree::list(&from)?.into_iter();
        Ok(Self { from, to, path, names })
    }

    /// Attributes last: the times would not survive the entries.
    fn finish(&self) -> rustix::io::Result<()> {
        finish_open((&self.from, c"."), (&self.to, c"."), &self.to, &rustix::fs::fstat(&self.from)?)
    }
}

struct Copier {
    /// Files with several names: device and inode of the source, and where the first copy is below `root`.
    links: HashMap<(u64, u64), Vec<u8>>,
    root: OwnedFd,
    /// Whether the filesystem may be able to share data between files.
    clone: bool,
}

impl Copier {
    /// Copies one entry; a directory is made and returned, to be gone through next.
    fn copy_entry(&mut self, level: &Level, name: &CString) -> rustix::io::Result<Option<Level>> {
        let stat = statat(&level.from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let path = [&level.path, name.to_bytes()].concat();
        if kind == FileType::Directory {
            let from = open_dir(&level.from, name)?;
            if has_identity_only(&from, &path)? {
                return Ok(None);
            }
            mkdirat(&level.to, name, Mode::RWXU)?;
            return Level::enter(from, open_dir(&level.to, name)?, [&path, &b"/"[..]].concat()).map(Some);
        }
        // Whoever gets the copy has its own.
        if is_one_of(&IDENTITY_FILES, &path) {
            return Ok(None);
        }
        let key = (stat.st_dev, stat.st_ino);
        if let Some(first) = self.links.get(&key) {
            linkat(&self.root, first.as_slice(), &level.to, name, AtFlags::empty())?;
            return Ok(None);
        }
        match kind {
            FileType::RegularFile => self.copy_file(level, name, &stat)?,
            FileType::Symlink => {
                let target = readlinkat(&level.from, name, Vec::new())?;
                symlinkat(target, &level.to, name)?;
                finish_by_name(level, name, &stat)?;
            }
            // Whiteouts are character devices 0:0.
            _ => {
                mknodat(&level.to, name, kind, Mode::from_raw_mode(stat.st_mode), stat.st_rdev)?;
                finish_by_name(level, name, &stat)?;
                rustix::fs::chmodat(&level.to, name, Mode::from_raw_mode(stat.st_mode), AtFlags::empty())?;
            }
        }
        if stat.st_nlink > 1 {
            self.links.insert(key, path);
        }
        Ok(None)
    }

    fn copy_file(&mut self, level: &Level, name: &CString, stat: &Stat) -> rustix::io::Result<()> {
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let from = openat(&level.from, name, flags | OFlags::RDONLY, Mode::empty())?;
        let to = openat(&level.to, name, flags | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, Mode::RWXU)?;
        if stat.st_size > 0 {
            self.copy_data(&from, &to, stat.st_size as u64)?;
        }
        finish_open((&level.from, name), (&level.to, name), &to, stat)
    }

    fn copy_data(&mut self, from: &OwnedFd, to: &OwnedFd, size: u64) -> rustix::io::Result<()> {
        if self.clone {
            match ioctl_ficlone(to, from) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY) => self.clone = false,
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
}

/// Whether the directory is one that every sandbox has of its own, whose attributes are what shows, with nothing in it but what every one has.
fn has_identity_only(directory: &OwnedFd, path: &[u8]) -> rustix::io::Result<bool> {
    if !is_one_of(&IDENTITY_DIRECTORIES, path) {
        return Ok(false);
    }
    for name in tree::list(directory)? {
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

fn copy_range(from: &OwnedFd, to: &OwnedFd, begin: u64, end: u64) -> rustix::io::Result<()> {
    let (mut read_at, mut write_at) = (begin, begin);
    while read_at < end {
        let length = usize::try_from(end - read_at).unwrap_or(usize::MAX);
        // Zero: the file was cut meanwhile; the rest stays a hole.
        if copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), length)? == 0 {
            break;
        }
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
fn finish_open(from: Place<'_>, to: Place<'_>, file: &OwnedFd, stat: &Stat) -> rustix::io::Result<()> {
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
type Place<'a> = (&'a OwnedFd, &'a CStr);

fn copy_xattrs(from: Place<'_>, to: Place<'_>) -> rustix::io::Result<()> {
    let (from, to) = (entry_path(from.0, from.1), entry_path(to.0, to.1));
    for name in xattr_names(&from)? {
        set_xattr(&to, &name, &xattr(&from, &name)?)?;
    }
    Ok(())
}
