//! Descriptors as /proc lists them.

use procfs::Fields;

use crate::{
    error::Error,
    image::{FileLock, LockKind},
    observe::links,
    refusal::Refusal,
};

/// One descriptor.
pub(crate) struct Listed {
    pub(crate) fd: i32,
    pub(crate) link: Vec<u8>,
    pub(crate) info: Fields,
    pub(crate) flags: i32,
    pub(crate) offset: u64,
}

/// All descriptors of process `pid`.
pub(crate) fn list(pid: i32) -> Result<Vec<Listed>, Error> {
    let mut listed = Vec::new();
    for fd in procfs::numbers(&format!("/proc/{pid}/fd"))? {
        listed.extend(one(pid, fd, pid)?);
    }
    Ok(listed)
}

/// One descriptor of process `pid`, of a file that process `inside` sees by its name.
pub(crate) fn one(pid: i32, fd: i32, inside: i32) -> Result<Option<Listed>, Error> {
    let entry = (procfs::link(&format!("/proc/{pid}/fd/{fd}")), Fields::read(format!("/proc/{pid}/fdinfo/{fd}")));
    let (link, info) = match entry {
        // A process that is only looked at runs, and may have closed it.
        (Err(error), _) | (_, Err(error)) if error.is_gone() => return Ok(None),
        (link, info) => (link?, info?),
    };
    let status = || std::fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok();
    let link = links::other_name(inside, &link, status).unwrap_or(link);
    let flags = info.number("flags", 8)? as i32;
    let offset = info.number("pos", 10)?;
    Ok(Some(Listed { fd, link, info, flags, offset }))
}

impl Listed {
    /// The locks that its open file holds, and those of the process on the file, which any descriptor of it shows.
    pub(crate) fn locks(&self) -> Result<Vec<FileLock>, Refusal> {
        let lines = self.info.lines().filter_map(|line| line.strip_prefix("lock:"));
        let mut locks = Vec::new();
        for line in lines {
            match lock(self.fd, line) {
                // What the process holds was taken by a descriptor that could: that one shows it too.
                Some(lock) if lock.kind == LockKind::Process && !self.can_take(&lock) => {}
                Some(lock) => locks.push(lock),
                None => {
                    let kind = line.split_ascii_whitespace().nth(1).unwrap_or_default().to_owned();
                    let path = String::from_utf8_lossy(&self.link).into_owned();
                    return Err(Refusal::FileLock { fd: self.fd, lock: kind, path });
                }
            }
        }
        Ok(locks)
    }

    /// Locks of ranges want a descriptor that can write, if they are exclusive, or else read.
    fn can_take(&self, lock: &FileLock) -> bool {
        let cannot = if lock.exclusive { libc::O_RDONLY } else { libc::O_WRONLY };
        self.flags & libc::O_ACCMODE != cannot
    }
}

/// A lock as the kernel lists it; none for what is no lock of a file's bytes (leases).
fn lock(fd: i32, line: &str) -> Option<FileLock> {
    // "   1: FLOCK  ADVISORY  WRITE 2 00:2f:1234 0 EOF": its last byte is the last that is locked
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let &[_, kind, _, access, _, _, start, last] = &words[..] else { return None };
    let kind = match kind {
        "FLOCK" => LockKind::OpenFile,
        "OFDLCK" => LockKind::OpenFileRange,
        "POSIX" => LockKind::Process,
        _ => return None,
    };
    let exclusive = match access {
        "WRITE" => true,
        "READ" => false,
        _ => return None,
    };
    let start: u64 = start.parse().ok()?;
    let length = match last {
        "EOF" => 0,
        last => last.parse::<u64>().ok()?.checked_sub(start)?.checked_add(1)?,
    };
    Some(FileLock { fd, kind, exclusive, start, length })
}

/// `42` of `pipe:[42]`.
pub(crate) fn bracketed(link: &[u8], prefix: &[u8]) -> Option<u64> {
    std::str::from_utf8(link.strip_prefix(prefix)?.strip_suffix(b"]")?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_read_as_the_kernel_lists_them() {
        let read = |line| lock(3, line).map(|lock| (lock.kind, lock.exclusive, lock.start, lock.length));
        assert_eq!(read("\t1: FLOCK  ADVISORY  WRITE 2 00:2f:1234 0 EOF"), Some((LockKind::OpenFile, true, 0, 0)));
        assert_eq!(read("\t2: POSIX  ADVISORY  READ 2 fe:00:99 128 128"), Some((LockKind::Process, false, 128, 1)));
        assert_eq!(read("\t3: OFDLCK ADVISORY  WRITE -1 fe:00:99 4 9"), Some((LockKind::OpenFileRange, true, 4, 6)));
        for other in ["\t1: LEASE  ACTIVE    READ 2 00:2f:1234 0 EOF", "", "1: POSIX ADVISORY READ 2 fe:00:99 9 4"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
