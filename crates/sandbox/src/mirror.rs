//! Copying an overlay's upper directory exactly: whiteouts, opaque marks, owners, modes, times, links, holes, pipes,
//! devices and sockets. Only what makes a sandbox a machine of its own is left out: every one has its own.
//!
//! A copy is made in rounds. The first ones copy while the programs run, the last one when they stand still, and each takes only what has changed
//! since the one before. What a round has seen of an entry is its inode number and its time of change (ctime), which no program can set. Three
//! kinds of files are taken again in any case: those that changed no longer than [`SLACK`] before the round looked, because time has a grain;
//! those that a process has mapped shared, because a page that is mapped for writing changes without a new time; and all of a tmpfs, which gives
//! such pages no time at all.

use std::{
    collections::{HashMap, HashSet},
    ffi::{CStr, CString, OsStr},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    time::Duration,
    vec,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, chownat, copy_file_range,
        fchmod, fchown, fstatfs, ftruncate, futimens, ioctl_ficlone, lgetxattr, linkat, lremovexattr, mkdirat, mknodat,
        openat, readlinkat, seek, statat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
    time::{ClockId, clock_gettime},
};

use crate::{
    attributes::{LEVELS_MAX, OPAQUE, entry_path, open_dir, set_xattr, xattr, xattr_names},
    error::{Context, Error},
    machine::{IDENTITY_DIRECTORIES, IDENTITY_FILES, is_one_of},
    tree,
};

/// How an entry fails that is replaced or removed during its copy.
const IN_MOTION: [Errno; 10] = [
    Errno::NOENT,
    Errno::NOTDIR,
    Errno::ISDIR,
    Errno::LOOP,
    Errno::INVAL,
    Errno::STALE,
    Errno::SPIPE,
    Errno::NXIO,
    Errno::NODEV,
    Errno::NODATA,
];

/// Longer than the grain of a filesystem's times.
const SLACK: Duration = Duration::from_millis(50);
const TMPFS: i64 = 0x0102_1994;

/// A copy that is being made. What there is of it is removed when it is dropped before [`Mirror::keep`].
#[derive(Debug)]
pub(crate) struct Mirror {
    source: PathBuf,
    dest: PathBuf,
    /// By the path below the source.
    seen: HashMap<Vec<u8>, Seen>,
    /// Whether times of change tell of all changes.
    has_times: bool,
    /// Whether the filesystem may be able to share data between files.
    clone: bool,
    rounds: u32,
    is_kept: bool,
}

/// Whether those that write to the source do so during a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Processes {
    Run,
    StandStill,
}

/// What the last round has seen of an entry.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// 0: it changed under the copy, and is taken anew.
    inode: u64,
    /// Filesystems give numbers of removed files to new ones.
    kind: FileType,
    changed: (i64, u64),
    /// Taken again in any case.
    is_unsure: bool,
    round: u32,
}

/// What a round has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Round {
    /// Bytes of the files that it has copied, holes included.
    pub(crate) bytes: u64,
    /// Entries that it has copied, made or removed.
    pub(crate) entries: u64,
}

impl Mirror {
    /// A copy of `source` that becomes the new directory `dest`.
    pub(crate) fn begin(source: &Path, dest: &Path) -> Result<Self, Error> {
        mkdirat(CWD, dest, Mode::RWXU).at("create", dest)?;
        let (source, dest) = (source.to_owned(), dest.to_owned());
        let mut mirror =
            Self { source, dest, seen: HashMap::new(), has_times: false, clone: true, rounds: 0, is_kept: false };
        let from = open_dir(CWD, &mirror.source).at("open", &mirror.source)?;
        mirror.has_times = fstatfs(&from).at("open", &mirror.source)?.f_type as i64 != TMPFS;
        Ok(mirror)
    }

    /// Whether rounds before the last one are of use.
    pub(crate) fn can_run_ahead(&self) -> bool {
        self.has_times
    }

    /// Copies what has changed since the last round. `mapped`: paths below the source of files that processes have mapped shared, since before this
    /// round began. `when`: whether they run meanwhile.
    pub(crate) fn round(&mut self, mapped: &HashSet<Vec<u8>>, when: Processes) -> Result<Round, Error> {
        let from = open_dir(CWD, &self.source).at("open", &self.source)?;
        let to = open_dir(CWD, &self.dest).at("open", &self.dest)?;
        let root = rustix::io::dup(&to).at("open", &self.dest)?;
        let (source, dest) = (self.source.clone(), self.dest.clone());
        let now = clock_gettime(ClockId::Realtime);
        let since = Duration::new(now.tv_sec as u64, now.tv_nsec as u32).saturating_sub(SLACK);
        let since = (since.as_secs() as i64, u64::from(since.subsec_nanos()));
        self.rounds += 1;
        let (links, done) = (HashMap::new(), Round::default());
        let work = Work { mapped, when, number: self.rounds, since, root, links, done, mirror: self };
        work.all(from, to, (&source, &dest))
    }

