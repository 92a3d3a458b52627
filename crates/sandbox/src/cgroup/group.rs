//! One sandbox's group.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Read, Seek},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use base::id::SandboxId;
use rustix::event::PollFlags;

use super::{Cgroups, ControllerHome, ensure_dir, write};
use crate::{
    deadline::Deadline,
    error::{Context, Error},
    spec::Limits,
};

/// Processes are gone this many milliseconds after they were killed, also on a machine that kills a thousand at once.
const EMPTY_MS_MAX: u64 = 20_000;
/// Freezing is asynchronous; a process in an uninterruptible system call takes this long at most, in milliseconds.
const FREEZE_MS_MAX: u64 = 5_000;
/// The line of cgroup.events that says so.
const EMPTY: &str = "populated 0";
/// The period of CPU limits, in microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;

/// Of v2: swap alone.
const SWAP_LIMIT: &str = "memory.swap.max";
/// Of v1: memory and swap together. It cannot be below the limit of memory, so it is set after that.
const LEGACY_SWAP_LIMIT: &str = "memory.memsw.limit_in_bytes";

/// The groups of one sandbox in all hierarchies.
pub(crate) struct Group {
    path: PathBuf,
    directory: OwnedFd,
    /// v1 directories; made by [`Group::bind`].
    legacy: Vec<PathBuf>,
    /// `file` of the v1 or v2 group gets `value`.
    legacy_limits: Vec<(PathBuf, String)>,
}

impl Group {
    /// Makes the v2 group of a new sandbox, without limits.
    pub(crate) fn create(cgroups: &Cgroups, id: &SandboxId) -> Result<Self, Error> {
        let path = cgroups.summary().group.join(id.as_str());
        fs::create_dir(&path).at("create", &path)?;
        let result = Self::find(cgroups, id);
        if result.is_err() {
            // It is empty, so this can fail only if somebody else removed it.
            let _ = fs::remove_dir(&path);
        }
        result
    }

    /// The group of a sandbox that exists, with its limits.
    pub(crate) fn open(cgroups: &Cgroups, id: &SandboxId, limits: &Limits) -> Result<Self, Error> {
        Ok(Self { legacy_limits: legacy_limits(cgroups, id, limits), ..Self::find(cgroups, id)? })
    }

    pub(super) fn find(cgroups: &Cgroups, id: &SandboxId) -> Result<Self, Error> {
        let path = cgroups.summary().group.join(id.as_str());
        let directory = File::open(&path).at("open", &path)?.into();
        let legacy = cgroups.legacy().iter().map(|parent| parent.join(id.as_str())).collect();
        Ok(Self { path, directory, legacy, legacy_limits: Vec::new() })
    }

