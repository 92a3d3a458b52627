//! Taking the bytes of a file.
//!
//! ```text
//! bytes ──► up to 64 KiB: kept ──────────────────────────────────────commit──► the file
//!      ├──► more: a spool, which is a file without a name ───────────commit──► the file
//!      └──► more, and no place for a spool: the file at once ([`Direct`])
//! ```
//!
//! Nothing of an upload is seen before the node's word that all of it is there. An upload that breaks off leaves the
//! file that was there, and a copy of the sandbox has the old file or the new one.
//!
//! The steps on the file are those of E2B's daemon, so that watchers see the same events: for a new file `CREATE`,
//! `CHMOD`, `WRITE`; for one that is there `CHMOD`, then `WRITE` for the content and for its end. Metadata adds
//! `CHMOD`, once for each key.

mod place;
mod spool;

use std::{fs::File, os::fd::OwnedFd, path::Path, sync::mpsc::RecvTimeoutError, time::Duration};

use base::limits::HAND_PEER_IDLE_S;
use rustix::{event::PollFlags, io::Errno};

use super::{Control, Job, behind::Behind, change, metadata};
use crate::protocol::{FromHand, Metadata, Opened, Problem};
use place::{Direct, Place};
use spool::Spool;

/// Bytes that are collected before the first write, so that a small file is written at once: one event for watchers.
const FIRST_BYTES: usize = 64 << 10;

/// Bytes that go from the pipe to a file at once, at most. `splice` is no faster: it holds the pipe while it copies.
const COPY_BYTES: usize = 256 << 10;

/// Replaces the content of a file by what comes out of `pipe`.
pub(super) fn write(job: &Job, path: &Path, metadata: Option<&Metadata>, pipe: OwnedFd) -> Result<FromHand, Problem> {
    metadata.map_or(Ok(()), metadata::check)?;
    change::make_parents(path)?;
    let place = Place::find(path)?;
    job.say(&FromHand::Opened(Opened { size: 0, length: 0, modified_ns: place.modified_ns() }));
    let taken = take(job, &place, &pipe);
    // The node hears of a failure by the answer. It must not wait for room in the pipe meanwhile.
    drop(pipe);
    match taken? {
        Taken::Kept(kept) => place.fill(job, kept, metadata)?,
        Taken::Written(direct) => direct.end(metadata)?,
    }
    job.entry(path)
}

/// All bytes of an upload, and the node's word that they are all.
enum Taken {
    /// Nothing has been seen of them yet.
    Kept(Kept),
    /// They are in the file already.
    Written(Direct),
}

/// Bytes outside of the file.
enum Kept {
    Few(Vec<u8>),
    Many(Spool),
}

fn take(job: &Job, place: &Place<'_>, pipe: &OwnedFd) -> Result<Taken, Problem> {
    let mut buffer = vec![0; FIRST_BYTES];
    let mut length = 0;
    while length < buffer.len() {
        match read_some(job, pipe, &mut buffer[length..])? {
            0 => {
                buffer.truncate(length);
                committed(job, length as u64)?;
                return Ok(Taken::Kept(Kept::Few(buffer)));
            }
            read => length += read,
        }
    }
    let Some(mut spool) = place.spool() else { return take_direct(job, pipe, place, buffer) };
    pour(job, pipe, buffer, |bytes| spool.put(bytes))?;
    committed(job, spool.bytes())?;
    Ok(Taken::Kept(Kept::Many(spool)))
}

fn take_direct(job: &Job, pipe: &OwnedFd, place: &Place<'_>, first: Vec<u8>) -> Result<Taken, Problem> {
    let direct = Direct::begin(place)?;
    let (mut total, mut behind) = (0, Behind::default());
    let poured = pour(job, pipe, first, |bytes| {
        write_all(direct.file(), bytes)?;
        total += bytes.len() as u64;
        behind.advance(direct.file(), bytes.len() as u64);
        Ok(())
    });
    match poured.and_then(|()| committed(job, total)) {
        Ok(()) => Ok(Taken::Written(direct)),
        Err(problem) => {
            direct.undo();
            Err(problem)
        }
    }
}

/// Puts what has been read, and then all that comes out of the pipe.
fn pour(
    job: &Job,
    pipe: &OwnedFd,
    first: Vec<u8>,
    mut put: impl FnMut(&[u8]) -> Result<(), Problem>,
) -> Result<(), Problem> {
    put(&first)?;
    let mut buffer = first;
    buffer.resize(COPY_BYTES, 0);
    loop {
        match read_some(job, pipe, &mut buffer)? {
            0 => return Ok(()),
            length => put(&buffer[..length])?,
        }
    }
}

/// Waits for the node's word that all bytes are there, and that they are so many.
pub(super) fn committed(job: &Job, bytes: u64) -> Result<(), Problem> {
    match job.controls.recv_timeout(Duration::from_secs(HAND_PEER_IDLE_S)) {
        Ok(Control::Commit { bytes: all }) if all == bytes => Ok(()),
        Ok(Control::Commit { .. } | Control::Cancel)
        | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(Problem::BrokenOff),
    }
}

pub(super) fn read_some(job: &Job, pipe: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Problem> {
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