    /// It is whole, and stays.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        if !self.is_kept {
            // The first error is the one to report.
            let _ = tree::remove(&self.dest);
        }
    }
}

/// A directory that is being gone through.
struct Level {
    from: OwnedFd,
    to: OwnedFd,
    /// Below the root of the copy, with a slash at its end unless empty.
    path: Vec<u8>,
    names: vec::IntoIter<CString>,
    /// Whether nothing was known of it: then what was known of its path is of another one.
    is_new: bool,
    /// Whether entries may have come or gone, or its own attributes changed.
    is_changed: bool,
    /// Whether something in it was copied, which has set its times.
    is_touched: bool,
}

/// One round.
struct Work<'a> {
    mirror: &'a mut Mirror,
    mapped: &'a HashSet<Vec<u8>>,
    when: Processes,
    number: u32,
    /// What changed later may change again without another time.
    since: (i64, u64),
    root: OwnedFd,
    /// Files with several names: device and inode of the source, and where the first copy is below `root`.
    links: HashMap<(u64, u64), Vec<u8>>,
    done: Round,
}

impl Work<'_> {
    fn all(mut self, from: OwnedFd, to: OwnedFd, (source, dest): (&Path, &Path)) -> Result<Round, Error> {
        let stat = rustix::fs::fstat(&from).at("list", source)?;
        let before = self.note(b"", &stat, false);
        let mut levels = vec![Level::enter(from, to, Vec::new(), before).at("list", source)?];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.next() else {
                match self.leave(level) {
                    Err(error) if self.is_motion(error) => {
                        let path = level.path.strip_suffix(b"/").unwrap_or_default();
                        self.mirror.seen.entry(path.to_vec()).and_modify(|seen| seen.is_unsure = true);
                    }
                    left => left.at("set the attributes of", dest)?,
                }
                levels.pop();
                continue;
            };
            let deeper = self.entry(level, &name).at("copy", &source.join(name.to_string_lossy().as_ref()))?;
            levels.extend(deeper);
            if levels.len() > LEVELS_MAX {
                return Err(Error::TooDeep { path: source.to_owned(), levels: LEVELS_MAX });
            }
        }
        let number = self.number;
        self.mirror.seen.retain(|_, seen| seen.round == number);
        Ok(self.done)
    }

    fn is_motion(&self, error: Errno) -> bool {
        self.when == Processes::Run && IN_MOTION.contains(&error)
    }

    /// Notes what is there now; gives what was there before, in a directory that is new or not.
    fn note(&mut self, path: &[u8], stat: &Stat, in_new: bool) -> Before {
        let changed = (stat.st_ctime, stat.st_ctime_nsec);
        let is_mapped = self.mapped.contains(path);
        let kind = FileType::from_raw_mode(stat.st_mode);
        let now = Seen { inode: stat.st_ino, kind, changed, is_unsure: changed >= self.since, round: self.number };
        match self.mirror.seen.insert(path.to_vec(), now).filter(|_| !in_new) {
            None => Before::Nothing,
            Some(before) if (before.inode, before.kind) != (now.inode, now.kind) => Before::Other,
            Some(before) if before.changed != changed || before.is_unsure || is_mapped => Before::Changed,
            Some(_) => Before::Same,
        }
    }

    /// Copies one entry, if that is needed; a directory is returned, to be gone through next.
    fn entry(&mut self, level: &mut Level, name: &CString) -> rustix::io::Result<Option<Level>> {
        match self.try_entry(level, name) {
            // It was replaced or removed under the copy, and is taken anew by the next round.
            Err(error) if self.is_motion(error) => {
                let path = [&level.path, name.to_bytes()].concat();
                let seen =
                    Seen { inode: 0, kind: FileType::Unknown, changed: (0, 0), is_unsure: true, round: self.number };
                self.mirror.seen.insert(path, seen);
                Ok(None)
            }
            done => done,
        }
    }

    fn try_entry(&mut self, level: &mut Level, name: &CString) -> rustix::io::Result<Option<Level>> {
        let stat = statat(&level.from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let path = [&level.path, name.to_bytes()].concat();
        if kind == FileType::Directory {
            return self.directory(level, name, &stat, path);
        }
        // Each sandbox has its own.
        if is_one_of(&IDENTITY_FILES, &path) {
            return Ok(None);
        }
        let before = self.note(&path, &stat, level.is_new);
        let key = (stat.st_dev, stat.st_ino);
        if before != Before::Same {
            self.done.entries += 1;
            level.is_touched = true;
            match self.links.get(&key) {
                Some(first) => self.link(first, level, name)?,
                // In its place: other names of it stay.
                None if before == Before::Changed && kind == FileType::RegularFile => {
                    self.file(level, name, &stat, OFlags::TRUNC)?;
                }
                None => {
                    if before != Before::Nothing {
                        remove(&level.to, name)?;
                    }
                    self.make(level, name, &stat, kind)?;
                }
            }
        }
        if stat.st_nlink > 1 {
            self.links.entry(key).or_insert(path);
        }
        Ok(None)
    }

    /// Makes an entry another name of the file that is at `first` in the copy, if it is not yet.
    fn link(&self, first: &[u8], level: &Level, name: &CString) -> rustix::io::Result<()> {
        let is = statat(&self.root, first, AtFlags::SYMLINK_NOFOLLOW)?;
        match statat(&level.to, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if found.st_ino == is.st_ino => return Ok(()),
            Ok(_) => remove(&level.to, name)?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        linkat(&self.root, first, &level.to, name, AtFlags::empty())
    }

    fn make(&mut self, level: &Level, name: &CString, stat: &Stat, kind: FileType) -> rustix::io::Result<()> {
        match kind {
            FileType::RegularFile => self.file(level, name, stat, OFlags::CREATE | OFlags::EXCL),
            FileType::Symlink => {
                let target = readlinkat(&level.from, name, Vec::new())?;
                symlinkat(target, &level.to, name)?;
                finish_by_name(level, name, stat)
            }
            // Whiteouts are character devices 0:0.
            _ => {
                mknodat(&level.to, name, kind, Mode::from_raw_mode(stat.st_mode), stat.st_rdev)?;
                finish_by_name(level, name, stat)?;
                rustix::fs::chmodat(&level.to, name, Mode::from_raw_mode(stat.st_mode), AtFlags::empty())
            }
        }
    }

    fn directory(
        &mut self,
        level: &mut Level,
        name: &CString,
        stat: &Stat,
        path: Vec<u8>,
    ) -> rustix::io::Result<Option<Level>> {
        let from = open_dir(&level.from, name)?;
        if has_identity_only(&from, &path)? {
            return Ok(None);
        }
        let before = self.note(&path, stat, level.is_new);
        if matches!(before, Before::Nothing | Before::Other) {
            self.done.entries += 1;
            level.is_touched = true;
            if before == Before::Other {
                remove(&level.to, name)?;
            }
            mkdirat(&level.to, name, Mode::RWXU)?;
        }
        let path = [&path, &b"/"[..]].concat();
        Level::enter(from, open_dir(&level.to, name)?, path, before).map(Some)
    }

    /// All entries of a directory are there. Those that it has no more go, and its attributes come last: the times would not survive the entries.
    fn leave(&mut self, level: &mut Level) -> rustix::io::Result<()> {
        if !level.is_changed && !level.is_touched {
            return Ok(());
        }
        if level.is_changed && !level.is_new {
            drop_xattrs((&level.from, c"."), (&level.to, c"."))?;
            for name in tree::list(&level.to)? {
                let path = [&level.path, name.to_bytes()].concat();
                if self.mirror.seen.get(&path).is_none_or(|seen| seen.round != self.number) {
                    remove(&level.to, &name)?;
                    self.done.entries += 1;
                }
            }
        }
        finish_open((&level.from, c"."), (&level.to, c"."), &level.to, &rustix::fs::fstat(&level.from)?)
    }

    fn file(&mut self, level: &Level, name: &CString, stat: &Stat, how: OFlags) -> rustix::io::Result<()> {
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Not to wait for the writer of a pipe, if one has taken the file's place.
        let from = openat(&level.from, name, flags | OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        let to = openat(&level.to, name, flags | OFlags::WRONLY | how, Mode::RWXU)?;
        if how.contains(OFlags::TRUNC) {
            drop_xattrs((&level.from, name), (&level.to, name))?;
        }
        if stat.st_size > 0 {
            self.data(&from, &to, stat.st_size as u64)?;
            self.done.bytes += stat.st_size as u64;
        }
        finish_open((&level.from, name), (&level.to, name), &to, stat)
    }

    fn data(&mut self, from: &OwnedFd, to: &OwnedFd, size: u64) -> rustix::io::Result<()> {
        if self.mirror.clone {
            match ioctl_ficlone(to, from) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY) => self.mirror.clone = false,
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

/// What the last round has seen in the place of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// Something else.
    Other,
    /// The same one, which has changed or may have.
    Changed,
    Same,
}

impl Level {
    fn enter(from: OwnedFd, to: OwnedFd, path: Vec<u8>, before: Before) -> rustix::io::Result<Self> {
        let names = tree::list(&from)?.into_iter();
        let is_new = matches!(before, Before::Nothing | Before::Other);
        Ok(Self { from, to, path, names, is_new, is_changed: before != Before::Same, is_touched: false })
    }
}

/// Removes an entry of the copy, and all below it.
fn remove(directory: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {
            let path = entry_path(directory, name);
            tree::remove(Path::new(OsStr::from_bytes(&path))).map_err(|_| Errno::IO)
        }
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
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

/// Removes attributes that the source has no more.
fn drop_xattrs(from: Place<'_>, to: Place<'_>) -> rustix::io::Result<()> {
    let (from, to) = (entry_path(from.0, from.1), entry_path(to.0, to.1));
    let wanted = xattr_names(&from)?;
    let gone = xattr_names(&to)?.into_iter().filter(|name| !wanted.contains(name));
    gone.into_iter().try_for_each(|name| lremovexattr(&to, &name))
}

#[cfg(test)]
mod tests;
