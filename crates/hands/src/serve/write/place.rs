//! The file that an upload is for.

use std::{
    fs::File,
    io::{Seek, SeekFrom},
    os::fd::OwnedFd,
    path::Path,
};

use rustix::{
    fs::{FallocateFlags, Mode, OFlags, fallocate, fchown, fstat, ftruncate, lstat, open, unlink},
    io::Errno,
    process::{Gid, Uid},
};

use super::{
    super::{
        Job, entry, metadata,
        open::{NEVER_WAIT, checked, refusal},
    },
    Kept,
    spool::{FILE, Spool},
    write_all,
};
use crate::protocol::{Metadata, Problem};

/// How often a file may appear and disappear between two steps.
const TRIES_MAX: u32 = 100;

/// Size of the blocks in which files are counted.
const BLOCK_BYTES: u64 = 512;

/// What is at the path when the upload begins.
pub(super) struct Place<'a> {
    path: &'a Path,
    /// When the file that is there was changed last.
    there: Option<i64>,
}

impl<'a> Place<'a> {
    /// Looks at the file that is there. A directory, a pipe or a file of another user is refused before a byte is taken.
    pub(super) fn find(path: &'a Path) -> Result<Self, Problem> {
        let there = match open(path, OFlags::WRONLY | NEVER_WAIT, Mode::empty()) {
            Ok(file) => Some(entry::modified_ns(&checked(file.into())?.stat)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(refusal(path, errno)),
        };
        Ok(Self { path, there })
    }

    /// When it was changed last.
    pub(super) fn modified_ns(&self) -> i64 {
        self.there.unwrap_or_default()
    }

    /// Where a long upload waits. None if it need not or cannot: on another filesystem, a new file is written at once.
    pub(super) fn spool(&self) -> Option<Spool> {
        let spool = Spool::new()?;
        (self.there.is_some() || spool.is_beside(self.path.parent()?)).then_some(spool)
    }

    /// Replaces the content. A failure leaves what was there.
    pub(super) fn fill(self, job: &Job, kept: Kept, metadata: Option<&Metadata>) -> Result<(), Problem> {
        let Self { path, there } = self;
        let (file, kept) = match kept {
            Kept::Many(spool) if there.is_none() && spool.link(path) => {
                (reopened(path)?, Kept::Few(vec![spool.last()]))
            }
            // Opened again: another file may have the name by now.
            kept => (opened(path)?, kept),
        };
        let filled = file.fill(job, kept).and_then(|()| set(&file.file, metadata));
        if filled.is_err() && file.created {
            remove(&file.file, path);
        }
        filled
    }
}

fn set(file: &File, metadata: Option<&Metadata>) -> Result<(), Problem> {
    metadata.map_or(Ok(()), |metadata| metadata::replace(file, metadata))
}

/// The file that has just been given its name, to write its last byte once more: watchers hear of that.
fn reopened(path: &Path) -> Result<Opened, Problem> {
    let file = open(path, OFlags::WRONLY | OFlags::NOFOLLOW | NEVER_WAIT, Mode::empty());
    let mut file = checked(file.map_err(|errno| refusal(path, errno))?.into())?.file;
    file.seek(SeekFrom::End(-1))?;
    Ok(Opened { file, created: true })
}

struct Opened {
    file: File,
    /// Whether it was not there before.
    created: bool,
}

impl Opened {
    fn fill(&self, job: &Job, kept: Kept) -> Result<(), Problem> {
        own(&self.file);
        let bytes = match &kept {
            Kept::Few(bytes) => bytes.len() as u64,
            Kept::Many(spool) => spool.bytes(),
        };
        // Room that is reserved is an event. Then the end of a file that grows needs none.
        let ends = !self.created && (!reserve(&self.file, bytes)? || fstat(&self.file)?.st_size as u64 > bytes);
        match kept {
            Kept::Few(bytes) => write_all(&self.file, &bytes)?,
            Kept::Many(spool) => spool.copy_to(job, &self.file)?,
        }
        if ends {
            ftruncate(&self.file, bytes)?;
        }
        Ok(())
    }
}

/// For its event, and because a file that is overwritten loses set-uid. Its owner stays, and only that one and root may do it.
fn own(file: &File) {
    if let Ok(found) = fstat(file) {
        let _ = fchown(file, Some(Uid::from_raw(found.st_uid)), Some(Gid::from_raw(found.st_gid)));
    }
}

/// Fails if the content does not fit, while the old one is still there. Whether room was reserved for it.
fn reserve(file: &File, bytes: u64) -> Result<bool, Problem> {
    let has = (fstat(file)?.st_blocks as u64).saturating_mul(BLOCK_BYTES);
    if bytes <= has {
        return Ok(false);
    }
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes) {
        Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Err(errno.into()),
        // A filesystem that keeps no room says no more when it is full.
        reserved => Ok(reserved.is_ok()),
    }
}

/// Opens the file for writing, whether it is there or not.
fn opened(path: &Path) -> Result<Opened, Problem> {
    for _ in 0..TRIES_MAX {
        match open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | NEVER_WAIT, FILE) {
            Ok(file) => return regular(file, true),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(refusal(path, errno)),
        }
        match open(path, OFlags::WRONLY | NEVER_WAIT, Mode::empty()) {
            Ok(file) => return regular(file, false),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(refusal(path, errno)),
        }
        // A link to a file that is not there, or the file was removed in between.
        match open(path, OFlags::WRONLY | OFlags::CREATE | NEVER_WAIT, FILE) {
            Ok(file) => return regular(file, false),
            Err(Errno::NOENT) if lstat(path).is_err() => {}
            Err(errno) => return Err(refusal(path, errno)),
        }
    }
    Err(Problem::Changed)
}

fn regular(file: OwnedFd, created: bool) -> Result<Opened, Problem> {
    Ok(Opened { file: checked(file.into())?.file, created })
}

/// Removes a file that this upload made, if it is still there.
fn remove(file: &File, path: &Path) {
    let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    if let (Ok(own), Ok(there)) = (fstat(file), lstat(path))
        && identity(own) == identity(there)
    {
        // If it fails, the file stays, as after the death of the hand.
        let _ = unlink(path);
    }
}

/// A file that is written as the bytes come: on a volume or in memory, if it is new; anywhere, if there is no place for
/// a spool.
pub(super) struct Direct {
    opened: Opened,
    path: std::path::PathBuf,
}

impl Direct {
    pub(super) fn begin(place: &Place<'_>) -> Result<Self, Problem> {
        let opened = opened(place.path)?;
        own(&opened.file);
        if !opened.created {
            ftruncate(&opened.file, 0)?;
        }
        Ok(Self { opened, path: place.path.to_owned() })
    }

    pub(super) fn file(&self) -> &File {
        &self.opened.file
    }

    /// All bytes are there.
    pub(super) fn end(self, metadata: Option<&Metadata>) -> Result<(), Problem> {
        let ended = set(&self.opened.file, metadata);
        if ended.is_err() {
            self.undo();
        }
        ended
    }

    /// Removes the file if this upload made it.
    pub(super) fn undo(self) {
        if self.opened.created {
            remove(&self.opened.file, &self.path);
        }
    }
}
