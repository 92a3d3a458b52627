//! What a sandbox uses at one moment.

use std::{
    ffi::CString,
    io,
    os::fd::OwnedFd,
    path::Path,
    time::{Duration, Instant},
};

use base::{id::SandboxId, limits::DISK_USE_ENTRIES_MAX};
use model::SandboxUse;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat, statvfs};

use super::Node;
use crate::error::{Context, Result};

/// Between the two looks at CPU time.
const SAMPLE: Duration = Duration::from_millis(100);
/// The unit of a file's blocks, whatever its filesystem's blocks are.
const BLOCK_BYTES: u64 = 512;

impl Node {
    /// What a sandbox uses now. Fails if it does not run.
    pub async fn usage(&self, id: &SandboxId) -> Result<SandboxUse> {
        self.state().running(id)?;
        let group = self.host.cgroups.usage_of(id);
        let (began, before) = (Instant::now(), group.read().cpu_us);
        let directory = self.host.changes.of(id);
        let upper = directory.join(sandbox::UPPER);
        let (written, ()) =
            tokio::join!(tokio::task::spawn_blocking(move || written(&upper)), tokio::time::sleep(SAMPLE));
        let now = group.read();
        let spent_us = now.cpu_us.zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        let disk = statvfs(&directory).at("look at the filesystem of", &directory)?;
        let limit = self.host.changes.limits(&self.state().running(id)?.limits, &directory).disk_bytes;
        let disk_used_bytes = written.doing("count what a sandbox has written")?.at("count what is in", &directory)?;
        Ok(SandboxUse {
            cpu_percent: (spent_us as f64 / began.elapsed().as_micros() as f64 * 100.0) as f32,
            memory_bytes: now.memory_bytes.unwrap_or(0),
            memory_limit_bytes: now.memory_limit_bytes,
            disk_used_bytes,
            disk_total_bytes: (disk_used_bytes + disk.f_bavail * disk.f_frsize).min(limit.unwrap_or(u64::MAX)),
        })
    }
}

/// Bytes on disk of what is below a directory, without following links: the sandbox changes it meanwhile. A file with
/// several names counts as often.
fn written(directory: &Path) -> io::Result<u64> {
    let (mut blocks, mut left) = (0, DISK_USE_ENTRIES_MAX);
    let mut open = vec![Dir::new(directory_at(CWD, directory)?)?];
    while let Some(mut directory) = open.pop() {
        blocks += directory.stat()?.st_blocks as u64;
        while let Some(entry) = directory.read() {
            let name: CString = entry?.file_name().to_owned();
            if [c".", c".."].contains(&name.as_c_str()) {
                continue;
            }
            if left == 0 {
                return Ok(blocks * BLOCK_BYTES);
            }
            left -= 1;
            // What is gone by now counts nothing.
            let Ok(found) = statat(directory.fd()?, &*name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
                blocks += found.st_blocks as u64;
            } else if open.len() < OPEN_MAX
                && let Ok(below) = directory_at(directory.fd()?, &*name)
            {
                open.push(Dir::new(below)?);
            }
        }
    }
    Ok(blocks * BLOCK_BYTES)
}

/// Directories that are open at once: what is in others is not counted.
const OPEN_MAX: usize = 1_000;

fn directory_at(parent: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn what_is_written_is_counted_and_links_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let upper = place.path().join("upper");
        fs::create_dir_all(upper.join("a/b")).unwrap();
        let empty = written(&upper).unwrap();
        fs::write(place.path().join("large"), vec![1; 1 << 20]).unwrap();
        symlink(place.path(), upper.join("a/out")).unwrap();
        fs::write(upper.join("a/b/file"), vec![1; 1 << 16]).unwrap();
        let bytes = written(&upper).unwrap() - empty;
        assert!((1 << 16..1 << 18).contains(&bytes), "{bytes}");
        assert!(written(&upper.join("a/out")).is_err());
    }
}
