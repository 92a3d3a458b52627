//! Writing back what programs have written to files through mappings.
//!
//! For a filesystem in FUSE, syncfs(2) starts that and does not wait for it (Linux "fs/writeback: skip AS_NO_DATA_INTEGRITY mappings in
//! wait_sb_inodes()" and "writeback: don't block sync for filesystems with no data integrity guarantees", both in stable kernels too). A
//! file's own sync waits, and the files that need one can be found. Without `FUSE_WRITEBACK_CACHE` only shared mappings make pages dirty. When a
//! mapping or its process goes, the kernel writes back first (`fuse_vma_close`). So what is dirty is mapped, or being unmapped.

use std::{
    collections::{HashMap, HashSet},
    fs::{File, read_link},
    io::ErrorKind,
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, CWD, StatxFlags, statx},
    io::Errno,
};

use crate::{
    error::{Context, Error},
    maps::{MapLine, maps},
    mounts::{Mount, Mounts},
    read::{children, numbers},
    stat::Stat,
};

/// How long a process may take to end: the kernel writes back what it had mapped meanwhile. On a busy machine 5 s were not enough.
const END_MAX: Duration = Duration::from_secs(15);

/// How often it is looked whether it has.
const END_CHECK: Duration = Duration::from_millis(1);

/// How often a process may move a mapping between its being listed and its being opened.
const MOVES_MAX: usize = 100;

/// Whose mappings are written back.
#[derive(Debug, Clone, Copy)]
pub enum Whose<'a> {
    /// These processes'; some may be gone.
    These(&'a [i32]),
    /// Those of every process in `/proc` but these, as far as this one may look at them: it may be refused those that have capabilities that it lacks.
    Anybody(Option<Idle<'a>>),
}

/// Children of a single-threaded process that have nothing mapped shared. There may be hundreds, and to see that takes as long as anything else.
#[derive(Debug, Clone, Copy)]
pub struct Idle<'a> {
    /// The process.
    pub parent: i32,
    /// Which of its children. A number that is no child any more may be of another process by now, and is looked at.
    pub children: &'a HashSet<i32>,
}

/// A filesystem as proc_pid_mountinfo(5) shows its mounts.
#[derive(Debug, Clone, Copy)]
pub struct Filesystem<'a> {
    /// Its type, such as `fuse.pando`.
    pub kind: &'a str,
    /// What it is mounted from.
    pub source: &'a str,
}

/// Writes back all that processes have written, through mappings, to files of a filesystem that they see, and waits until the filesystem has
/// it, which need not be durably. Processes that have begun to end are waited for.
///
/// The kernel may still be writing back what a program unmaps at this moment, or leaves by execve(2). It has not told the program that it is done.
/// The same holds for a killed program if another process reads its `/proc/PID/maps` at the moment of its end: the memory then ends with that read,
/// after the program.
///
/// A file that is gone from the filesystem, or a filesystem that takes nothing any more (`ESTALE`, `EROFS`), has nothing to be waited for.
///
/// # Errors
///
/// `/proc` cannot be read, a process does not end or never ceases to move a mapping, or the filesystem has not taken what was written
/// (`ENOSPC`, `EIO`).
pub fn write_back(whose: Whose<'_>, filesystem: Filesystem<'_>) -> Result<(), Error> {
    let mut search = Search { filesystem, devices: HashMap::new(), written: HashSet::new() };
    match whose {
        Whose::These(processes) => processes.iter().try_for_each(|process| search.write_back(*process)),
        Whose::Anybody(idle) => {
            let mut processes = numbers("/proc")?;
            let threads = kernel_threads();
            processes.retain(|process| !threads.contains(process));
            if let Some(Idle { parent, children: idle }) = idle {
                let children = children(parent, parent).unwrap_or_default();
                processes.retain(|process| !(idle.contains(process) && children.contains(process)));
            }
            processes.into_iter().try_for_each(|process| match search.write_back(process) {
                Err(Error::File { source, .. }) if source.kind() == ErrorKind::PermissionDenied => Ok(()),
                written => written,
            })
        }
    }
}

