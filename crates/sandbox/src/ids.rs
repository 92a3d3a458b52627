//! User and group ids: each sandbox has a user namespace with a range of ids that no other sandbox of the host has.
//!
//! Inside, ids are 0 to 65,535. Outside, root of the sandbox is the first id of its range, which no other user is. The kernel's counters per user
//! are therefore a sandbox's own, and a program that gets out is no user of the host.
//!
//! ```text
//! /run/pando/ids/17 -> 4711:892345     range 17 belongs to the process 4711 that began at tick 892345: pid 1 of a sandbox
//! ```
//!
//! A range is free when there is no such process. A lock on the directory is held while a range is chosen and its process forked: all nodes of
//! a host share the directory. Nodes in several pid namespaces do not see each other's processes, and need a `/run` each.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::{
        fd::BorrowedFd,
        unix::fs::{DirBuilderExt, symlink},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use base::limits::{ID_RANGES_MAX, IDS_FIRST, IDS_PER_SANDBOX};
use procfs::{IdMaps, ProcessIdentity};
use rustix::{
    fs::{FlockOperation, flock},
    thread::ThreadNameSpaceType,
};
use serde::{Deserialize, Serialize};
use sys::clone::Forked;

use crate::error::{Context, Error};

const DIRECTORY: &str = "/run/pando/ids";

/// The ids of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ids {
    /// Who root of the sandbox is outside. 0: the host's root, in a sandbox of a node that made no user namespaces.
    root: u32,
}

impl Ids {
    /// Those of a sandbox that exists, by its pid 1.
    pub(crate) fn of(init: ProcessIdentity) -> Result<Self, Error> {
        let maps = IdMaps::of(init.pid).map_err(io::Error::other).doing("read the ids of a sandbox")?;
        let none = || io::Error::from(io::ErrorKind::InvalidData);
        Ok(Self { root: maps.user_outside(0).ok_or_else(none).doing("read the ids of a sandbox")? })
    }

    /// The user or group outside that is `inside` in the sandbox.
    pub(crate) fn outside(self, inside: u32) -> u32 {
        self.root + inside
    }

    /// What has to be entered, beside other namespaces, to be in the sandbox.
    pub(crate) fn namespace(self) -> ThreadNameSpaceType {
        if self.are_own() { ThreadNameSpaceType::USER } else { ThreadNameSpaceType::empty() }
    }

    /// Makes a mount that is attached nowhere show owners on the disk as owners inside. `path` is for errors.
    pub(crate) fn map(self, mount: BorrowedFd<'_>, init: BorrowedFd<'_>, path: &Path) -> Result<(), Error> {
        if !self.are_own() {
            return Ok(());
        }
        let namespace = sys::pidfd::user_namespace(init).doing("open the user namespace of a sandbox")?;
        sys::mount::map_ids(mount, &namespace).map_err(|source| Error::NotMapped { path: path.to_owned(), source })
    }

    /// Whether the sandbox has a user namespace.
    pub(crate) fn are_own(self) -> bool {
        self.root != 0
    }

    fn number(self) -> Option<u32> {
        Some(self.root.checked_sub(IDS_FIRST)? / IDS_PER_SANDBOX)
    }

    /// Fills in the user namespace of a process that was just cloned into it.
    fn write(self, pid: i32) -> Result<(), Error> {
        let map = format!("0 {} {IDS_PER_SANDBOX}\n", self.root);
        for name in ["gid_map", "uid_map"] {
            let path = PathBuf::from(format!("/proc/{pid}/{name}"));
            fs::write(&path, &map).at("write", &path)?;
        }
        Ok(())
    }
}

/// A pid 1, and what is known of it.
pub(crate) struct First {
    pub(crate) forked: Forked,
    pub(crate) identity: ProcessIdentity,
    pub(crate) ids: Ids,
}

/// Has `fork` make a process with a user namespace of its own, and gives that a free range. The range is the process's until it is gone.
///
/// `fork` runs as root of the range: the kernel counts what is made in a user namespace for who made it, too. A failure leaves neither.
/// The process must wait until it is told that it has ids.
pub(crate) fn fork_with(fork: impl FnOnce() -> io::Result<Forked>) -> Result<First, Error> {
    let ranges = Ranges::lock(Path::new(DIRECTORY))?;
    let number = ranges.free()?;
    let ids = Ids { root: IDS_FIRST + number * IDS_PER_SANDBOX };
    let forked = sys::ids::act_as(ids.root, fork).doing("become a sandbox's root for a moment")?;
    let forked = forked.doing("fork the sandbox's first process")?;
    let given = ProcessIdentity::of(forked.pid)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
        .doing("read the start of a new process")
        .and_then(|identity| ranges.give(number, identity).map(|()| identity))
        .and_then(|identity| ids.write(forked.pid).map(|()| identity));
    match given {
        Ok(identity) => Ok(First { forked, identity, ids }),
        Err(error) => {
            crate::init::discard(&forked);
            ranges.take_back(number, |owner| !owner.is_some_and(is_there));
            Err(error)
        }
    }
}

