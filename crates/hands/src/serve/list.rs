//! Listing a directory, and what is below it.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use base::limits::{HAND_LIST_BYTES_MAX, HAND_LIST_ENTRIES_MAX};
use rustix::{
    fs::{CWD, Dir, Mode, OFlags, openat},
    io::Errno,
};

use super::{Job, entry};
use crate::protocol::{Entry, FromHand, Kind, Problem};

/// Entries in one message, and their bytes without the largest one: together below the longest message.
const PART_ENTRIES: usize = 256;
const PART_BYTES: usize = 64 << 10;

/// Sends the files below `path`, each directory before what is in it, in the order of names.
pub(super) fn list(job: &Job, path: &Path, depth: u32) -> Result<FromHand, Problem> {
    let mut part = Part { job, entries: Vec::new(), bytes: 0, left: HAND_LIST_ENTRIES_MAX, all_bytes: 0 };
    // The top may be reached by a link.
    let names = part.names(path, OFlags::empty())?;
    let mut levels = vec![(path.to_owned(), names)];
    while let Some((directory, names)) = levels.last_mut() {
        job.check()?;
        let Some(name) = names.pop() else {
            levels.pop();
            continue;
        };
        let path = directory.join(name);
        let entry = match entry::describe(&path, &job.shared.names) {
            // It was removed in between, or its path is too long to be named.
            Err(Problem::NotFound | Problem::BadPath) => continue,
            entry => entry?,
        };
        let is_directory = entry.kind == Kind::Directory && entry.link_target.is_none();
        part.add(entry)?;
        if is_directory && levels.len() < depth as usize {
            match part.names(&path, OFlags::NOFOLLOW) {
                Ok(names) => levels.push((path, names)),
                Err(full @ Problem::TooManyEntries { .. }) => return Err(full),
                // It became something else, or the user may not read it.
                Err(_) => {}
            }
        }
    }
    part.send();
    Ok(FromHand::Done)
}

struct Part<'a> {
    job: &'a Job,
    entries: Vec<Entry>,
    bytes: usize,
    /// Names that may still be read.
    left: usize,
    /// Of all messages.
    all_bytes: usize,
}

impl Part<'_> {
    /// The names in a directory, the last one first.
    fn names(&mut self, path: &Path, flags: OFlags) -> Result<Vec<OsString>, Problem> {
        let mut names = names(path, flags, self.left)?;
        self.left -= names.len();
        names.sort_unstable_by(|first, second| second.cmp(first));
        Ok(names)
    }

    fn add(&mut self, entry: Entry) -> Result<(), Problem> {
        let bytes = entry.bytes();
        self.bytes += bytes;
        self.all_bytes += bytes;
        if self.all_bytes > HAND_LIST_BYTES_MAX {
            return Err(Problem::ListTooLong { bytes_max: HAND_LIST_BYTES_MAX });
        }
        self.entries.push(entry);
        if self.entries.len() >= PART_ENTRIES || self.bytes >= PART_BYTES {
            self.send();
        }
        Ok(())
    }

    fn send(&mut self) {
        if !self.entries.is_empty() {
            self.job.say(&FromHand::Entries(std::mem::take(&mut self.entries)));
        }
        self.bytes = 0;
    }
}

/// The names in a directory, in any order.
pub(super) fn names(path: &Path, flags: OFlags, max: usize) -> Result<Vec<OsString>, Problem> {
    let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = openat(CWD, path, flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::new(opened)? {
        let entry = match entry {
            // The directory was removed while it was read.
            Err(Errno::NOENT) => break,
            entry => entry?,
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if names.len() >= max {
            return Err(Problem::TooManyEntries { entries_max: HAND_LIST_ENTRIES_MAX });
        }
        names.push(OsStr::from_bytes(name).to_owned());
    }
    Ok(names)
}

/// A path below `root`, as watches name it: `.` is the root itself.
pub(super) fn below(directory: &Path, name: &[u8]) -> PathBuf {
    let path = directory.join(OsString::from_vec(name.to_vec()));
    if path.as_os_str().is_empty() { PathBuf::from(".") } else { path }
}
