//! What inotify instances watch. The kernel names inodes only, and copies need paths.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use procfs::Fields;
use sys::remote;

use crate::{
    error::{Context, Error},
    observe::{
        listed::{Listed, list},
        root,
        search::{self, FileHandle, FoundPath, Reach},
    },
};

/// How far the search goes while the program runs: about two seconds.
const LOOK: Reach = Reach { directories: 15_000, entries: 1_000_000 };

/// How far it goes in the pause, for what the program has only just begun to watch or has moved: about 20 ms.
const LOOK_IN_PAUSE: Reach = Reach { directories: 150, entries: 20_000 };

/// How long a program gets to read the events that wait for it, among them those of the search.
const READ_MAX: Duration = Duration::from_millis(100);

/// Watched files and their paths.
pub(crate) type Watched = HashMap<FileHandle, FoundPath>;

/// A watch as the kernel shows it.
pub(crate) struct Shown {
    pub(crate) wd: i32,
    pub(crate) file: FileHandle,
    pub(crate) mask: u32,
}

/// The watches of an inotify instance.
pub(crate) fn of(info: &Fields) -> impl Iterator<Item = Shown> {
    // "inotify wd:1 ino:2f sdev:3b mask:fce ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:0a0b..."
    info.lines().filter_map(|line| line.strip_prefix("inotify ")).map(|line| {
        // The kernel fills the last word.
        let mut handle = bytes(text(line, "f_handle"));
        handle.truncate(field(line, "fhandle-bytes") as usize);
        Shown {
            wd: field(line, "wd") as i32,
            file: FileHandle { inode: field(line, "ino"), handle },
            mask: field(line, "mask") as u32,
        }
    })
}

fn text<'a>(line: &'a str, name: &str) -> &'a str {
    let value = line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_default()
}

/// A hexadecimal field of a watch.
fn field(line: &str, name: &str) -> u64 {
    u64::from_str_radix(text(line, name), 16).unwrap_or(0)
}

fn bytes(digits: &str) -> Vec<u8> {
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.as_bytes().as_chunks().0.iter().map_while(byte).collect()
}

/// Where the files are that process `pid`, which may run, watches; as far as found. Gives it time to read what waits for it.
pub(crate) fn find(pid: i32) -> Result<Watched, Error> {
    let listed = list(pid)?;
    let wanted = files(&listed);
    if wanted.is_empty() {
        return Ok(Watched::new());
    }
    let loud = loud(&listed);
    let likely: Vec<Vec<u8>> =
        listed.iter().filter(|listed| listed.link.starts_with(b"/")).map(|listed| listed.link.clone()).collect();
    let places = search::Where { likely: &likely, loud: &loud, directories: &directories(&listed) };
    let found = search::find(pid, &wanted, &places, LOOK)?;
    let began = Instant::now();
    while began.elapsed() < READ_MAX && instances(&listed).any(|fd| waiting_bytes(pid, fd).unwrap_or(0) > 0) {
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(found)
}

/// The same for descriptors that do not change any more, by what was found when they still could.
pub(crate) fn confirm(pid: i32, listed: &[Listed], known: &Watched) -> Result<Watched, Error> {
    let mut wanted = files(listed);
    if wanted.is_empty() {
        return Ok(Watched::new());
    }
    let root = root::open_root(pid)?;
    let is_there = |file: &FileHandle, place: &FoundPath| {
        let found = search::identity(root.as_fd(), &place.path).ok();
        found.is_some_and(|(found, _)| {
            found.inode == file.inode && (file.handle.is_empty() || file.handle == found.handle)
        })
    };
    let known = known.iter().filter(|(file, place)| wanted.contains(file) && is_there(file, place));
    let mut found: Watched = known.map(|(file, place)| (file.clone(), place.clone())).collect();
    wanted.retain(|file| !found.contains_key(file));
    let places = search::Where { likely: &[], loud: &loud(listed), directories: &directories(listed) };
    found.extend(search::find(pid, &wanted, &places, LOOK_IN_PAUSE)?);
    Ok(found)
}

/// Bytes of events that wait to be read.
pub(crate) fn waiting_bytes(pid: i32, fd: i32) -> Result<u64, Error> {
    const WHAT: &str = "read what waits at an inotify instance";
    let process =
        rustix::process::Pid::from_raw(pid).ok_or(Error::Unexpected { pid, what: "is no process id".into() })?;
    let process = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).of(WHAT, pid)?;
    let instance: OwnedFd = remote::take_descriptor(process.as_fd(), fd).of(WHAT, pid)?;
    rustix::io::ioctl_fionread(&instance).of(WHAT, pid)
}

fn instances(listed: &[Listed]) -> impl Iterator<Item = i32> {
    listed.iter().filter(|listed| listed.link == b"anon_inode:inotify").map(|listed| listed.fd)
}

/// Inodes of directories whose watches see a search.
fn loud(listed: &[Listed]) -> HashSet<u64> {
    const SEES_SEARCHES: u32 = libc::IN_OPEN | libc::IN_ACCESS | libc::IN_CLOSE_NOWRITE;
    let instances = listed.iter().filter(|listed| listed.link == b"anon_inode:inotify");
    let sees = |watch: &Shown| watch.mask & SEES_SEARCHES != 0;
    instances.flat_map(|listed| of(&listed.info)).filter(sees).map(|watch| watch.file.inode).collect()
}

/// Inodes whose watches want nothing but events of directories.
fn directories(listed: &[Listed]) -> HashSet<u64> {
    const OF_DIRECTORIES: u32 = libc::IN_CREATE | libc::IN_DELETE | libc::IN_MOVED_FROM | libc::IN_MOVED_TO;
    let instances = listed.iter().filter(|listed| listed.link == b"anon_inode:inotify");
    let only = |watch: &Shown| {
        let events = watch.mask & libc::IN_ALL_EVENTS;
        events != 0 && events & !OF_DIRECTORIES == 0
    };
    instances.flat_map(|listed| of(&listed.info)).filter(only).map(|watch| watch.file.inode).collect()
}

/// The files that all inotify instances watch.
fn files(listed: &[Listed]) -> HashSet<FileHandle> {
    let instances = listed.iter().filter(|listed| listed.link == b"anon_inode:inotify");
    instances.flat_map(|listed| of(&listed.info)).map(|watch| watch.file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_read_as_the_kernel_lists_it() {
        let info = Fields::of(
            "inotify wd:1 ino:2f sdev:3b mask:fce ignored_mask:0 fhandle-bytes:3 fhandle-type:1 f_handle:0a0bff00",
        );
        let watch = of(&info).next().unwrap();
        assert_eq!((watch.wd, watch.mask), (1, 0xfce));
        assert_eq!(watch.file, FileHandle { inode: 0x2f, handle: vec![0x0a, 0x0b, 0xff] });
    }
}
