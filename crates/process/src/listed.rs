//! Descriptors as /proc lists them.

use crate::{
    error::Error,
    procfs::{self, Fields},
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
        let entry = (procfs::link(&format!("/proc/{pid}/fd/{fd}")), Fields::read(format!("/proc/{pid}/fdinfo/{fd}")));
        let (link, info) = match entry {
            // A process that is only looked at runs, and may have closed it.
            (Err(error), _) | (_, Err(error)) if procfs::is_gone(&error) => continue,
            (link, info) => (link?, info?),
        };
        let flags = info.number("flags", 8)? as i32;
        let offset = info.number("pos", 10)?;
        listed.push(Listed { fd, link, info, flags, offset });
    }
    Ok(listed)
}

impl Listed {
    /// A lock that is held through this descriptor.
    pub(crate) fn lock(&self) -> Option<Refusal> {
        // "lock:   1: FLOCK  ADVISORY  WRITE 2 00:2f:1234 0 EOF"
        let line = self.info.lines().find(|line| line.starts_with("lock:"))?;
        let kind = line.split_ascii_whitespace().nth(2).unwrap_or_default();
        let lock = match kind {
            "POSIX" => "POSIX (fcntl)",
            "OFDLCK" => "OFD (fcntl)",
            "FLOCK" => "flock",
            other => other,
        };
        let path = String::from_utf8_lossy(&self.link).into_owned();
        Some(Refusal::FileLock { fd: self.fd, lock: lock.into(), path })
    }
}

/// `42` of `pipe:[42]`.
pub(crate) fn bracketed(link: &[u8], prefix: &[u8]) -> Option<u64> {
    std::str::from_utf8(link.strip_prefix(prefix)?.strip_suffix(b"]")?).ok()?.parse().ok()
}
