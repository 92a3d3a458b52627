//! Making a directory tree whole or not at all, and removing one that a hostile program may have shaped.

use std::{
    ffi::{CStr, CString, OsStr},
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, open, openat, renameat, renameat_with, unlinkat},
    io::Errno,
};

use crate::btrfs;

/// A new directory under another name beside its own, which it gets when it is complete. It is removed if that never happens.
///
/// One maker at a time may use it; what a killed one left there is removed.
pub struct Partial {
    path: PathBuf,
    into: PathBuf,
    is_complete: bool,
}

impl Partial {
    /// Makes it, for the name `into`.
    pub fn create(into: &Path) -> io::Result<Self> {
        let mut path = into.as_os_str().to_owned();
        path.push(".partial");
        let path = PathBuf::from(path);
        remove(&path)?;
        fs::create_dir_all(&path)?;
        Ok(Self { path, into: into.to_owned(), is_complete: false })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name, at which nothing may be. It is whole or not there, as long as the host does not crash.
    pub fn complete(mut self) -> io::Result<()> {
        renameat_with(CWD, &self.path, CWD, &self.into, RenameFlags::NOREPLACE)?;
        self.is_complete = true;
        Ok(())
    }

    /// As [`Self::complete`], also if the host crashes: a name must not outlive a crash that its content does not.
    pub fn complete_durably(self) -> io::Result<()> {
        rustix::fs::syncfs(fs::File::open(&self.path)?)?;
        self.complete()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_complete {
            // Another error is the one to report; what stays is removed by the next attempt.
            let _ = remove(&self.path);
        }
    }
}

/// Removes `path` and everything below it; nothing there is fine. A subvolume of btrfs goes at once, however much is in it.
///
/// No symbolic link is followed, and neither depth nor size of the tree can exhaust the stack or the descriptors: a
/// directory that is not empty is first moved up to the top, so the tree is never more than two levels deep here. Several
/// may remove the same tree at once: what one of them finds gone is fine.
pub fn remove(path: &Path) -> io::Result<()> {
    let top = match open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        top => top?,
    };
    if btrfs::is_subvolume(&top)? {
        let (parent, name) = place(path)?;
        return match btrfs::destroy(&parent, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            destroyed => destroyed,
        };
    }
    let mut remover = Remover { top, moved: 0, refilled: 0 };
    loop {
        remover.empty_top()?;
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                remover.refill()?;
            }
            result => return result,
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
pub fn list(directory: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    let mut names = Vec::new();
    each(directory, |name| {
        names.push(name.to_owned());
        Ok(())
    })?;
    Ok(names)
}

/// Calls `found` with each of them, until it fails.
pub fn each(directory: &OwnedFd, mut found: impl FnMut(&CStr) -> rustix::io::Result<()>) -> rustix::io::Result<()> {
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

/// The directory that a path is in, and its name there.
pub fn place(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    Ok((openat(CWD, parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_deeper_than_paths_can_say_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir(&top).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = openat(CWD, &top, flags, Mode::empty()).unwrap();
        for _ in 0..3_000 {
            rustix::fs::mkdirat(&at, "deeper", Mode::RWXU).unwrap();
            drop(openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap());
            at = openat(&at, "deeper", flags, Mode::empty()).unwrap();
        }
        drop(at);
        remove(&top).unwrap();
        assert!(!top.exists());
        remove(&top).unwrap();
    }

    #[test]
    fn a_directory_that_is_not_completed_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("made");
        fs::create_dir_all(dir.path().join("made.partial/left")).unwrap();
        let partial = Partial::create(&into).unwrap();
        assert_eq!(fs::read_dir(partial.path()).unwrap().count(), 0);
        drop(partial);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        Partial::create(&into).unwrap().complete_durably().unwrap();
        assert!(Partial::create(&into).unwrap().complete().is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
