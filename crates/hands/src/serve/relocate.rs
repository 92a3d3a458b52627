//! Renaming where the kernel refuses it with `EXDEV`: between filesystems, and directories of a lower layer on kernels whose overlays cannot
//! redirect them.
//!
//! A directory is made anew, and its files are renamed one by one. A file that the kernel does not rename is copied under a temporary name
//! first. A failure in between leaves each file whole in one of the two places.

use std::{
    ffi::OsString,
    fs::File,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, Stat, Timespec, Timestamps, chmod, fchmod, futimens, lstat, mkdir, open,
        readlink, rename, rmdir, symlink, unlink, utimensat,
    },
    io::Errno,
};

use super::{Job, compose, list, metadata, open as opened};
use crate::protocol::Problem;

/// Names of one directory.
const NAMES_MAX: usize = 1_000_000;

/// Renames `from` to `to`, whose parent is there.
pub(super) fn relocate(job: &Job, from: &Path, to: &Path) -> Result<(), Problem> {
    let mut levels: Vec<Level> = Vec::new();
    let mut next = Some((from.to_owned(), to.to_owned()));
    loop {
        job.check()?;
        if let Some((from, to)) = next.take() {
            levels.extend(step(job, from, to)?);
        }
        let Some(level) = levels.last_mut() else { return Ok(()) };
        match level.names.pop() {
            Some(name) => next = Some((level.from.join(&name), level.to.join(&name))),
            None => {
                level.finish()?;
                levels.pop();
            }
        }
    }
}

/// A directory whose files are being moved.
struct Level {
    from: PathBuf,
    to: PathBuf,
    stat: Stat,
    names: Vec<OsString>,
}

impl Level {
    fn finish(&self) -> Result<(), Problem> {
        // The times of the directory, which the files have changed. Only the owner may set them.
        let _ = utimensat(CWD, &self.to, &times(&self.stat), AtFlags::SYMLINK_NOFOLLOW);
        Ok(rmdir(&self.from)?)
    }
}

/// Moves one file. Of a directory that the kernel does not rename, the way to what is in it.
fn step(job: &Job, from: PathBuf, to: PathBuf) -> Result<Option<Level>, Problem> {
    match rename(&from, &to) {
        Err(Errno::XDEV) => {}
        Err(Errno::NOTEMPTY) => return Err(Problem::Exists),
        renamed => return renamed.map(|()| None).map_err(Problem::from),
    }
    let stat = lstat(&from)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => directory(from, to, stat).map(Some),
        FileType::RegularFile => file(job, &from, &to).map(|()| None),
        FileType::Symlink => link(&from, &to).map(|()| None),
        // A pipe, socket or device is bound to its place.
        _ => Err(Errno::XDEV.into()),
    }
}

fn directory(from: PathBuf, to: PathBuf, stat: Stat) -> Result<Level, Problem> {
    if to.starts_with(&from) {
        return Err(Errno::INVAL.into());
    }
    // As rename(2): an empty directory there is replaced.
    match rmdir(&to) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(Errno::NOTEMPTY | Errno::EXIST) => return Err(Problem::Exists),
        Err(error) => return Err(error.into()),
    }
    let names = list::names(&from, OFlags::NOFOLLOW, NAMES_MAX)?;
    mkdir(&to, Mode::RWXU)?;
    chmod(&to, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    // A filesystem may keep none.
    let _ = metadata::replace_at(&to, &metadata::read(&from));
    Ok(Level { from, to, stat, names })
}

fn file(job: &Job, from: &Path, to: &Path) -> Result<(), Problem> {
    let source = opened::regular(from)?;
    let partial = compose::partial(to)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | opened::NEVER_WAIT;
    let copy = File::from(open(&partial, flags, Mode::RUSR | Mode::WUSR)?);
    let fill = || {
        compose::append(job, &source.file, &copy)?;
        let _ = metadata::replace(&copy, &metadata::read(from));
        fchmod(&copy, Mode::from_raw_mode(source.stat.st_mode & 0o7777))?;
        futimens(&copy, &times(&source.stat))?;
        Ok(rename(&partial, to)?)
    };
    let filled: Result<(), Problem> = fill();
    match filled {
        Ok(()) => Ok(unlink(from)?),
        Err(problem) => {
            let _ = unlink(&partial);
            Err(problem)
        }
    }
}

fn link(from: &Path, to: &Path) -> Result<(), Problem> {
    let target = readlink(from, Vec::new())?;
    let partial = compose::partial(to)?;
    symlink(std::ffi::OsStr::from_bytes(target.as_bytes()), &partial)?;
    if let Err(error) = rename(&partial, to) {
        let _ = unlink(&partial);
        return Err(error.into());
    }
    Ok(unlink(from)?)
}

fn times(of: &Stat) -> Timestamps {
    let time = |seconds: i64, nanoseconds: i64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    Timestamps {
        last_access: time(of.st_atime, of.st_atime_nsec as i64),
        last_modification: time(of.st_mtime, of.st_mtime_nsec as i64),
    }
}
