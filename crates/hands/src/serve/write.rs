//! Taking the bytes of a file.
//!
//! The steps are those of E2B's daemon, so that watchers see the same events: for a new file `CREATE`, `CHMOD`, `WRITE`; for one that is
//! there `CHMOD`, `WRITE` for the truncation, `WRITE` for the content. Metadata adds `CHMOD`, once for each key.

use std::{fs::File, os::fd::OwnedFd, path::Path, sync::mpsc::RecvTimeoutError, time::Duration};

use base::limits::HAND_PEER_IDLE_S;
use rustix::{
    event::PollFlags,
    fs::{Mode, OFlags, fchown, fstat, ftruncate, lstat, open, unlink},
    io::Errno,
    process::{getegid, geteuid},
};

use super::{
    Control, Job,
    behind::Behind,
    change, metadata,
    open::{NEVER_WAIT, checked, refusal},
};
use crate::protocol::{FromHand, Metadata, Opened, Problem};

/// Bytes that are collected before the first write, so that a small file is written at once: one event for watchers.
const FIRST_BYTES: usize = 64 << 10;

/// Bytes that are written at once.
const COPY_BYTES: usize = 256 << 10;

/// How often a file may appear and disappear between two steps.
const TRIES_MAX: u32 = 100;

/// Replaces the content of a file by what comes out of `pipe`.
pub(super) fn write(job: &Job, path: &Path, metadata: Option<&Metadata>, pipe: OwnedFd) -> Result<FromHand, Problem> {
    metadata.map_or(Ok(()), metadata::check)?;
    change::make_parents(path)?;
    let target = Target::open(path)?;
    let filled = target.fill(job, metadata, &pipe);
    // The node hears of a failure by the answer. It must not wait for room in the pipe meanwhile.
    drop(pipe);
    match filled {
        Ok(()) => job.entry(path),
        Err(problem) => {
            target.undo();
            Err(problem)
        }
    }
}

/// The file that is written.
struct Target<'a> {
    path: &'a Path,
    file: File,
    modified_ns: i64,
    /// Whether it was not there before.
    created: bool,
}

impl<'a> Target<'a> {
    fn open(path: &'a Path) -> Result<Self, Problem> {
        for _ in 0..TRIES_MAX {
            match open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | NEVER_WAIT, FILE) {
                Ok(file) => return Self::new(path, file, true),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(refusal(path, errno)),
            }
            match open(path, OFlags::WRONLY | NEVER_WAIT, Mode::empty()) {
                Ok(file) => return Self::new(path, file, false),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(refusal(path, errno)),
            }
            // A link to a file that is not there, or the file was removed in between.
            match open(path, OFlags::WRONLY | OFlags::CREATE | NEVER_WAIT, FILE) {
                Ok(file) => return Self::new(path, file, false),
                Err(Errno::NOENT) if lstat(path).is_err() => {}
                Err(errno) => return Err(refusal(path, errno)),
            }
        }
        Err(Problem::Changed)
    }

    fn new(path: &'a Path, file: OwnedFd, created: bool) -> Result<Self, Problem> {
        let regular = checked(file.into())?;
        let modified_ns = super::entry::modified_ns(&regular.stat);
        let target = Self { path, file: regular.file, modified_ns, created };
        // For its event, and because a file that is overwritten loses set-uid. Only the owner may do it.
        let _ = fchown(&target.file, Some(geteuid()), Some(getegid()));
        if !created {
            ftruncate(&target.file, 0)?;
        }
        Ok(target)
    }

    fn fill(&self, job: &Job, metadata: Option<&Metadata>, pipe: &OwnedFd) -> Result<(), Problem> {
        job.say(&FromHand::Opened(Opened { size: 0, length: 0, modified_ns: self.modified_ns }));
        let received = self.receive(job, pipe)?;
        if commit(job)? != received {
            return Err(Problem::BrokenOff);
        }
        metadata.map_or(Ok(()), |metadata| metadata::replace(&self.file, metadata))
    }

    /// Writes all bytes up to the end of the pipe. Returns how many.
    fn receive(&self, job: &Job, pipe: &OwnedFd) -> Result<u64, Problem> {
        let mut buffer = vec![0; FIRST_BYTES];
        let (mut length, mut ended) = (0, false);
        while length < buffer.len() && !ended {
            let read = read_some(job, pipe, &mut buffer[length..])?;
            (length, ended) = (length + read, read == 0);
        }
        let (mut total, mut behind) = (0, Behind::default());
        loop {
            write_all(&self.file, &buffer[..length])?;
            total += length as u64;
            behind.advance(&self.file, length as u64);
            if ended {
                return Ok(total);
            }
            buffer.resize(COPY_BYTES, 0);
            length = read_some(job, pipe, &mut buffer)?;
            ended = length == 0;
        }
    }

    /// Removes the file if this upload made it and it is still there.
    fn undo(&self) {
        if !self.created {
            return;
        }
        let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        if let (Ok(own), Ok(there)) = (fstat(&self.file), lstat(self.path))
            && identity(own) == identity(there)
        {
            // If it fails, the file stays, as after the death of the hand.
            let _ = unlink(self.path);
        }
    }
}

/// Mode of a new file: 0644 with this process's umask.
const FILE: Mode = Mode::from_raw_mode(0o666);

/// Waits for the node's word that all bytes are there.
fn commit(job: &Job) -> Result<u64, Problem> {
    match job.controls.recv_timeout(Duration::from_secs(HAND_PEER_IDLE_S)) {
        Ok(Control::Commit { bytes }) => Ok(bytes),
        Ok(Control::Cancel) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Err(Problem::BrokenOff)
        }
    }
}

fn read_some(job: &Job, pipe: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Problem> {
    loop {
        job.wait_for(pipe, PollFlags::IN)?;
        match rustix::io::read(pipe, &mut *buffer) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            read => return Ok(read?),
        }
    }
}

/// Writes all of it: a full disk first takes a part.
pub(super) fn write_all(file: &File, mut bytes: &[u8]) -> Result<(), Problem> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(Problem::NoSpace),
            written => bytes = &bytes[written?..],
        }
    }
    Ok(())
}