/// Takes a range back from a pid 1 that is gone.
pub(crate) fn release(ids: Ids, init: ProcessIdentity) {
    let Some(number) = ids.number() else { return };
    // What stays is taken by the next who needs it.
    if let Ok(ranges) = Ranges::lock(Path::new(DIRECTORY)) {
        ranges.take_back(number, |owner| owner == Some(init));
    }
}

/// Removes the names of ranges whose processes are gone.
pub(crate) fn forget_dead() {
    // What stays is taken by the next who needs it.
    let Ok(ranges) = Ranges::lock(Path::new(DIRECTORY)) else { return };
    let Ok(entries) = fs::read_dir(&ranges.directory) else { return };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for number in numbers.collect::<Vec<u32>>() {
        ranges.take_back(number, |owner| !owner.is_some_and(is_there));
    }
}

/// The directory of the ranges, locked until this is dropped.
struct Ranges {
    directory: PathBuf,
    // A fork has the descriptor, too: the lock is given up by name, and not by closing.
    lock: File,
}

impl Ranges {
    fn lock(directory: &Path) -> Result<Self, Error> {
        let open = || File::open(directory);
        let lock = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(directory).at("create", directory)?;
                open()
            }
            opened => opened,
        };
        let lock = lock.at("open", directory)?;
        flock(&lock, FlockOperation::LockExclusive).at("lock", directory)?;
        Ok(Self { directory: directory.to_owned(), lock })
    }

    /// A range whose process is gone, or that never had one: not the one that was given last, so that what a dead sandbox leaves for a moment
    /// meets no other one.
    fn free(&self) -> Result<u32, Error> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for _ in 0..ID_RANGES_MAX {
            let number = NEXT.fetch_add(1, Ordering::Relaxed) % ID_RANGES_MAX;
            if self.take_back(number, |owner| !owner.is_some_and(is_there)) {
                return Ok(number);
            }
        }
        Err(Error::NoIds(self.directory.clone()))
    }

    fn give(&self, number: u32, owner: ProcessIdentity) -> Result<(), Error> {
        let path = self.path(number);
        symlink(format!("{}:{}", owner.pid, owner.start_ticks), &path).at("create the link", &path)
    }

    /// Frees a range if `may` says so of its process (none if the link says nothing); gives whether it is free.
    fn take_back(&self, number: u32, may: impl FnOnce(Option<ProcessIdentity>) -> bool) -> bool {
        let path = self.path(number);
        match fs::read_link(&path) {
            Err(error) => error.kind() == io::ErrorKind::NotFound,
            Ok(text) => may(text.to_str().and_then(parse)) && fs::remove_file(&path).is_ok(),
        }
    }

    fn path(&self, number: u32) -> PathBuf {
        self.directory.join(number.to_string())
    }
}

impl Drop for Ranges {
    fn drop(&mut self) {
        // Closing does it otherwise, once a child has closed it, too.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

fn parse(text: &str) -> Option<ProcessIdentity> {
    let (pid, ticks) = text.split_once(':')?;
    Some(ProcessIdentity { pid: pid.parse().ok()?, start_ticks: ticks.parse().ok()? })
}

/// Whether there is still something of the process: one that is exiting waits for its namespace to be empty.
fn is_there(owner: ProcessIdentity) -> bool {
    owner.now().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_free_when_its_process_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let ranges = Ranges::lock(dir.path()).unwrap();
        let own = ProcessIdentity::of(std::process::id() as i32).unwrap();
        let number = ranges.free().unwrap();
        ranges.give(number, own).unwrap();
        assert!(ranges.give(number, own).is_err());
        assert!(!ranges.take_back(number, |owner| !owner.is_some_and(is_there)));
        assert_ne!(ranges.free().unwrap(), number);
        let earlier = ProcessIdentity { start_ticks: own.start_ticks - 1, ..own };
        let another = ranges.free().unwrap();
        ranges.give(another, earlier).unwrap();
        assert!(ranges.take_back(another, |owner| !owner.is_some_and(is_there)));
        symlink("nonsense", ranges.path(another)).unwrap();
        assert!(ranges.take_back(another, |owner| !owner.is_some_and(is_there)));
        assert!(ranges.take_back(number, |owner| owner == Some(own)));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn ids_of_a_sandbox_are_those_of_its_range() {
        let ids = Ids { root: IDS_FIRST + 7 * IDS_PER_SANDBOX };
        assert_eq!((ids.number(), ids.outside(1_000) - ids.outside(0)), (Some(7), 1_000));
        assert_eq!(Ids { root: 0 }.number(), None);
        assert!(i32::try_from(u64::from(IDS_FIRST) + u64::from(ID_RANGES_MAX) * u64::from(IDS_PER_SANDBOX)).is_ok());
    }
}
