//! Files and directories of `/proc` that need little parsing.

use std::{
    fs,
    os::{
        fd::AsFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
};

use crate::error::{Context, Error};

/// The whole content of a file of `/proc`.
///
/// Such files have no size, so `fs::read` begins with reads of 32 bytes. The kernel gives at most a page or two at once.
pub fn read(path: &str) -> Result<Vec<u8>, Error> {
    const ROOM: usize = 8 << 10;
    let file = fs::File::open(path).on("read", path)?;
    let mut bytes = Vec::new();
    loop {
        bytes.reserve(ROOM);
        if rustix::io::read(file.as_fd(), rustix::buffer::spare_capacity(&mut bytes)).on("read", path)? == 0 {
            return Ok(bytes);
        }
    }
}

/// What a file of one line says, without white space around it. Bytes that are not UTF-8 are replaced.
pub fn text(path: &str) -> Result<String, Error> {
    Ok(String::from_utf8_lossy(&read(path)?).trim().to_owned())
}

/// What a symbolic link of `/proc` says. It need not be a path that exists: ` (deleted)` may follow, and `pipe:[1]` is no path.
pub fn link(path: &str) -> Result<Vec<u8>, Error> {
    Ok(fs::read_link(path).on("read link", path)?.into_os_string().into_vec())
}

/// The numeric entries of a directory such as `/proc`, `/proc/PID/task` or `/proc/PID/fd`, in ascending order.
pub fn numbers(path: &str) -> Result<Vec<i32>, Error> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).on("list", path)? {
        let entry = entry.on("list", path)?;
        if let Some(number) = std::str::from_utf8(entry.file_name().as_bytes()).ok().and_then(|name| name.parse().ok())
        {
            found.push(number);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The children that thread `tid` of process `pid` has begun. An error on a kernel without `CONFIG_PROC_CHILDREN`.
pub fn children(pid: i32, tid: i32) -> Result<Vec<i32>, Error> {
    let children = read(&format!("/proc/{pid}/task/{tid}/children"))?;
    Ok(String::from_utf8_lossy(&children).split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// The nice value of a process's group of the scheduler; 0 on a kernel without such groups.
pub fn autogroup_nice(pid: i32) -> i32 {
    // "/autogroup-123 nice 5"
    let line = text(&format!("/proc/{pid}/autogroup")).unwrap_or_default();
    line.rsplit(' ').next().and_then(|nice| nice.parse().ok()).unwrap_or(0)
}

/// Number of resource limits Linux has (RLIM_NLIMITS).
const LIMITS: usize = 16;

/// Soft and hard limits of a process in the order of their numbers (`RLIMIT_CPU` is 0), each in the unit of setrlimit(2). `u64::MAX`: none.
pub fn limits(pid: i32) -> Result<Vec<(u64, u64)>, Error> {
    let text = String::from_utf8_lossy(&read(&format!("/proc/{pid}/limits"))?).into_owned();
    let mut found = Vec::with_capacity(LIMITS);
    for line in text.lines().skip(1) {
        // "Max cpu time              unlimited            unlimited            seconds": the name is 25 columns wide.
        let mut values =
            line.get(25..).unwrap_or("").split_ascii_whitespace().map(|value| value.parse().unwrap_or(u64::MAX));
        found.push((values.next().unwrap_or(u64::MAX), values.next().unwrap_or(u64::MAX)));
    }
    found.truncate(LIMITS);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_limits_and_threads_are_readable() {
        let pid = std::process::id() as i32;
        assert_eq!(limits(pid).unwrap().len(), LIMITS);
        assert!(numbers(&format!("/proc/{pid}/task")).unwrap().contains(&pid));
    }
}
