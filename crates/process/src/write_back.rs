//! Writing back what programs have written to files through mappings.
//!
//! For a filesystem in FUSE, syncfs(2) starts that and does not wait for it (Linux "fs/writeback: skip AS_NO_DATA_INTEGRITY mappings in
//! wait_sb_inodes()" and "writeback: don't block sync for filesystems with no data integrity guarantees", both in stable kernels too). A file's
//! own sync waits, and it is known which files need one: without `FUSE_WRITEBACK_CACHE` nothing but a shared mapping makes a page dirty, and the
//! kernel writes back itself when a mapping goes (`fuse_vma_close`), or its process, before either is done. What is dirty is mapped, or being unmapped.

use std::{
    collections::HashSet,
    fs::File,
    io::ErrorKind,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use crate::{
    error::{Context, Error},
    procfs::{MapLine, Stat, is_gone, mappings, numbers, read},
};

/// How long a process may take to end: the kernel writes back what it had mapped meanwhile.
const END_MAX: Duration = Duration::from_secs(5);

/// How often it is looked whether it has.
const END_CHECK: Duration = Duration::from_millis(1);

/// How often a process may move a mapping between its being listed and its being opened.
const MOVES_MAX: usize = 100;

/// Whose mappings are written back.
#[derive(Debug, Clone, Copy)]
pub enum Whose<'a> {
    /// These processes'; some may be gone.
    These(&'a [i32]),
    /// Those of every process in `/proc` that this one may look at: it may be refused those that have capabilities that it lacks.
    Anybody,
}

/// A filesystem as proc_pid_mountinfo(5) shows its mounts.
#[derive(Debug, Clone, Copy)]
pub struct Filesystem<'a> {
    /// Its type, such as `fuse.pando`.
    pub kind: &'a str,
    /// What it is mounted from.
    pub source: &'a str,
}

/// Writes back all that processes have written, through mappings, to files of a filesystem that they see, and waits until the filesystem has
/// it, which need not be durably. Who has begun to end is waited for. What a program unmaps at this moment, or leaves by execve(2), the kernel
/// may still be writing back: it has not been told that it is done.
///
/// A file that is gone from the filesystem, or a filesystem that takes nothing any more (`ESTALE`, `EROFS`), has nothing to be waited for.
///
/// # Errors
///
/// `/proc` cannot be read, a process does not end or never ceases to move a mapping, or the filesystem has not taken what was written
/// (`ENOSPC`, `EIO`).
pub fn write_back(whose: Whose<'_>, filesystem: Filesystem<'_>) -> Result<(), Error> {
    let mut done = HashSet::new();
    match whose {
        Whose::These(processes) => {
            processes.iter().try_for_each(|process| write_back_of(*process, filesystem, &mut done))
        }
        Whose::Anybody => numbers("/proc")?.into_iter().filter(|process| may_share(*process)).try_for_each(|process| {
            match write_back_of(process, filesystem, &mut done) {
                Err(Error::File { source, .. }) if source.kind() == ErrorKind::PermissionDenied => Ok(()),
                written => written,
            }
        }),
    }
}

/// Whether a process may have files mapped shared, or have had and be ending: few do, and reading what they have mapped takes longer.
fn may_share(process: i32) -> bool {
    let Ok(maps) = File::open(format!("/proc/{process}/maps")) else { return true };
    match sys::file::maps_shared_file(maps) {
        Ok(shares) => shares,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
            !Stat::read(&process.to_string()).is_ok_and(|stat| stat.is_kernel_thread())
        }
        Err(_) => true,
    }
}

/// A file by its device and number.
type Identity = (u64, u64);

