//! Making a directory tree whole or not at all, and removing one that a hostile program may have shaped.

use std::{
    ffi::{CStr, CString},
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, open, openat, renameat, renameat_with, unlinkat},
    io::Errno,
};

use crate::{
    changes,
    error::{Context, Error},
};

/// Makes the new directory `into`, filled by `fill`: whole or not at all, as long as the host does not crash.
///
/// It is filled under another name beside it, which one maker at a time may use; what a killed one left there is removed.
pub(crate) fn make_whole<T>(into: &Path, fill: impl FnOnce(&Path) -> Result<T, Error>) -> Result<T, Error> {
    let mut partial = into.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    remove(&partial)?;
    fs::create_dir_all(&partial).at("create", &partial)?;
    let result = fill(&partial).and_then(|made| {
        renameat_with(CWD, &partial, CWD, into, RenameFlags::NOREPLACE).at("create", into)?;
        Ok(made)
    });
    if result.is_err() {
        // The first error is the one to report; what stays is removed by the next attempt.
        let _ = remove(&partial);
    }
    result
}

/// Removes `path` and everything below it; nothing there is fine. A subvolume of btrfs goes at once, however much is in it.
///
/// No symbolic link is followed, and neither depth nor size of the tree can exhaust the stack or the descriptors: a
/// directory that is not empty is first moved up to the top, so the tree is never more than two levels deep here. Several
/// may remove the same tree at once: what one of them finds gone is fine.
pub fn remove(path: &Path) -> Result<(), Error> {
    let top = match open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        top => top.at("open", path)?,
    };
    if sys::btrfs::is_subvolume(&top).at("open", path)? {
        let (parent, name) = changes::place(path).at("open", path)?;
        return match sys::btrfs::destroy(&parent, name) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            destroyed => destroyed.at("remove", path),
        };
    }
    let mut remover = Remover { top, moved: 0, refilled: 0 };
    loop {
        remover.empty_top().at("remove what is in", path)?;
        match fs::remove_dir(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
                remover.refill().at("remove", path)?;
            }
            result => return result.at("remove", path),
        }
    }
}

/// How often a directory that was just emptied may turn out to be filled again: a killed creator goes on for a moment.
const REFILLS_MAX: u32 = 1_000;

struct Remover {
    top: OwnedFd,
    moved: u64,
    refilled: u32,
}

impl Remover {
    fn empty_top(&mut self) -> rustix::io::Result<()> {
        loop {
            let names = list(&self.top)?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                match remove_shallow(&self.top, &name) {
                    Err(Errno::NOTEMPTY) => self.empty_directory(&name)?,
                    result => result?,
                }
            }
        }
    }

    fn empty_directory(&mut self, name: &CString) -> rustix::io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match openat(&self.top, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            directory => directory?,
        };
        for entry in list(&directory)? {
            match remove_shallow(&directory, &entry) {
                Err(Errno::NOTEMPTY) => self.move_to_top(&directory, &entry)?,
                result => result?,
            }
        }
        match unlinkat(&self.top, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOENT) => Ok(()),
            // It is still in the top, whose next round comes to it again.
            Err(Errno::NOTEMPTY) => self.refill(),
            result => result,
        }
    }

    fn refill(&mut self) -> rustix::io::Result<()> {
        self.refilled += 1;
        if self.refilled > REFILLS_MAX { Err(Errno::NOTEMPTY) } else { Ok(()) }
    }

    fn move_to_top(&mut self, directory: &OwnedFd, entry: &CString) -> rustix::io::Result<()> {
        loop {
            self.moved += 1;
            match renameat(directory, entry, &self.top, format!(".pando-removed-{}", self.moved)) {
                // The program had the same idea for a name.
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
                Err(Errno::NOENT) => return Ok(()),
                result => return result,
            }
        }
    }
}

/// Removes one file or empty directory.
fn remove_shallow(directory: &OwnedFd, name: &CString) -> rustix::io::Result<()> {
    let removed = match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => unlinkat(directory, name, AtFlags::REMOVEDIR),
        result => result,
    };
    match removed {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}

/// The names in a directory, without itself and its parent.
pub(crate) fn list(directory: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    let mut names = Vec::new();
    each(directory, |name| {
        names.push(name.to_owned());
        Ok(())
    })?;
    Ok(names)
}

/// Calls `found` with each of them, until it fails.
pub(crate) fn each(
    directory: &OwnedFd,
    mut found: impl FnMut(&CStr) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = match entry {
            // The directory itself was removed meanwhile.
            Err(Errno::NOENT) => break,
            entry => entry?,
        };
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            found(entry.file_name())?;
        }
    }
    Ok(())
}