    /// Sets the limits that v2 can set; the rest waits for [`Group::bind`].
    pub(crate) fn limit(&mut self, cgroups: &Cgroups, id: &SandboxId, limits: &Limits) -> Result<(), Error> {
        self.legacy_limits = legacy_limits(cgroups, id, limits);
        set_limits(cgroups, &self.path, limits)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Whether limits come from who forks a process, and not from the v2 group that it begins in.
    pub(crate) fn limits_are_inherited(&self) -> bool {
        !self.legacy.is_empty()
    }

    /// Makes the v1 groups, with the limits.
    fn prepare_legacy(&self) -> Result<(), Error> {
        self.legacy.iter().try_for_each(|path| ensure_dir(path))?;
        // A kernel that does not count swap has no such file.
        let limits = self.legacy_limits.iter().filter(|(file, _)| !file.ends_with(LEGACY_SWAP_LIMIT) || file.exists());
        limits.into_iter().try_for_each(|(file, value)| fs::write(file, value).at("write", file))
    }

    /// Moves one process into the v1 groups, which need not be one of the sandbox's.
    pub(crate) fn bind_one(&self, pid: i32) -> Result<(), Error> {
        self.prepare_legacy()?;
        self.legacy.iter().try_for_each(|path| join(path, pid))
    }

    /// Moves all processes into the v1 groups, which have the limits then. Nothing to do where v2 has the controllers.
    pub(crate) fn bind(&self) -> Result<(), Error> {
        if !self.limits_are_inherited() {
            return Ok(());
        }
        self.prepare_legacy()?;
        let mut moved = HashSet::new();
        loop {
            // A process forked meanwhile by one that was not moved yet shows up in the next round; a child of a moved one
            // is born in the right group and is moved for nothing, once.
            let new: Vec<i32> = self.processes()?.into_iter().filter(|pid| moved.insert(*pid)).collect();
            if new.is_empty() {
                return Ok(());
            }
            for path in &self.legacy {
                // A move stalls every fork of the host for milliseconds, also one to where the process is already.
                let there: HashSet<i32> = read_processes(path)?.into_iter().collect();
                new.iter().filter(|pid| !there.contains(pid)).try_for_each(|pid| join(path, *pid))?;
            }
        }
    }

    /// All processes, those of commands too, zombies not included, as the host sees them.
    pub(crate) fn processes(&self) -> Result<Vec<i32>, Error> {
        processes_below(&self.path)
    }

    /// Makes the group of a command, below this one: what the command starts cannot leave it. The limits are this group's.
    pub(crate) fn begin_command(&self, name: &str) -> Result<OwnedFd, Error> {
        let path = self.path.join(name);
        fs::create_dir(&path).at("create", &path)?;
        let opened = File::open(&path).at("open", &path);
        if opened.is_err() {
            let _ = fs::remove_dir(&path);
        }
        opened.map(OwnedFd::from)
    }

    /// Takes back [`Group::begin_command`] of a command that did not start.
    pub(crate) fn forget_command(&self, name: &str) -> Result<(), Error> {
        remove_empty(&self.path.join(name))
    }

    /// The groups of commands.
    fn commands(&self) -> Result<Vec<PathBuf>, Error> {
        commands_below(&self.path)
    }

    /// Stops all processes; returns when all are stopped.
    pub(crate) fn freeze(&self) -> Result<(), Error> {
        write(&self.path, "cgroup.freeze", "1")?;
        match self.wait_for("frozen 1", FREEZE_MS_MAX)? {
            Waited::Seen => Ok(()),
            Waited::InVain => Err(Error::StillRunning { group: self.path.clone(), waited_ms: FREEZE_MS_MAX }),
        }
    }

    /// Whether a freeze was asked for and not taken back.
    pub(crate) fn is_frozen(&self) -> Result<bool, Error> {
        let path = self.path.join("cgroup.freeze");
        Ok(fs::read(&path).at("read", &path)?.starts_with(b"1"))
    }

    pub(crate) fn thaw(&self) -> Result<(), Error> {
        write(&self.path, "cgroup.freeze", "0")
    }

    /// Sends SIGKILL to all processes, frozen ones too.
    pub(crate) fn kill(&self) -> Result<(), Error> {
        write(&self.path, "cgroup.kill", "1")
    }

    /// Whether no process is left; zombies do not count.
    pub(crate) fn is_empty(&self) -> Result<bool, Error> {
        let path = self.path.join("cgroup.events");
        let text = fs::read_to_string(&path).at("read", &path)?;
        Ok(text.lines().any(|line| line == EMPTY))
    }

    /// Waits until no process is left.
    pub(crate) fn wait_empty(&self) -> Result<(), Error> {
        match self.wait_for(EMPTY, EMPTY_MS_MAX)? {
            Waited::Seen => Ok(()),
            Waited::InVain => Err(Error::StillPopulated { group: self.path.clone(), waited_ms: EMPTY_MS_MAX }),
        }
    }

    fn wait_for(&self, line: &str, limit_ms: u64) -> Result<Waited, Error> {
        let path = self.path.join("cgroup.events");
        let mut file = File::open(&path).at("open", &path)?;
        let deadline = Deadline::after_ms(limit_ms);
        let mut text = String::new();
        let mut slice = Duration::from_micros(50);
        loop {
            // Reading also arms the notification. The kernel gives it at most every 10 ms, and a fork waits for a freeze:
            // so this looks again after 50 us, 100 us and so on as well.
            file.rewind().at("rewind", &path)?;
            text.clear();
            file.read_to_string(&mut text).at("read", &path)?;
            if text.lines().any(|found| found == line) {
                return Ok(Waited::Seen);
            }
            deadline.poll_at_most(file.as_fd(), PollFlags::PRI, slice).at("watch", &path)?;
            slice *= 2;
            if deadline.left().is_zero() {
                return Ok(Waited::InVain);
            }
        }
    }

    /// Removes the empty groups. Those that are gone already are fine.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        self.commands()?.iter().try_for_each(|path| remove_empty(path))?;
        std::iter::once(&self.path).chain(&self.legacy).try_for_each(|path| remove_empty(path))
    }
}

