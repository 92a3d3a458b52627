//! Removing trees of any depth: archives can make deeper ones than a stack or a table of descriptors holds.

use std::{ffi::CString, io, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, renameat, unlinkat},
    io::Errno,
};

/// Levels that are worked on at once; deeper ones are moved up first.
const LEVELS_MAX: usize = 64;

/// Removes a directory, and all below it. One that is not there is fine.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = match openat(CWD, path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        root => root?,
    };
    let mut removal = Removal { root, moved: 0 };
    // Each round takes what the one before has moved up.
    loop {
        let before = removal.moved;
        let root = openat(&removal.root, ".", flags, Mode::empty())?;
        removal.empty(&root, 0)?;
        if removal.moved == before {
            return std::fs::remove_dir(path);
        }
    }
}

struct Removal {
    root: OwnedFd,
    moved: u64,
}

impl Removal {
    fn empty(&mut self, directory: &OwnedFd, level: usize) -> io::Result<()> {
        for name in names(directory)? {
            match unlinkat(directory, &name, AtFlags::empty()) {
                Err(Errno::ISDIR) => self.remove_directory(directory, &name, level)?,
                removed => removed?,
            }
        }
        Ok(())
    }

    fn remove_directory(&mut self, above: &OwnedFd, name: &CString, level: usize) -> io::Result<()> {
        match unlinkat(above, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            removed => return Ok(removed?),
        }
        if level >= LEVELS_MAX {
            self.moved += 1;
            let up = format!("{}-{}", base::id::random_uuid(), self.moved);
            return Ok(renameat(above, name, &self.root, up)?);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inner = openat(above, name, flags, Mode::empty())?;
        self.empty(&inner, level + 1)?;
        Ok(unlinkat(above, name, AtFlags::REMOVEDIR)?)
    }
}

fn names(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if ![c".", c".."].contains(&name.as_c_str()) {
            found.push(name);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_deeper_than_paths_can_say_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        std::fs::create_dir(&top).unwrap();
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
}
