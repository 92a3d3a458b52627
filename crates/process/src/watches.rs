//! What inotify instances watch. The kernel tells it by inode only, and copies need paths.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, BorrowedFd},
};

use crate::{
    error::{Context, Error},
    listed::{Listed, list},
    mappings,
    procfs::Fields,
    search,
};

/// Most directory entries looked at while the program runs: about two seconds.
const LOOK_MAX: usize = 200_000;

/// Most directory entries looked at in the pause, for what the program has only just begun to watch or has moved: about 20 ms.
const PAUSE_MAX: usize = 2_000;

/// Watched inodes and their paths.
pub(crate) type Watched = HashMap<u64, Vec<u8>>;

/// A watch as the kernel shows it.
pub(crate) struct Shown {
    pub(crate) wd: i32,
    pub(crate) inode: u64,
    pub(crate) mask: u32,
}

/// The watches of an inotify instance.
pub(crate) fn of(info: &Fields) -> impl Iterator<Item = Shown> {
    // "inotify wd:1 ino:2f sdev:3b mask:fce ignored_mask:0 ..."
    info.lines().filter_map(|line| line.strip_prefix("inotify ")).map(|line| Shown {
        wd: field(line, "wd") as i32,
        inode: field(line, "ino"),
        mask: field(line, "mask") as u32,
    })
}

/// A hexadecimal field of a watch.
fn field(line: &str, name: &str) -> u64 {
    let value = line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix(':'));
    value.and_then(|value| u64::from_str_radix(value, 16).ok()).unwrap_or(0)
}

/// Where the inodes are that process `pid`, which may run, watches; as far as found.
pub(crate) fn find(pid: i32) -> Result<Watched, Error> {
    search::find(pid, &inodes(&list(pid)?), LOOK_MAX)
}

/// The same for descriptors that do not change any more, by what was found when they still could.
pub(crate) fn confirm(pid: i32, listed: &[Listed], known: &Watched) -> Result<Watched, Error> {
    let mut wanted = inodes(listed);
    if wanted.is_empty() {
        return Ok(Watched::new());
    }
    let root = mappings::open_root(pid)?;
    let device = rustix::fs::fstat(&root).of("read the root directory", pid)?.st_dev;
    let is_there = |inode: &u64, path: &[u8]| inode_at(root.as_fd(), path) == Some((device, *inode));
    let known = known.iter().filter(|(inode, path)| wanted.contains(inode) && is_there(inode, path));
    let mut found: Watched = known.map(|(inode, path)| (*inode, path.clone())).collect();
    wanted.retain(|inode| !found.contains_key(inode));
    found.extend(search::find(pid, &wanted, PAUSE_MAX)?);
    Ok(found)
}

fn inode_at(root: BorrowedFd<'_>, path: &[u8]) -> Option<(u64, u64)> {
    let status = mappings::open_inside(root, path).and_then(rustix::fs::fstat).ok()?;
    Some((status.st_dev, status.st_ino))
}

/// The inodes that all inotify instances watch.
fn inodes(listed: &[Listed]) -> HashSet<u64> {
    let instances = listed.iter().filter(|listed| listed.link == b"anon_inode:inotify");
    instances.flat_map(|listed| of(&listed.info)).map(|watch| watch.inode).collect()
}
