//! Whether a copy can open the program's files again. A copy opens them by path and with the program's own rights. Modes may have changed
//! since the program opened them.

use std::{
    collections::HashMap,
    ffi::OsStr,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use procfs::MapLine;
use rustix::fs::{Stat, StatVfsMountFlags};

use crate::{
    error::Error,
    image::{READ, WRITE},
    observe::{
        rights::Rights,
        root,
        sort::{Sort, sort},
    },
    refusal::Refusal,
};

const SEARCH: u32 = 1;

/// The rights of a program, in its root filesystem.
pub(crate) struct Access {
    root: OwnedFd,
    rights: Rights,
    /// Directory -> what of its path the program may not search.
    closed: HashMap<PathBuf, Option<PathBuf>>,
}

impl Access {
    pub(crate) fn of(pid: i32) -> Result<Self, Error> {
        Ok(Self { root: root::open_root(pid)?, rights: Rights::of(pid)?, closed: HashMap::new() })
    }

    /// Refuses what a copy cannot open.
    pub(crate) fn check(&mut self, what: &str, path: &[u8], wanted: u32) -> Option<Refusal> {
        if self.is_free(path) {
            return None;
        }
        let name = Path::new(OsStr::from_bytes(path));
        let reason = match name.parent().and_then(|above| self.closed(above)) {
            Some(closed) => Some(may_not_search(&closed)),
            None => self.denied(name, wanted),
        };
        let path = String::from_utf8_lossy(path).into_owned();
        reason.map(|reason| Refusal::Unopenable { what: what.into(), path, reason })
    }

    /// Refuses the working directory, if the program could not enter it again, and what it has a shared view of.
    pub(crate) fn check_rest(&mut self, pid: i32, lines: &[MapLine]) -> Result<Vec<Refusal>, Error> {
        let cwd = procfs::link(&format!("/proc/{pid}/cwd"))?;
        let closed = if self.is_free(&cwd) { None } else { self.closed(Path::new(OsStr::from_bytes(&cwd))) };
        let cwd = closed.map(|closed| Refusal::Unopenable {
            what: "its working directory".into(),
            path: String::from_utf8_lossy(&cwd).into_owned(),
            reason: may_not_search(&closed),
        });
        let views = lines.iter().filter(|line| sort(line) == Ok(Sort::SharedFile));
        let views = views.filter_map(|line| {
            let wanted = if line.may_write { READ | WRITE } else { READ };
            self.check(&format!("the mapping at {:#x}", line.range.start), &line.path, wanted)
        });
        let views: Vec<Refusal> = views.collect();
        Ok(cwd.into_iter().chain(views).collect())
    }

    /// Whether modes do not count: for a program with a capability, and for files in memory, which a copy makes itself and gives their modes last.
    fn is_free(&self, path: &[u8]) -> bool {
        self.rights.overrides || path.starts_with(b"/dev/shm/")
    }

    /// The first directory of a path that the program may not search.
    fn closed(&mut self, directory: &Path) -> Option<PathBuf> {
        if let Some(known) = self.closed.get(directory) {
            return known.clone();
        }
        let above = directory.parent().and_then(|above| self.closed(above));
        let closed = above.or_else(|| self.lacks(directory, SEARCH).map(|_| directory.to_path_buf()));
        self.closed.insert(directory.to_path_buf(), closed.clone());
        closed
    }

    /// Why a file cannot be opened. Its owner may change the mode for a moment (`start::files::modes`).
    fn denied(&self, path: &Path, wanted: u32) -> Option<String> {
        let (file, status) = self.lacks(path, wanted)?;
        let mode = status.st_mode & 0o7777;
        if status.st_uid != self.rights.user {
            return Some(format!("its mode {mode:o} forbids it, and the program does not own it"));
        }
        if rustix::fs::fstatvfs(&file).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY)) {
            return Some(format!("its mode {mode:o} forbids it, and its filesystem is read-only"));
        }
        // A change of mode would take it away.
        const SET_GROUP: u32 = 0o2000;
        (mode & SET_GROUP != 0 && !self.rights.groups.contains(&status.st_gid))
            .then(|| format!("its mode {mode:o} forbids it, and the program is not in its group"))
    }

    /// The file at this path, if its mode forbids the program to do this.
    fn lacks(&self, path: &Path, wanted: u32) -> Option<(OwnedFd, Stat)> {
        let file = root::open_inside(self.root.as_fd(), path.as_os_str().as_bytes()).ok()?;
        let status = rustix::fs::fstat(&file).ok()?;
        let may =
            self.may(&status, wanted) || (status.st_uid != self.rights.user && may_by_list(&file, &status, wanted));
        (!may).then_some((file, status))
    }

    fn may(&self, status: &Stat, wanted: u32) -> bool {
        status.st_mode >> self.rights.class(status.st_uid, status.st_gid) & wanted == wanted
    }
}

fn may_not_search(closed: &Path) -> String {
    format!("the program may not search {}", closed.display())
}

/// Whether a file has an access list that may permit this to a user who is not its owner. The file's mode then has the most that the list permits.
fn may_by_list(file: &OwnedFd, status: &Stat, wanted: u32) -> bool {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let has_list = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut [0u8; 0]).is_ok_and(|bytes| bytes > 0);
    has_list && (status.st_mode >> 3 & wanted == wanted || status.st_mode & wanted == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_counts_for_owner_group_or_others() {
        let access = |user, groups: &[u32]| Access {
            root: root::open_root(std::process::id() as i32).unwrap(),
            rights: Rights { user, groups: groups.to_vec(), overrides: false },
            closed: HashMap::new(),
        };
        let mut status = rustix::fs::stat("/").unwrap();
        (status.st_uid, status.st_gid, status.st_mode) = (7, 50, 0o100_426);
        let may = |user, groups: &[u32], wanted| access(user, groups).may(&status, wanted);
        assert!(may(7, &[50], READ) && !may(7, &[50], WRITE));
        assert!(may(8, &[1, 50], WRITE) && !may(8, &[50], READ));
        assert!(may(8, &[1], READ | WRITE) && !may(8, &[1], SEARCH));
    }
}
