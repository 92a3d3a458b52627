//! Copying what is in an archive, with the meaning that `COPY` of a Dockerfile has: directories are merged, files and links replaced.
//!
//! Every path is walked by the kernel from the sandbox's root, so nothing that the archive or the sandbox says leads outside. Names out of the
//! archive have no `..`, and links inside it are made, not followed.

use std::{
    cell::Cell,
    ffi::OsStr,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::symlink},
    },
    path::{Component, Path, PathBuf},
};

use base::limits::{COPY_BYTES_MAX, COPY_ENTRIES_MAX};
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, chmod, chownat, fchmod, fchown, link,
        lstat, mkdirat, open, stat, unlink, utimensat,
    },
    io::Errno,
    process::{Gid, Uid},
};
use tar::EntryType;
use tarball::{Extent, Member, Members, Sparse, TarError};

use super::{Job, change::make_parents_with, write};
use crate::protocol::{CopySource, Copying, FromHand, Opened, Problem};

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 128 << 10;

/// Copies into `target` what comes out of `pipe`.
pub(super) fn unpack(job: &Job, target: &Path, copying: &Copying, pipe: OwnedFd) -> Result<FromHand, Problem> {
    let wrong = || Problem::BadArchive { why: format!("{:?} is no path inside it", copying.source) };
    let source = CopySource::parse(&copying.source).ok_or_else(wrong)?;
    job.say(&FromHand::Opened(Opened { size: 0, length: 0, modified_ns: 0 }));
    let incoming = Incoming { job, pipe: &pipe, bytes: Cell::new(0), problem: Cell::new(None) };
    let mut unpacking = Unpacking { target, copying, source, entries: 0, bytes: 0, found: false };
    let unpacked = unpacking.all(&incoming);
    let (total, problem) = (incoming.bytes.get(), incoming.problem.take());
    // The node hears of a failure by the answer. It must not wait for room in the pipe meanwhile.
    drop(pipe);
    problem.map_or(unpacked, Err)?;
    write::committed(job, total)?;
    job.entry(target)
}

/// What the node sends.
struct Incoming<'a> {
    job: &'a Job,
    pipe: &'a OwnedFd,
    bytes: Cell<u64>,
    problem: Cell<Option<Problem>>,
}

impl Read for &Incoming<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match write::read_some(self.job, self.pipe, into) {
            Ok(length) => {
                self.bytes.set(self.bytes.get() + length as u64);
                Ok(length)
            }
            Err(problem) => {
                self.problem.set(Some(problem));
                Err(io::ErrorKind::Other.into())
            }
        }
    }
}

/// A name out of the archive: relative, without `.` and `..`.
fn clean(path: &[u8]) -> Result<PathBuf, Problem> {
    let mut cleaned = PathBuf::new();
    for component in Path::new(OsStr::from_bytes(path)).components() {
        match component {
            Component::Normal(name) => cleaned.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                let path = String::from_utf8_lossy(path).into_owned();
                return Err(Problem::BadArchive { why: format!("{path:?} leads out of it") });
            }
        }
    }
    Ok(cleaned)
}

struct Unpacking<'a> {
    target: &'a Path,
    copying: &'a Copying,
    source: CopySource,
    entries: u64,
    bytes: u64,
    found: bool,
}

