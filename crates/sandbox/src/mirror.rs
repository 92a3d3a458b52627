//! Copying an overlay's upper directory exactly: whiteouts, opaque marks, owners, modes, times, links, holes, pipes,
//! devices and sockets. Only what makes a sandbox a machine of its own is left out: every one has its own.
//!
//! A copy is made in rounds. The first ones copy while the programs run, the last one when they stand still, and each takes only what has changed
//! since the one before. What a round has seen of an entry is its inode number, its size and its time of change (ctime), which no program can set.
//! Some files are taken again in any case ([`Hot`]): those that changed no longer than [`SLACK`] before the round began, because time has a grain
//! and a write has its time from its beginning; those that are open for writing and changed in the last minute, for a write that takes longer; and
//! those that a process has mapped shared, because a page that is mapped for writing changes without a new time. A tmpfs, which gives such pages no
//! time at all, is copied in the last round.
//!
//! The rounds that run ahead end after [`AHEAD_MAX`], wherever they are: a hostile program can make files faster than they are copied.

mod hot;

use std::{
    collections::HashMap,
    ffi::CString,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
    vec,
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstatfs, linkat, mkdirat, openat, statat},
    io::Errno,
};

pub(crate) use self::hot::Hot;
use crate::{
    attributes::{LEVELS_MAX, open_dir},
    entry::{copy_data, drop_xattrs, finish_open, has_identity_only, make, open_source, remove},
    error::{Context, Error},
    machine::{IDENTITY_FILES, is_one_of},
};

/// How an entry fails that is replaced or removed during its copy. The last three: attributes of what has come in its place are not for the copy of
/// what it was.
const IN_MOTION: [Errno; 14] = [
    Errno::EXIST,
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
    Errno::PERM,
    Errno::ACCESS,
    Errno::OPNOTSUPP,
];

