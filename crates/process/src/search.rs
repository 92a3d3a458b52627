//! Paths of inodes.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    os::fd::{AsFd, BorrowedFd},
};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use crate::{
    error::{Context, Error},
    mappings, procfs,
};

/// The paths of these inodes in the root filesystem of a process, as far as found: one search for all among at most `entries_max` directory
/// entries, which looks through the places where programs watch before all others, each breadth first.
pub(crate) fn find(pid: i32, wanted: &HashSet<u64>, entries_max: usize) -> Result<HashMap<u64, Vec<u8>>, Error> {
    let mut search =
        Search { wanted, found: HashMap::new(), device: 0, looked: 0, entries_max, queue: VecDeque::new() };
    if wanted.is_empty() {
        return Ok(search.found);
    }
    let root = mappings::open_root(pid)?;
    search.device = rustix::fs::fstat(&root).of("read the root directory", pid)?.st_dev;
    let cwd = procfs::link(&format!("/proc/{pid}/cwd"))?;
    for path in [cwd.as_slice(), b"/tmp", b"/home/user", b"/run", b"/etc", b"/"] {
        let Ok(status) = mappings::open_inside(root.as_fd(), path).and_then(rustix::fs::fstat) else { continue };
        search.look(path.to_vec(), &status);
        while let Some(path) = search.queue.pop_front().filter(|_| !search.is_done()) {
            // What cannot be listed was removed meanwhile: the rest is looked at all the same.
            let _ = search.list(root.as_fd(), &path);
        }
    }
    Ok(search.found)
}

struct Search<'a> {
    wanted: &'a HashSet<u64>,
    found: HashMap<u64, Vec<u8>>,
    /// Of the root filesystem: others are not searched.
    device: u64,
    looked: usize,
    entries_max: usize,
    queue: VecDeque<Vec<u8>>,
}

impl Search<'_> {
    fn is_done(&self) -> bool {
        self.looked > self.entries_max || self.found.len() == self.wanted.len()
    }

    fn look(&mut self, path: Vec<u8>, status: &rustix::fs::Stat) {
        self.looked += 1;
        if status.st_dev != self.device {
            return;
        }
        if self.wanted.contains(&status.st_ino) {
            self.found.entry(status.st_ino).or_insert_with(|| path.clone());
        }
        if FileType::from_raw_mode(status.st_mode).is_dir() {
            self.queue.push_back(path);
        }
    }

    fn list(&mut self, root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<()> {
        let place = mappings::open_inside(root, path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&place, c".", flags, Mode::empty())?;
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.is_done() {
                break;
            }
            // It may be removed between the two.
            let Ok(status) = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let parent = if path == b"/" { &[][..] } else { path };
            self.look([parent, b"/", name.to_bytes()].concat(), &status);
        }
        Ok(())
    }
}
