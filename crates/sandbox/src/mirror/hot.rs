//! Files whose times do not tell of all changes.

use std::{
    collections::HashSet,
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    time::Duration,
};

use rustix::{
    fs::Stat,
    time::{ClockId, clock_gettime},
};

use crate::error::{Context, Error};

/// Files that may change without a new time of change, by their paths below the source and by their inodes: a file that was made in the sandbox has
/// several names at times, but shows its own inode number; one of a lower layer shows that one's, and has one name.
#[derive(Debug, Default)]
pub(crate) struct Hot {
    /// Since 1970, before anything was looked at.
    pub(super) began: Duration,
    pub(super) mapped: HashSet<Vec<u8>>,
    mapped_inodes: HashSet<u64>,
    open: HashSet<Vec<u8>>,
    open_inodes: HashSet<u64>,
}

impl Hot {
    /// Those of these processes, and those that were `earlier`. A process that has ended has none any more.
    pub(crate) fn look(processes: &[i32], earlier: Self) -> Result<Self, Error> {
        let now = clock_gettime(ClockId::Realtime);
        let began = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
        let mut hot = Self { began, open: HashSet::new(), open_inodes: HashSet::new(), ..earlier };
        for pid in processes {
            match hot.add(*pid) {
                Err(error) if error.is_gone() => {}
                added => added.map_err(io::Error::other).doing("look at the files of a process")?,
            }
        }
        Ok(hot)
    }

    fn add(&mut self, pid: i32) -> Result<(), procfs::Error> {
        for line in procfs::maps(pid)?.into_iter().filter(|line| line.shared) {
            if let Some(path) = line.path.strip_prefix(b"/") {
                self.mapped.insert(path.to_vec());
                self.mapped_inodes.insert(line.inode);
            }
        }
        for number in procfs::numbers(&format!("/proc/{pid}/fd"))? {
            let link = format!("/proc/{pid}/fd/{number}");
            let Ok(info) = procfs::Fields::read(format!("/proc/{pid}/fdinfo/{number}")) else { continue };
            let access = info.number("flags", 8).unwrap_or(0) as i32 & libc::O_ACCMODE;
            if access == libc::O_RDONLY {
                continue;
            }
            let (Ok(path), Ok(found)) = (std::fs::read_link(&link), std::fs::metadata(&link)) else { continue };
            if let Some(path) = path.as_os_str().as_bytes().strip_prefix(b"/").filter(|_| found.is_file()) {
                self.open.insert(path.to_vec());
                self.open_inodes.insert(found.ino());
            }
        }
        Ok(())
    }

    pub(super) fn is_mapped(&self, path: &[u8], stat: &Stat) -> bool {
        self.mapped.contains(path) || self.mapped_inodes.contains(&stat.st_ino)
    }

    pub(super) fn is_open(&self, path: &[u8], stat: &Stat) -> bool {
        self.open.contains(path) || self.open_inodes.contains(&stat.st_ino)
    }
}
