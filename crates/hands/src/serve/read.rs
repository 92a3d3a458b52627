//! Sending the bytes of a file.

use std::{os::fd::OwnedFd, path::Path};

use base::limits::HAND_KERNEL_FILE_BYTES_MAX;
use rustix::{event::PollFlags, fs::sendfile, io::Errno};

use super::{
    Job,
    behind::Behind,
    entry::modified_ns,
    open::{self, Regular},
};
use crate::protocol::{FromHand, Opened, Problem};

/// Bytes that are sent before the job looks whether it was cancelled. The pipe bounds it further.
const STEP_BYTES: u64 = 1 << 20;

/// Bytes that are copied at once where the filesystem cannot hand its pages to a pipe.
const COPY_BYTES: usize = 64 << 10;

/// A pipe that is ready has room for so much: one page of the smallest size.
const PAGE_BYTES: usize = 4_096;

/// Sends a part of a regular file into `pipe`.
pub(super) fn read(
    job: &Job,
    path: &Path,
    offset: u64,
    length: Option<u64>,
    pipe: OwnedFd,
) -> Result<FromHand, Problem> {
    let regular = open::regular(path)?;
    let modified_ns = modified_ns(&regular.stat);
    let opened = |size: u64| -> Result<Opened, Problem> {
        let rest = size.checked_sub(offset).ok_or(Problem::BadRange { size })?;
        Ok(Opened { size, length: length.map_or(rest, |length| length.min(rest)), modified_ns })
    };
    // A file of size 0 may be one of a filesystem that does not say how much there is.
    if regular.stat.st_size == 0 || regular.is_of_the_kernel()? {
        let content = content(job, &regular)?;
        let opened = opened(content.len() as u64)?;
        job.say(&FromHand::Opened(opened));
        let part = &content[offset as usize..][..opened.length as usize];
        return send_bytes(job, part, &pipe).map(|()| FromHand::Done);
    }
    let opened = opened(regular.stat.st_size as u64)?;
    job.say(&FromHand::Opened(opened));
    send_file(job, &regular, offset, opened.length, &pipe).map(|()| FromHand::Done)
}

/// The whole content of a file whose size means nothing.
fn content(job: &Job, regular: &Regular) -> Result<Vec<u8>, Problem> {
    let mut content = Vec::new();
    let mut buffer = vec![0; COPY_BYTES];
    let bytes_max = HAND_KERNEL_FILE_BYTES_MAX;
    while content.len() as u64 <= bytes_max {
        job.check()?;
        // Some files take only reads of whole pages.
        match rustix::io::read(&regular.file, &mut buffer[..]) {
            Err(Errno::INTR) => {}
            Ok(0) => return Ok(content),
            read => content.extend_from_slice(&buffer[..read?]),
        }
    }
    Err(Problem::KernelFileTooLarge { bytes_max })
}

fn send_file(job: &Job, regular: &Regular, offset: u64, length: u64, pipe: &OwnedFd) -> Result<(), Problem> {
    let (mut position, mut left) = (offset, length);
    let mut behind = Behind::at(offset);
    while left > 0 {
        job.wait_for(pipe, PollFlags::OUT)?;
        // It sends what there is room for, and does not wait for more.
        let sent = match sendfile(pipe, &regular.file, Some(&mut position), left.min(STEP_BYTES) as usize) {
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(Errno::INVAL) => copy(job, regular, &mut position, left, pipe)?,
            Err(Errno::PIPE) => return Err(Problem::Cancelled),
            sent => sent? as u64,
        };
        if sent == 0 {
            // The file is shorter by now.
            return Err(Problem::Changed);
        }
        left -= sent;
        behind.advance(&regular.file, sent);
    }
    Ok(())
}

/// Sends a piece by way of a buffer. Returns how much; 0 at the end of the file.
fn copy(job: &Job, regular: &Regular, position: &mut u64, left: u64, pipe: &OwnedFd) -> Result<u64, Problem> {
    let mut buffer = vec![0; COPY_BYTES.min(left as usize)];
    let length = rustix::io::pread(&regular.file, &mut buffer, *position)?;
    send_bytes(job, &buffer[..length], pipe)?;
    *position += length as u64;
    Ok(length as u64)
}

fn send_bytes(job: &Job, mut bytes: &[u8], pipe: &OwnedFd) -> Result<(), Problem> {
    while !bytes.is_empty() {
        job.wait_for(pipe, PollFlags::OUT)?;
        // There is room for a page, so that this does not wait.
        let piece = &bytes[..bytes.len().min(PAGE_BYTES)];
        match rustix::io::write(pipe, piece) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::PIPE) => return Err(Problem::Cancelled),
            written => bytes = &bytes[written?..],
        }
    }
    Ok(())
}
