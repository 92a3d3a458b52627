//! Removing a tree that a hostile program may be changing.
//!
//! The tree is walked down by descriptors and never through a link. On the way up, `..` of each directory has to be the directory that the
//! walk came from. Depth costs one record each, and neither stack nor descriptors.

use std::{
    ffi::{CStr, CString},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, fstat, open, openat, unlinkat},
    io::Errno,
};

use super::Job;
use crate::protocol::{FromHand, Problem};

/// Names that are read before they are removed: bounds the memory for a large directory.
const BATCH: usize = 1_024;

/// How often a directory that was just emptied may have something in it again.
const REFILLS_MAX: u32 = 1_000;

/// Removes `path`, and what is below it.
pub(super) fn remove(job: &Job, path: &Path) -> Result<FromHand, Problem> {
    let Err(problem) = shallow(CWD, path.as_os_str().as_bytes()) else { return Ok(FromHand::Done) };
    if problem != Errno::NOTEMPTY {
        return Err(problem.into());
    }
    let top = open(path, OFlags::RDONLY | DIRECTORY, Mode::empty())?;
    Removal { job, way: Vec::new(), refills: 0 }.empty(top)?;
    shallow(CWD, path.as_os_str().as_bytes())?;
    Ok(FromHand::Done)
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a file, a link or an empty directory. `NOTEMPTY` if there is something in it.
fn shallow(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            // rmdir(2): POSIX allows both.
            Err(Errno::EXIST) => Err(Errno::NOTEMPTY),
            removed => removed,
        },
        removed => removed,
    }
}

struct Removal<'a> {
    job: &'a Job,
    /// The directories above the present one, each with the name of the next one in it.
    way: Vec<Above>,
    refills: u32,
}

struct Above {
    identity: (u64, u64),
    name: CString,
}

impl Removal<'_> {
    /// Removes what is in `top`.
    fn empty(&mut self, top: OwnedFd) -> Result<(), Problem> {
        let mut here = top;
        loop {
            if let Some(name) = self.thin(&here)? {
                let below = match openat(&here, &name, OFlags::RDONLY | DIRECTORY, Mode::empty()) {
                    // Removed, or replaced by something that the next round removes.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                    below => below?,
                };
                self.way.push(Above { identity: identity(&here)?, name });
                here = below;
                continue;
            }
            let Some(above) = self.way.pop() else { return Ok(()) };
            let parent = openat(&here, c"..", OFlags::RDONLY | DIRECTORY, Mode::empty())?;
            if identity(&parent)? != above.identity {
                // It was moved elsewhere: whatever is there is not what was to be removed.
                return Err(Problem::Changed);
            }
            here = parent;
            match unlinkat(&here, &above.name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) if self.refills < REFILLS_MAX => self.refills += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes from a directory what can be removed at once. The name of a directory that is not empty, if there is one.
    fn thin(&self, here: &OwnedFd) -> Result<Option<CString>, Problem> {
        loop {
            let names = batch(here)?;
            if names.is_empty() {
                return Ok(None);
            }
            for name in names {
                self.job.check()?;
                match shallow(here.as_fd(), name.to_bytes()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::NOTEMPTY) => return Ok(Some(name)),
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

fn identity(directory: &OwnedFd) -> Result<(u64, u64), Problem> {
    let stat = fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The first names in a directory.
fn batch(directory: &OwnedFd) -> Result<Vec<CString>, Problem> {
    let own = |name: &CStr| matches!(name.to_bytes(), b"." | b"..");
    let mut names = Vec::new();
    // Opened anew, so that it is read from the beginning.
    for entry in Dir::read_from(directory)? {
        let entry = match entry {
            Err(Errno::NOENT) => break,
            entry => entry?,
        };
        if !own(entry.file_name()) {
            names.push(entry.file_name().to_owned());
        }
        if names.len() >= BATCH {
            break;
        }
    }
    Ok(names)
}
