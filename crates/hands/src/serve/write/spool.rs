//! Where a long upload waits until all of it is there: a file without a name, which ends with the hand.

use std::{
    fs::File,
    io::{Seek, SeekFrom},
    path::Path,
};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open, stat};

use super::{super::compose, Behind, Job, write_all};
use crate::protocol::Problem;

/// Directories that every user may write to. A directory that is watched would report writes to the nameless file, so
/// the one that is seldom watched comes first.
const DIRECTORIES: [&str; 2] = ["/var/tmp", "/tmp"];

/// Mode of a new file: 0644 with this process's umask.
pub(super) const FILE: Mode = Mode::from_raw_mode(0o666);

/// A file without a name.
#[derive(Debug)]
pub(super) struct Spool {
    file: File,
    bytes: u64,
    last: u8,
    behind: Behind,
    device: u64,
}

impl Spool {
    /// None if no filesystem of the sandbox has such files where the user may make one.
    pub(super) fn new() -> Option<Self> {
        DIRECTORIES.iter().find_map(|directory| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let file = File::from(open(*directory, flags, FILE).ok()?);
            let device = stat(*directory).ok()?.st_dev;
            Some(Self { file, bytes: 0, last: 0, behind: Behind::default(), device })
        })
    }

    /// Bytes that are in it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is on the filesystem of a directory.
    pub(super) fn is_beside(&self, directory: &Path) -> bool {
        stat(directory).is_ok_and(|stat| stat.st_dev == self.device)
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        write_all(&self.file, bytes)?;
        self.bytes += bytes.len() as u64;
        self.last = bytes.last().copied().unwrap_or(self.last);
        self.behind.advance(&self.file, bytes.len() as u64);
        Ok(())
    }

    /// Gives it a name that no file has. False if one has it by now, or the kernel or the filesystem cannot do that.
    pub(super) fn link(&self, path: &Path) -> bool {
        // Since Linux 6.10 for the one who opened it, before for privileged processes only: ENOENT.
        linkat(&self.file, "", CWD, path, AtFlags::EMPTY_PATH).is_ok()
    }

    /// Its last byte. It has some: short uploads wait in memory.
    pub(super) fn last(&self) -> u8 {
        self.last
    }

    /// Copies all of it to where the other file is.
    pub(super) fn copy_to(mut self, job: &Job, file: &File) -> Result<(), Problem> {
        self.file.seek(SeekFrom::Start(0))?;
        while compose::copy_some(&self.file, file)? > 0 {
            job.check_cancelled()?;
        }
        Ok(())
    }
}