/// What came of waiting for a line of cgroup.events.
enum Waited {
    Seen,
    InVain,
}

/// Removes one group below each of the node's directories, in whatever state it is: for what a dead keeper left.
pub(crate) fn sweep(cgroups: &Cgroups, id: &SandboxId) -> Result<(), Error> {
    let path = cgroups.summary().group.join(id.as_str());
    if let Err(error) = sweep_unified(&path)
        // Somebody else was faster: each step fails then, each in its own way.
        && path.exists()
    {
        return Err(error);
    }
    cgroups.legacy().iter().try_for_each(|parent| remove_empty(&parent.join(id.as_str())))
}

fn sweep_unified(path: &Path) -> Result<(), Error> {
    let directory = File::open(path).at("open", path)?.into();
    let group = Group { path: path.to_owned(), directory, legacy: Vec::new(), legacy_limits: Vec::new() };
    group.kill()?;
    group.wait_empty()?;
    group.remove()
}

/// A group counts its last process until the kernel has taken that apart, which takes a second for some gigabytes: tries again for up to five.
pub(super) fn remove_empty(path: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result.at("remove", path),
        }
    }
}

/// Those of a group that goes meanwhile are none.
/// The processes of a group and of the groups of its commands.
pub(super) fn processes_below(group: &Path) -> Result<Vec<i32>, Error> {
    let mut found = read_processes(group)?;
    for command in commands_below(group)? {
        found.extend(read_processes(&command)?);
    }
    Ok(found)
}

fn commands_below(group: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at("list", group)?,
    };
    let directory = |entry: fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir()).then(|| entry.path());
    Ok(entries.filter_map(|entry| directory(entry.ok()?)).collect())
}

fn read_processes(group: &Path) -> Result<Vec<i32>, Error> {
    let path = group.join("cgroup.procs");
    let text = match fs::read_to_string(&path) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => return Ok(Vec::new()),
        text => text.at("read", &path)?,
    };
    Ok(text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect())
}

fn join(group: &Path, pid: i32) -> Result<(), Error> {
    let path = group.join("cgroup.procs");
    match fs::write(&path, pid.to_string()) {
        // It ended in the meantime.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        result => result.at("write", &path),
    }
}

fn set_limits(cgroups: &Cgroups, path: &Path, limits: &Limits) -> Result<(), Error> {
    let summary = cgroups.summary();
    if summary.memory == ControllerHome::V2 {
        write(path, "memory.max", &limits.memory_bytes.to_string())?;
        // Else what exceeds the limit is moved to swap, without end. A kernel without swap has no such file.
        if path.join(SWAP_LIMIT).exists() {
            write(path, SWAP_LIMIT, "0")?;
        }
    }
    if summary.pids == ControllerHome::V2 {
        write(path, "pids.max", &limits.pids.to_string())?;
    }
    if let (ControllerHome::V2, Some(millis)) = (&summary.cpu, limits.cpu_millis) {
        write(path, "cpu.max", &format!("{} {CPU_PERIOD_US}", quota_us(millis)))?;
    }
    Ok(())
}

fn legacy_limits(cgroups: &Cgroups, id: &SandboxId, limits: &Limits) -> Vec<(PathBuf, String)> {
    let summary = cgroups.summary();
    let quota = limits.cpu_millis.map(|millis| quota_us(millis).to_string());
    let wanted = [
        (&summary.memory, "memory.limit_in_bytes", Some(limits.memory_bytes.to_string())),
        (&summary.memory, LEGACY_SWAP_LIMIT, Some(limits.memory_bytes.to_string())),
        (&summary.pids, "pids.max", Some(limits.pids.to_string())),
        (&summary.cpu, "cpu.cfs_quota_us", quota),
    ];
    let file = |(home, file, value): (&ControllerHome, &str, Option<String>)| match home {
        ControllerHome::V1(parent) => Some((parent.join(id.as_str()).join(file), value?)),
        ControllerHome::V2 | ControllerHome::Missing(_) => None,
    };
    wanted.into_iter().filter_map(file).collect()
}

fn quota_us(cpu_millis: u32) -> u64 {
    // The kernel refuses quotas under a millisecond.
    (u64::from(cpu_millis) * CPU_PERIOD_US / 1_000).max(1_000)
}