/// The kernel's own threads: kthreadd's children, but for programs that the kernel has begun. One of those that is ending has no file, either, and
/// is not waited for.
fn kernel_threads() -> HashSet<i32> {
    const KTHREADD: i32 = 2;
    // Not so in other pid namespaces.
    let is_kthreadd = Stat::read(&KTHREADD.to_string()).is_ok_and(|stat| stat.is_kernel_thread());
    let threads = if is_kthreadd { children(KTHREADD, KTHREADD).unwrap_or_default() } else { Vec::new() };
    let has_no_file =
        |pid: &i32| read_link(format!("/proc/{pid}/exe")).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    threads.into_iter().filter(has_no_file).collect()
}

/// A file by its device and number.
type Identity = (u64, u64);

/// What decides which mounts a process sees. Its root directory may lie in another mount namespace than its own.
#[derive(PartialEq, Eq, Hash)]
struct View {
    namespace: PathBuf,
    root_mount: u64,
    root: Identity,
}

/// The state of writing one filesystem back.
struct Search<'a> {
    filesystem: Filesystem<'a>,
    /// Its devices, as they are seen by those who have the same view; under none, by the last one whose view is not known.
    devices: HashMap<Option<View>, Vec<u64>>,
    written: HashSet<Identity>,
}

impl Search<'_> {
    fn write_back(&mut self, process: i32) -> Result<(), Error> {
        if !self.may_have_mapped(process)? {
            return Ok(());
        }
        let mut wanted: Option<HashSet<Identity>> = None;
        for _ in 0..MOVES_MAX {
            let (pid, mapped) = self.mapped(process)?;
            let listed: HashSet<Identity> =
                mapped.iter().map(identity).filter(|file| !self.written.contains(file)).collect();
            // Later mappings were written to later.
            let mut left: HashSet<Identity> = match &wanted {
                None => listed,
                Some(wanted) => wanted & &listed,
            };
            for line in &mapped {
                let file = identity(line);
                // One that is not found there has become two, or a part of another one, or is somewhere else, or gone.
                if left.contains(&file) && write_back_mapped(pid, line)? {
                    left.remove(&file);
                    self.written.insert(file);
                }
            }
            if left.is_empty() {
                return Ok(());
            }
            wanted = Some(left);
        }
        Err(Error::Moves { pid: process })
    }

    /// Whether a process may have files of the filesystem mapped, or have had and be ending: few do, and reading what they have mapped takes longer.
    fn may_have_mapped(&mut self, process: i32) -> Result<bool, Error> {
        let Ok(maps) = File::open(format!("/proc/{process}/maps")) else { return Ok(true) };
        match sys::file::devices_mapped_shared(maps) {
            Ok(mapped) if mapped.is_empty() => Ok(false),
            Ok(mapped) => {
                let devices = self.devices(process)?;
                Ok(devices.is_none_or(|devices| devices.iter().any(|device| mapped.contains(device))))
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(!holds_nothing(process)?),
            Err(_) => Ok(true),
        }
    }

    /// The shared mappings of files of the filesystem, also those that cannot be written through any more, and by whom they are found.
    fn mapped(&mut self, process: i32) -> Result<(i32, Vec<MapLine>), Error> {
        let began = Instant::now();
        loop {
            let (pid, mut lines) = all_mappings(process)?;
            lines.retain(|line| line.shared && line.inode != 0);
            if lines.is_empty() {
                return Ok((pid, lines));
            }
            if let Some(devices) = self.devices(pid)? {
                lines.retain(|line| devices.contains(&line.dev));
                return Ok((pid, lines));
            }
            // Another thread may still have them.
            if began.elapsed() > END_MAX {
                return Err(Error::Lingers { pid: process });
            }
            std::thread::sleep(END_CHECK);
        }
    }

    /// The filesystem's devices, as far as a process or thread sees it mounted; none if it has ended meanwhile.
    fn devices(&mut self, pid: i32) -> Result<Option<&[u64]>, Error> {
        let view = view(pid);
        if view.is_some() && self.devices.contains_key(&view) {
            return Ok(self.devices.get(&view).map(Vec::as_slice));
        }
        let mounts = match Mounts::read(pid) {
            // The answer for one that has let go of its mounts, and before of its memory.
            Err(Error::File { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => return Ok(None),
            mounts => mounts,
        };
        let Some(mounts) = none_if_gone(mounts)? else { return Ok(None) };
        let found = devices(&mounts, self.filesystem);
        Ok(Some(self.devices.entry(view).insert_entry(found).into_mut()))
    }
}

/// Of a process without memory: whether it is none that is ending, but a thread of the kernel's own, or nothing but what its parent is to be told.
fn holds_nothing(process: i32) -> Result<bool, Error> {
    let stat = none_if_gone(Stat::read(&process.to_string()))?;
    Ok(stat.is_none_or(|stat| stat.is_kernel_thread() || stat.is_last_dead()))
}

/// Not known of everybody: filesystems in FUSE refuse it even to root, for one.
fn view(pid: i32) -> Option<View> {
    let namespace = read_link(format!("/proc/{pid}/ns/mnt")).ok()?;
    // A server of files that does not answer is not asked.
    let flags = AtFlags::STATX_DONT_SYNC;
    let root = statx(CWD, format!("/proc/{pid}/root"), flags, StatxFlags::MNT_ID | StatxFlags::INO).ok()?;
    let device = rustix::fs::makedev(root.stx_dev_major, root.stx_dev_minor);
    Some(View { namespace, root_mount: root.stx_mnt_id, root: (device, root.stx_ino) })
}

fn identity(line: &MapLine) -> Identity {
    (line.dev, line.inode)
}

/// False if it is not mapped there any more.
fn write_back_mapped(pid: i32, line: &MapLine) -> Result<bool, Error> {
    let path = line.link(pid);
    let written = File::open(&path).on("open", path).and_then(|file| {
        // With what has not been reported of earlier failures.
        sys::file::write_back(&file).on("write back", String::from_utf8_lossy(&line.path))
    });
    match written {
        Err(error) if error.is_gone() => Ok(false),
        Err(Error::File { source, .. })
            if matches!(Errno::from_io_error(&source), Some(Errno::STALE | Errno::ROFS)) =>
        {
            Ok(true)
        }
        written => written.map(|()| true),
    }
}

/// With the process or thread by which they are found. One that has ended has none.
fn all_mappings(process: i32) -> Result<(i32, Vec<MapLine>), Error> {
    let began = Instant::now();
    loop {
        let lines = none_if_gone(maps(process))?.unwrap_or_default();
        if !lines.is_empty() {
            return Ok((process, lines));
        }
        // A main thread that has ended before others shows none. Kernel threads and the dead have no others.
        let mut ending = false;
        for thread in none_if_gone(numbers(&format!("/proc/{process}/task")))?.unwrap_or_default() {
            let lines = none_if_gone(maps(thread))?.unwrap_or_default();
            if !lines.is_empty() {
                return Ok((thread, lines));
            }
            let stat = none_if_gone(Stat::read(&format!("{process}/task/{thread}")))?;
            ending |= stat.is_some_and(|stat| stat.is_on_its_way_out());
        }
        if !ending {
            return Ok((process, Vec::new()));
        }
        if began.elapsed() > END_MAX {
            return Err(Error::Lingers { pid: process });
        }
        std::thread::sleep(END_CHECK);
    }
}

/// The devices of the filesystem's mounts.
fn devices(mounts: &Mounts, filesystem: Filesystem<'_>) -> Vec<u64> {
    let is_its = |mount: &Mount<'_>| (mount.kind, mount.source) == (filesystem.kind, filesystem.source);
    mounts.iter().filter(is_its).map(|mount| mount.device).collect()
}

fn none_if_gone<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Err(error) if error.is_gone() => Ok(None),
        found => found.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filesystem_is_found_by_its_type_and_source() {
        let mounts = "36 35 0:98 / /mnt/a\\040b rw,noatime - fuse.pando ws rw\n37 35 8:1 / /mnt rw shared:1 - ext4 ws rw\n\
                      38 35 0:99 / /c rw - fuse.pando ws2 rw\n39 35 0:300 / /d ro shared:2 - fuse.pando ws rw\n";
        let of = |kind, source| devices(&Mounts::of(mounts), Filesystem { kind, source });
        assert_eq!(of("fuse.pando", "ws"), [rustix::fs::makedev(0, 98), rustix::fs::makedev(0, 300)]);
        assert_eq!(of("ext4", "ws"), [rustix::fs::makedev(8, 1)]);
        assert!(of("fuse.pando", "other").is_empty());
    }
}