fn write_back_of(process: i32, filesystem: Filesystem<'_>, done: &mut HashSet<Identity>) -> Result<(), Error> {
    let mut wanted: Option<HashSet<Identity>> = None;
    for _ in 0..MOVES_MAX {
        let (pid, mapped) = shared_files(process, filesystem)?;
        let listed: HashSet<Identity> = mapped.iter().map(identity).filter(|file| !done.contains(file)).collect();
        // What is mapped later was written to later.
        let mut left: HashSet<Identity> = match &wanted {
            None => listed,
            Some(wanted) => wanted & &listed,
        };
        for line in &mapped {
            let file = identity(line);
            // One that is not found there has become two, or a part of another one, or is somewhere else, or gone.
            if left.contains(&file) && write_back_mapped(pid, line)? {
                left.remove(&file);
                done.insert(file);
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        wanted = Some(left);
    }
    Err(Error::Unexpected { pid: process, what: "never ceases to move its mappings".into() })
}

fn identity(line: &MapLine) -> Identity {
    (line.dev, line.inode)
}

/// False if it is not mapped there any more.
fn write_back_mapped(pid: i32, line: &MapLine) -> Result<bool, Error> {
    let path = line.link(pid);
    let written = File::open(&path).on("open", path).and_then(|file| {
        // With what has not been reported of earlier failures.
        sys::file::write_back(&file).on("write back", String::from_utf8_lossy(&line.path))
    });
    match written {
        Err(error) if is_gone(&error) => Ok(false),
        Err(Error::File { source, .. })
            if matches!(Errno::from_io_error(&source), Some(Errno::STALE | Errno::ROFS)) =>
        {
            Ok(true)
        }
        written => written.map(|()| true),
    }
}

/// The shared mappings of files of a filesystem, also those that cannot be written through any more, and by whom they are found.
fn shared_files(process: i32, filesystem: Filesystem<'_>) -> Result<(i32, Vec<MapLine>), Error> {
    let (pid, mut lines) = all_mappings(process)?;
    lines.retain(|line| line.shared && line.inode != 0);
    if !lines.is_empty() {
        let path = format!("/proc/{pid}/mountinfo");
        let mounts = match read(&path) {
            // The answer for one that has let go of its mounts, and before of its memory.
            Err(Error::File { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => Vec::new(),
            Err(error) if is_gone(&error) => Vec::new(),
            mounts => mounts?,
        };
        let devices = devices(&String::from_utf8_lossy(&mounts), filesystem);
        lines.retain(|line| devices.contains(&line.dev));
    }
    Ok((pid, lines))
}

/// With the process or thread by which they are found. One that has ended has none.
fn all_mappings(process: i32) -> Result<(i32, Vec<MapLine>), Error> {
    let began = Instant::now();
    loop {
        let lines = none_if_gone(mappings(process, "maps"))?;
        if !lines.is_empty() {
            return Ok((process, lines));
        }
        // A main thread that has ended before others shows none. Kernel threads and the dead have no others.
        let mut ending = false;
        for thread in none_if_gone(numbers(&format!("/proc/{process}/task")))? {
            let lines = none_if_gone(mappings(thread, "maps"))?;
            if !lines.is_empty() {
                return Ok((thread, lines));
            }
            match Stat::read(&format!("{process}/task/{thread}")) {
                Err(error) if is_gone(&error) => {}
                stat => ending |= stat?.is_on_its_way_out(),
            }
        }
        if !ending {
            return Ok((process, Vec::new()));
        }
        if began.elapsed() > END_MAX {
            return Err(Error::Unexpected { pid: process, what: "does not end".into() });
        }
        std::thread::sleep(END_CHECK);
    }
}

/// The devices of the filesystem's mounts.
fn devices(mountinfo: &str, filesystem: Filesystem<'_>) -> Vec<u64> {
    let device = |line: &str| {
        let (mount, mounted) = line.split_once(" - ")?;
        let mut mounted = mounted.split(' ');
        if (mounted.next()?, mounted.next()?) != (filesystem.kind, filesystem.source) {
            return None;
        }
        let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
        Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    };
    mountinfo.lines().filter_map(device).collect()
}

fn none_if_gone<T>(found: Result<Vec<T>, Error>) -> Result<Vec<T>, Error> {
    match found {
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filesystem_is_found_by_its_type_and_source() {
        let mounts = "36 35 0:98 / /mnt/a\\040b rw,noatime - fuse.pando ws rw\n37 35 8:1 / /mnt rw shared:1 - ext4 ws rw\n\
                      38 35 0:99 / /c rw - fuse.pando ws2 rw\n39 35 0:300 / /d ro shared:2 - fuse.pando ws rw\n";
        let of = |kind, source| devices(mounts, Filesystem { kind, source });
        assert_eq!(of("fuse.pando", "ws"), [rustix::fs::makedev(0, 98), rustix::fs::makedev(0, 300)]);
        assert_eq!(of("ext4", "ws"), [rustix::fs::makedev(8, 1)]);
        assert!(of("fuse.pando", "other").is_empty());
    }
}
