//! Writing back what programs have written to files through mappings.
//!
//! For a filesystem in FUSE, syncfs(2) starts that and does not wait for it (Linux "fs/writeback: skip AS_NO_DATA_INTEGRITY mappings in
//! wait_sb_inodes()" and "writeback: don't block sync for filesystems with no data integrity guarantees", both in stable kernels too). A file's
//! own sync waits, and it is known which files need one: without `FUSE_WRITEBACK_CACHE` nothing but a shared mapping makes a page dirty, and the
//! kernel waits itself for what it writes back when a mapping goes (`fuse_vma_close`), or its process. What is dirty is still mapped.

use std::{collections::HashSet, fs::File, io, os::fd::OwnedFd};

use rustix::{fs::fstat, io::Errno};

use crate::{
    error::{Context, Error},
    procfs::{MapLine, mappings, numbers},
};

/// How often a process may change its mappings between their being listed and their being opened.
const ATTEMPTS_MAX: usize = 100;

/// Writes back all that these processes have written through mappings to files of `filesystem`, a descriptor in it, and waits until the
/// filesystem has it, which need not be durably. Processes may end meanwhile, map and unmap.
///
/// # Errors
///
/// `/proc` cannot be read, a process never ceases to change its mappings, or the filesystem has not taken what was written (`ENOSPC`, `EIO`).
pub fn write_back(processes: &[i32], filesystem: &OwnedFd) -> Result<(), Error> {
    let device = fstat(filesystem).on("look at", "the filesystem")?.st_dev;
    let mut done = HashSet::new();
    for &process in processes {
        let mut attempts = 0;
        while !write_back_once(process, device, &mut done)? {
            attempts += 1;
            if attempts == ATTEMPTS_MAX {
                return Err(Error::Unexpected { pid: process, what: "never ceases to change its mappings".into() });
            }
        }
    }
    Ok(())
}

/// Every process of `/proc` whose mappings this one may look at: of others it may be refused those that have capabilities that it lacks.
///
/// # Errors
///
/// `/proc` cannot be read.
pub fn all_processes() -> Result<Vec<i32>, Error> {
    let mut processes = numbers("/proc")?;
    processes.retain(|pid| File::open(format!("/proc/{pid}/maps")).is_ok());
    Ok(processes)
}

/// False if a mapping was not found any more: it may have become two, or part of another one.
fn write_back_once(process: i32, device: u64, done: &mut HashSet<u64>) -> Result<bool, Error> {
    let mut all_found = true;
    let (pid, lines) = all_mappings(process)?;
    // Also what cannot be written through any more.
    for line in lines.iter().filter(|line| line.shared && line.dev == device) {
        if done.contains(&line.inode) {
            continue;
        }
        let path = line.link(pid);
        match File::open(&path) {
            Ok(file) => {
                sys::file::write_back(&file).on("write back", String::from_utf8_lossy(&line.path))?;
                done.insert(line.inode);
            }
            Err(error) if has_gone(&error) => all_found = false,
            Err(error) => return Err(error).on("open", path),
        }
    }
    Ok(all_found)
}

/// With the process or thread by which they are found. One that has ended has none.
fn all_mappings(process: i32) -> Result<(i32, Vec<MapLine>), Error> {
    let of = |pid| none_if_gone(mappings(pid, "maps"));
    let lines = of(process)?;
    if !lines.is_empty() {
        return Ok((process, lines));
    }
    // A main thread that has ended before others shows none. Kernel threads and the dead have no others.
    for thread in none_if_gone(numbers(&format!("/proc/{process}/task")))? {
        let lines = of(thread)?;
        if !lines.is_empty() {
            return Ok((thread, lines));
        }
    }
    Ok((process, Vec::new()))
}

fn none_if_gone<T>(found: Result<Vec<T>, Error>) -> Result<Vec<T>, Error> {
    match found {
        Err(Error::File { source, .. }) if has_gone(&source) => Ok(Vec::new()),
        found => found,
    }
}

fn has_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::SRCH))
}