impl Unpacking<'_> {
    fn all(&mut self, incoming: &Incoming<'_>) -> Result<(), Problem> {
        if self.copying.source.is_empty() {
            self.make_directory(self.target, 0o755)?;
            self.found = true;
        }
        let mut members = Members::new(incoming);
        while let Some(member) = members.next_member().map_err(bad)? {
            incoming.job.check_cancelled()?;
            self.entries += 1;
            if self.entries > COPY_ENTRIES_MAX {
                return Err(Problem::BadArchive { why: format!("it has more than {COPY_ENTRIES_MAX} files") });
            }
            self.add(&member, &mut members)?;
        }
        if self.found {
            return Ok(());
        }
        Err(Problem::BadArchive { why: format!("it has nothing that matches {:?}", self.copying.source) })
    }

    /// Where a member goes.
    fn place(&self, path: &[u8], is_directory: bool) -> Result<Option<PathBuf>, Problem> {
        let path = clean(path)?;
        let Some(below) = self.source.below(&path) else { return Ok(None) };
        if !below.as_os_str().is_empty() {
            return Ok(Some(self.target.join(below)));
        }
        // What was asked for itself: a directory is merged into the target, a file is the target or goes into it.
        let is_into = self.source.is_pattern()
            || self.target.as_os_str().as_bytes().ends_with(b"/")
            || stat(self.target).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
        let name = path.file_name().filter(|_| is_into && !is_directory);
        Ok(Some(name.map_or_else(|| self.target.to_owned(), |name| self.target.join(name))))
    }

    fn add(&mut self, member: &Member, members: &mut Members<impl Read>) -> Result<(), Problem> {
        let kind = member.header.entry_type();
        let is_directory = kind == EntryType::Directory;
        let Some(place) = self.place(&member.path, is_directory)? else { return Ok(()) };
        self.found = true;
        let mode = self.copying.mode.unwrap_or_else(|| member.header.mode().unwrap_or(0o644) & 0o7777);
        if is_directory {
            return self.make_directory(&place, mode);
        }
        make_parents_with(&place, &|made| self.own(made))?;
        clear(&place)?;
        match kind {
            EntryType::Symlink => {
                symlink(OsStr::from_bytes(&member.link), &place)?;
                self.own(&place)
            }
            EntryType::Link => match self.place(&member.link, false)? {
                Some(first) => Ok(link(&first, &place)?),
                None => Err(Problem::BadArchive {
                    why: format!("{:?} is a link to what is not copied", String::from_utf8_lossy(&member.path)),
                }),
            },
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.make_file(&place, mode, member, members)
            }
            other => Err(Problem::BadArchive {
                why: format!(
                    "{:?} is neither file, directory nor link: {other:?}",
                    String::from_utf8_lossy(&member.path)
                ),
            }),
        }
    }

    fn make_directory(&self, place: &Path, mode: u32) -> Result<(), Problem> {
        make_parents_with(place, &|made| self.own(made))?;
        match stat(place) {
            // Its own mode and owner stay.
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => return Ok(()),
            Ok(_) => return Err(Problem::ExistsAsFile),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        mkdirat(CWD, place, Mode::from_raw_mode(0o700))?;
        self.own(place)?;
        Ok(chmod(place, Mode::from_raw_mode(mode))?)
    }

    fn own(&self, place: &Path) -> Result<(), Problem> {
        let (user, group) = (Uid::from_raw(self.copying.uid), Gid::from_raw(self.copying.gid));
        Ok(chownat(CWD, place, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn make_file(
        &mut self,
        place: &Path,
        mode: u32,
        member: &Member,
        members: &mut Members<impl Read>,
    ) -> Result<(), Problem> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(open(place, flags, Mode::from_raw_mode(0o600))?);
        self.fill(&mut file, member, members)?;
        fchown(&file, Some(Uid::from_raw(self.copying.uid)), Some(Gid::from_raw(self.copying.gid)))?;
        // After the owner: a change of that takes set-id bits.
        fchmod(&file, Mode::from_raw_mode(mode))?;
        let tv_sec = i64::try_from(member.header.mtime().unwrap_or(0)).unwrap_or(0);
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec, tv_nsec: 0 },
        };
        Ok(utimensat(CWD, place, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn fill(&mut self, file: &mut File, member: &Member, members: &mut Members<impl Read>) -> Result<(), Problem> {
        let Sparse { extents, size } = members.stretches(member).map_err(bad)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        for Extent { at, bytes } in extents {
            file.seek(SeekFrom::Start(at))?;
            let mut left = bytes;
            while left > 0 {
                let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                members.read_exact(&member.path, &mut buffer[..most]).map_err(bad)?;
                self.bytes += most as u64;
                if self.bytes > COPY_BYTES_MAX {
                    return Err(Problem::BadArchive { why: format!("it has more than {} GiB", COPY_BYTES_MAX >> 30) });
                }
                file.write_all(&buffer[..most])?;
                left -= most as u64;
            }
        }
        Ok(file.set_len(size)?)
    }
}

/// Makes room for a file or link: one that is there goes, a directory stays.
fn clear(place: &Path) -> Result<(), Problem> {
    match lstat(place) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => Err(Problem::IsDirectory),
        Ok(_) => Ok(unlink(place)?),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn bad(error: TarError) -> Problem {
    match error {
        // The pipe's own problem is known by then.
        TarError::Read(error) => error.into(),
        refused => Problem::BadArchive { why: refused.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside() {
        assert_eq!(clean(b"./a/./b").unwrap(), Path::new("a/b"));
        for wrong in [&b"../a"[..], b"/etc/passwd", b"a/../../b"] {
            assert!(matches!(clean(wrong), Err(Problem::BadArchive { .. })));
        }
    }
}
