//! Joining files.

use std::{
    ffi::OsString,
    fs::File,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, copy_file_range, open, rename, tell, unlink},
    io::Errno,
};

use super::{
    Job,
    behind::Behind,
    change,
    open::{self, NEVER_WAIT},
    write::write_all,
};
use crate::protocol::{Problem, RawPath};

/// Bytes that are copied before the job looks whether it was cancelled.
const STEP_BYTES: usize = 8 << 20;

/// Bytes that are copied at once where the filesystems cannot do it themselves.
const COPY_BYTES: usize = 256 << 10;

/// Makes `target` of the files `sources`, then removes these. A failure before the new file is complete leaves everything as it was.
pub(super) fn compose(job: &Job, sources: &[RawPath], target: &Path) -> Result<(), Problem> {
    if sources.is_empty() {
        return Err(Problem::NotFound);
    }
    // Each is looked at before anything is made. They are opened one by one: there may be more than descriptors.
    let mut identities = Vec::new();
    for source in sources {
        let stat = open::regular(source.as_path())?.stat;
        identities.push((stat.st_dev, stat.st_ino));
    }
    if rustix::fs::stat(target).is_ok_and(|stat| identities.contains(&(stat.st_dev, stat.st_ino))) {
        return Err(Problem::SameFile);
    }
    change::make_parents(target)?;
    let partial = partial(target)?;
    let joined = join(job, sources, &partial).and_then(|()| Ok(rename(&partial, target)?));
    if joined.is_err() {
        let _ = unlink(&partial);
        return joined;
    }
    for source in sources {
        // As in E2B: one that cannot be removed stays.
        let _ = unlink(source.as_path());
    }
    Ok(())
}

/// A name beside the target that no other file has.
pub(super) fn partial(target: &Path) -> Result<PathBuf, Problem> {
    let mut name = OsString::from(".pando-compose-");
    name.push(base::id::random_uuid());
    Ok(target.parent().ok_or(Problem::IsDirectory)?.join(name))
}

fn join(job: &Job, sources: &[RawPath], into: &Path) -> Result<(), Problem> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | NEVER_WAIT;
    let joined = File::from(open(into, flags, Mode::from_raw_mode(0o666))?);
    for source in sources {
        append(job, &open::regular(source.as_path())?.file, &joined)?;
    }
    Ok(())
}

/// Copies what is left of one file to the place in the other.
pub(super) fn append(job: &Job, source: &File, joined: &File) -> Result<(), Problem> {
    let mut behind = Behind::at(tell(joined)?);
    loop {
        job.check()?;
        let copied = copy_some(source, joined)?;
        if copied == 0 {
            return Ok(());
        }
        behind.advance(joined, copied as u64);
    }
}

/// Copies a piece of one file to the place in the other. Returns how many bytes; 0 at the end.
pub(super) fn copy_some(source: &File, joined: &File) -> Result<usize, Problem> {
    match rustix::io::retry_on_intr(|| copy_file_range(source, None, joined, None, STEP_BYTES)) {
        // Two filesystems, or one that cannot do it. Some filesystems say 0 instead of refusing.
        Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) | Ok(0) => copy(source, joined),
        copied => Ok(copied?),
    }
}

fn copy(source: &File, joined: &File) -> Result<usize, Problem> {
    let mut buffer = vec![0; COPY_BYTES];
    let length = rustix::io::retry_on_intr(|| rustix::io::read(source, &mut buffer[..]))?;
    write_all(joined, &buffer[..length])?;
    Ok(length)
}