/// Longer than the grain of a filesystem's times, and than most writes take.
const SLACK: Duration = Duration::from_secs(2);
/// No write takes longer.
const WRITE_MAX: Duration = Duration::from_secs(60);
/// All rounds that run ahead, together.
const AHEAD_MAX: Duration = Duration::from_secs(120);
/// Most bytes of paths that are remembered. They are as long as a program makes them.
const PATHS_BYTES_MAX: usize = 512 << 20;
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
    slack: Duration,
    ahead: Duration,
    began: Instant,
    paths_bytes: usize,
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
    bytes: i64,
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
        let mut mirror = Self {
            source,
            dest,
            seen: HashMap::new(),
            has_times: false,
            clone: true,
            rounds: 0,
            slack: SLACK,
            ahead: AHEAD_MAX,
            began: Instant::now(),
            paths_bytes: 0,
            is_kept: false,
        };
        let from = open_dir(CWD, &mirror.source).at("open", &mirror.source)?;
        mirror.has_times = fstatfs(&from).at("open", &mirror.source)?.f_type as i64 != TMPFS;
        Ok(mirror)
    }

    /// Whether rounds before the last one are of use, and there is time for one.
    pub(crate) fn can_run_ahead(&self) -> bool {
        self.has_times && self.began.elapsed() < self.ahead
    }

    /// Copies what has changed since the last round. `hot` was looked at right before. `when`: whether processes run meanwhile.
    pub(crate) fn round(&mut self, hot: &Hot, when: Processes) -> Result<Round, Error> {
        let from = open_dir(CWD, &self.source).at("open", &self.source)?;
        let to = open_dir(CWD, &self.dest).at("open", &self.dest)?;
        let root = rustix::io::dup(&to).at("open", &self.dest)?;
        let (source, dest) = (self.source.clone(), self.dest.clone());
        let time = |before: Duration| {
            let time = hot.began.saturating_sub(before);
            (time.as_secs() as i64, u64::from(time.subsec_nanos()))
        };
        let (since, since_open) = (time(self.slack), time(WRITE_MAX));
        self.rounds += 1;
        let (links, done) = (HashMap::new(), Round::default());
        let work = Work { hot, when, number: self.rounds, since, since_open, root, links, done, mirror: self };
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
            let _ = sys::tree::remove(&self.dest);
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
    hot: &'a Hot,
    when: Processes,
    number: u32,
    /// What changed later may change again without another time.
    since: (i64, u64),
    /// The same of what is open for writing.
    since_open: (i64, u64),
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
            if self.when == Processes::Run && !self.mirror.can_run_ahead() {
                self.cut(&levels);
                return Ok(self.done);
            }
            if self.mirror.paths_bytes > PATHS_BYTES_MAX {
                let reason = "it has more and longer paths than are copied";
                return Err(Error::NotCarried { path: source.to_owned(), reason });
            }
            let Some(name) = level.names.next() else {
                match self.leave(level) {
                    Err(error) if self.is_motion(error) => self.doubt(level),
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
        let (number, mut bytes) = (self.number, 0);
        self.mirror.seen.retain(|path, seen| {
            let stays = seen.round == number;
            bytes += if stays { path.len() } else { 0 };
            stays
        });
        self.mirror.paths_bytes = bytes;
        Ok(self.done)
    }

    /// The round ends in the middle of these directories, and the next one goes through them again. Facts of earlier rounds about paths below a new
    /// directory are about another one, and go.
    fn cut(&mut self, levels: &[Level]) {
        levels.iter().for_each(|level| self.doubt(level));
        let number = self.number;
        if let Some(new) = levels.iter().find(|level| level.is_new) {
            self.mirror.seen.retain(|path, seen| seen.round == number || !path.starts_with(&new.path));
        }
    }

    /// Has the next round take a directory for a changed one.
    fn doubt(&mut self, level: &Level) {
        let path = level.path.strip_suffix(b"/").unwrap_or_default();
        self.mirror.seen.entry(path.to_vec()).and_modify(|seen| seen.is_unsure = true);
    }

    fn is_motion(&self, error: Errno) -> bool {
        self.when == Processes::Run && IN_MOTION.contains(&error)
    }

    /// Notes what is there now; gives what was there before, in a directory that is new or not.
    fn note(&mut self, path: &[u8], stat: &Stat, in_new: bool) -> Before {
        let changed = (stat.st_ctime, stat.st_ctime_nsec);
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_unsure = changed >= self.since || changed >= self.since_open && self.hot.is_open(path, stat);
        let (inode, bytes, round) = (stat.st_ino, stat.st_size, self.number);
        let now = Seen { inode, kind, bytes, changed, is_unsure, round };
        let before = self.mirror.seen.insert(path.to_vec(), now);
        if before.is_none() {
            self.mirror.paths_bytes += path.len();
        }
        let Some(before) = before.filter(|_| !in_new) else { return Before::Nothing };
        if (before.inode, before.kind) != (now.inode, now.kind) {
            return Before::Other;
        }
        // All whiteouts of a filesystem may be names of one, whose time changes with each; there is nothing else of it.
        let is_whiteout = kind == FileType::CharacterDevice && stat.st_rdev == 0;
        let is_same = (before.bytes, before.changed) == (now.bytes, now.changed) && !before.is_unsure;
        match is_whiteout || is_same && !(kind == FileType::RegularFile && self.hot.is_mapped(path, stat)) {
            true => Before::Same,
            false => Before::Changed,
        }
    }

    /// Copies one entry, if that is needed; a directory is returned, to be gone through next.
    fn entry(&mut self, level: &mut Level, name: &CString) -> rustix::io::Result<Option<Level>> {
        match self.try_entry(level, name) {
            // It was replaced or removed under the copy, and is taken anew by the next round.
            Err(error) if self.is_motion(error) => {
                let path = [&level.path, name.to_bytes()].concat();
                let seen = Seen {
                    inode: 0,
                    kind: FileType::Unknown,
                    bytes: 0,
                    changed: (0, 0),
                    is_unsure: true,
                    round: self.number,
                };
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
                None => self.make(level, name, (&path, &stat, kind), before)?,
            }
        } else if stat.st_nlink > 1
            && let Some(first) = self.links.get(&key)
        {
            // Its directory was renamed: the copy has it from there as a file of its own.
            self.link(first, level, name)?;
        }
        if stat.st_nlink > 1 {
            self.links.entry(key).or_insert(path);
        }
        Ok(None)
    }

    /// Makes an entry, or makes it anew.
    fn make(
        &mut self,
        level: &Level,
        name: &CString,
        (path, stat, kind): (&[u8], &Stat, FileType),
        before: Before,
    ) -> rustix::io::Result<()> {
        let is_file = kind == FileType::RegularFile;
        // In its place: other names of it stay.
        let in_place = is_file && before == Before::Changed;
        if !in_place && before != Before::Nothing {
            remove(&level.to, name)?;
        }
        if !is_file {
            return make((&level.from, name), (&level.to, name), stat, 0);
        }
        let how = if in_place { OFlags::TRUNC } else { OFlags::CREATE | OFlags::EXCL };
        if !self.file(level, name, stat, how)? {
            // It was written to under the copy.
            self.mirror.seen.entry(path.to_vec()).and_modify(|seen| seen.is_unsure = true);
        }
        Ok(())
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

    fn directory(
        &mut self,
        level: &mut Level,
        name: &CString,
        stat: &Stat,
        path: Vec<u8>,
    ) -> rustix::io::Result<Option<Level>> {
        let from = open_dir(&level.from, name)?;
        if has_identity_only(&from, &path)? {
            if self.mirror.seen.remove(&path).is_some() {
                level.is_touched = true;
                remove(&level.to, name)?;
            }
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
            for name in sys::tree::list(&level.to)? {
                let path = [&level.path, name.to_bytes()].concat();
                if self.mirror.seen.get(&path).is_none_or(|seen| seen.round != self.number) {
                    remove(&level.to, &name)?;
                    self.done.entries += 1;
                }
            }
        }
        finish_open((&level.from, c"."), (&level.to, c"."), &level.to, &rustix::fs::fstat(&level.from)?, 0)
    }

    /// Copies a file. Tells whether it has stayed as it is meanwhile, as far as size and time tell.
    fn file(&mut self, level: &Level, name: &CString, stat: &Stat, how: OFlags) -> rustix::io::Result<bool> {
        let from = open_source((&level.from, name))?;
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(&level.to, name, flags | how, Mode::RWXU)?;
        if how.contains(OFlags::TRUNC) {
            drop_xattrs((&level.from, name), (&level.to, name))?;
        }
        if stat.st_size > 0 {
            copy_data(&from, &to, stat.st_size as u64, &mut self.mirror.clone)?;
            self.done.bytes += stat.st_size as u64;
        }
        finish_open((&level.from, name), (&level.to, name), &to, stat, 0)?;
        let now = rustix::fs::fstat(&from)?;
        let facts = |stat: &Stat| (stat.st_ino, stat.st_size, stat.st_ctime, stat.st_ctime_nsec);
        Ok(facts(&now) == facts(stat))
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
        let names = sys::tree::list(&from)?.into_iter();
        let is_new = matches!(before, Before::Nothing | Before::Other);
        Ok(Self { from, to, path, names, is_new, is_changed: before != Before::Same, is_touched: false })
    }
}

#[cfg(test)]
mod tests;
