//! The node's control groups: one per sandbox, below the daemon's own group.
//!
//! Every sandbox has a cgroup v2 group: it freezes, kills and finds its processes, and CLONE_INTO_CGROUP puts them there.
//! That needs no controller, so it works on every kernel, also where v1 has taken the controllers ("hybrid") and where
//! nobody mounted v2 (it is then mounted for this process only). Each limit lives where its controller is: in the same
//! v2 group, or in a v1 group of the same name that the processes join later, in a batch ([`Group::bind`]).
//!
//! ```text
//! v2:  <own group>/pando-<node>/<sandbox>            freeze, kill, membership, and limits if v2 has the controllers
//!      <own group>/pando-<node>-daemon               the daemon itself, if v2 has the controllers (no inner processes)
//!      <own group>/pando-daemon                      instead of the line above, if systemd has put the daemon there
//!      <own group>/pando-<node>-pager                the pager, with a limit of its own, if v2 has memory
//! v1:  <own group of memory>/pando-<node>/<sandbox>  only its limits of memory; likewise cpu and pids
//!      <own group of memory>/pando-<node>/pager      the pager
//! ```
//!
//! Where tasks are counted, `pando-<node>` has a limit of them, too: of what all sandboxes use together. That is why the node's own processes
//! are not in it.

mod detect;
mod group;
mod memory;
mod usage;

use std::{
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use base::{id::SandboxId, limits::PIDS_OF_HOST_PERCENT};
use serde::{Deserialize, Serialize};

use crate::error::{Context, Error};
use detect::{Controller, Own};
pub(crate) use group::{Group, sweep};
pub use memory::{MemoryGroup, MemoryShare, MemoryUse};
pub use usage::{Usage, UsageGroup};

/// Where the limits of a controller are set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControllerHome {
    /// In the sandbox's v2 group.
    V2,
    /// In a v1 group below this directory.
    V1(PathBuf),
    /// Nowhere: the limit does not hold. The reason.
    Missing(String),
}

impl ControllerHome {
    fn v1(&self) -> Option<PathBuf> {
        match self {
            Self::V1(path) => Some(path.clone()),
            Self::V2 | Self::Missing(_) => None,
        }
    }
}

/// What was found on this host, for `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupSummary {
    /// The v2 directory that holds the sandboxes' groups.
    pub group: PathBuf,
    /// v2 was not mounted on the host and is mounted for this process alone.
    pub mounted_privately: bool,
    /// Where memory limits are set.
    pub memory: ControllerHome,
    /// Where process limits are set.
    pub pids: ControllerHome,
    /// Where CPU limits are set.
    pub cpu: ControllerHome,
}

/// The node's groups.
pub struct Cgroups {
    summary: CgroupSummary,
    /// The daemon's own v2 directory, without a `daemon` leaf.
    own: PathBuf,
    /// The leaf of the daemon; it need not exist.
    leaf: Leaf,
    /// The v1 directories, each once although two controllers may be mounted together.
    legacy: Vec<PathBuf>,
    /// Keeps a private mount of v2 alive.
    _mount: Option<OwnedFd>,
}

/// Of the group's name, which goes before it.
const LEAF: &str = "daemon";

/// The leaf that `packaging/pando.service` names as `DelegateSubgroup=`: systemd starts the daemon in it. A unit whose
/// own group hands on controllers takes no process, so the next daemon could not start while sandboxes run.
const UNIT_LEAF: &str = "pando-daemon";

/// The group of the daemon itself, below its own group.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Leaf {
    /// The daemon makes and removes it.
    Made(PathBuf),
    /// systemd makes and removes it.
    OfUnit(PathBuf),
}

impl Leaf {
    /// Where a daemon that runs in the group `own` has its leaf; and its own group without that leaf.
    fn find(own: PathBuf, name: &str) -> (PathBuf, Self) {
        let made = format!("{name}-{LEAF}");
        match own.parent() {
            Some(above) if own.ends_with(UNIT_LEAF) => (above.to_owned(), Self::OfUnit(own)),
            Some(above) if own.ends_with(&made) => (above.to_owned(), Self::Made(own)),
            Some(_) | None => {
                let leaf = own.join(made);
                (own, Self::Made(leaf))
            }
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Made(path) | Self::OfUnit(path) => path,
        }
    }
}

/// Processes of the node's own whose memory is bounded, in a group beside those of sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Those that fill restored programs.
    Pager,
    /// Those that have the volumes.
    Volumes,
}

impl Service {
    const ALL: [Self; 2] = [Self::Pager, Self::Volumes];

    fn name(self) -> &'static str {
        match self {
            Self::Pager => "pager",
            Self::Volumes => "volumes",
        }
    }
}

impl Cgroups {
    /// Finds the hierarchies and makes the group `pando-<node_id>` below this process's own group, in each that is used.
    ///
    /// Where v2 has controllers this process moves into the leaf `pando-<node_id>-daemon`, because a group that hands
    /// controllers on must not hold processes itself; children that it starts afterwards begin there.
    ///
    /// All sandboxes together get at most [`PIDS_OF_HOST_PERCENT`] of the host's tasks.
    pub fn open(node_id: &str) -> Result<Self, Error> {
        let name = format!("pando-{node_id}");
        let mut found = detect::detect()?;
        let (own, leaf) = Leaf::find(found.own.path, &name);
        found.own.path = own;
        let group = found.own.path.join(&name);
        ensure_dir(&group)?;
        let refused = hand_on_controllers(&found.own, &group, leaf.path())?;
        let mut home = |controller| match (found.own.controllers.contains(&controller), &refused) {
            (true, None) => ControllerHome::V2,
            (true, Some(reason)) => ControllerHome::Missing(reason.clone()),
            (false, _) => legacy_home(found.legacy.remove(&controller), &name),
        };
        let (memory, pids, cpu) = (home(Controller::Memory), home(Controller::Pids), home(Controller::Cpu));
        let mut legacy: Vec<PathBuf> = [&memory, &pids, &cpu].into_iter().filter_map(ControllerHome::v1).collect();
        legacy.sort_unstable();
        legacy.dedup();
        bound_tasks(&pids, &group)?;
        let mounted_privately = found.own.mount.is_some();
        let summary = CgroupSummary { group, mounted_privately, memory, pids, cpu };
        Ok(Self { summary, own: found.own.path, leaf, legacy, _mount: found.own.mount })
    }

    /// What was detected.
    pub fn summary(&self) -> &CgroupSummary {
        &self.summary
    }

    /// Stops all processes of a sandbox; returns when they stand still. [`crate::Sandbox::thaw`] lets them go on, also after a failure.
    pub fn freeze(&self, id: &SandboxId) -> Result<(), Error> {
        Group::find(self, id)?.freeze()
    }

    /// Makes the group of a service, or finds it, and bounds its memory to `bytes`. Whoever writes `0` to the file is in it from then on,
    /// with all that it starts. `None` where memory cannot be bounded.
    pub fn service_group(&self, service: Service, bytes: u64) -> Result<Option<File>, Error> {
        let Some((group, limit)) = self.service_home(service) else { return Ok(None) };
        ensure_dir(&group)?;
        write(&group, limit, &bytes.to_string())?;
        let path = group.join("cgroup.procs");
        File::options().write(true).open(&path).at("open", &path).map(Some)
    }

    /// A service's group, and the file of its limit.
    fn service_home(&self, service: Service) -> Option<(PathBuf, &'static str)> {
        match &self.summary.memory {
            ControllerHome::V2 => Some((self.beside(service.name()), "memory.max")),
            ControllerHome::V1(parent) => Some((parent.join(service.name()), "memory.limit_in_bytes")),
            ControllerHome::Missing(_) => None,
        }
    }

    /// Removes the node's groups, if no sandbox and no service is left in them; for an orderly shutdown. One that stays does not keep the
    /// others.
    pub fn remove_all(&self) -> Result<(), Error> {
        let services = Service::ALL.into_iter().filter_map(|service| self.service_home(service));
        let removed = services.map(|(group, _)| group::remove_empty(&group)).fold(Ok(()), Result::and);
        // A service that stays keeps its limit, which needs the controllers.
        let removed = removed.and_then(|()| self.remove_own());
        self.legacy.iter().map(|path| remove_dir(path)).fold(removed, Result::and)
    }

    /// The v2 group `pando-<node>-<name>`.
    fn beside(&self, name: &str) -> PathBuf {
        let mut path = self.summary.group.clone().into_os_string();
        path.push(format!("-{name}"));
        path.into()
    }

    fn remove_own(&self) -> Result<(), Error> {
        // A unit's leaf stays, and so do the controllers that lead to it.
        if let Leaf::Made(leaf) = &self.leaf
            && leaf.exists()
        {
            // The way back: a group that hands on controllers takes no process, so it stops doing that first.
            write_controllers(&self.summary.group, '-').at("take back controllers of", &self.summary.group)?;
            write_controllers(&self.own, '-').at("take back controllers of", &self.own)?;
            write(&self.own, "cgroup.procs", "0")?;
            remove_dir(leaf)?;
        }
        remove_dir(&self.summary.group)
    }

    /// The v1 directories in use.
    pub(crate) fn legacy(&self) -> &[PathBuf] {
        &self.legacy
    }

    /// The ids of all groups that exist, in any hierarchy.
    pub(crate) fn list(&self) -> Result<Vec<SandboxId>, Error> {
        let mut ids = Vec::new();
        for directory in std::iter::once(&self.summary.group).chain(&self.legacy) {
            for entry in fs::read_dir(directory).at("list", directory)? {
                let name = entry.at("list", directory)?.file_name();
                ids.extend(name.to_str().and_then(|name| name.parse().ok()));
            }
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

/// Makes the node's group in the v1 hierarchy of a controller, below this process's `own` group there.
fn legacy_home(own: Option<PathBuf>, name: &str) -> ControllerHome {
    let Some(own) = own else {
        return ControllerHome::Missing("this kernel or container has no such controller".to_owned());
    };
    let directory = own.join(name);
    match fs::create_dir(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            ControllerHome::Missing(format!("cannot create {}: {error}", directory.display()))
        }
        _ => ControllerHome::V1(directory),
    }
}

/// Bounds the tasks of all sandboxes together, where they are counted: one that forks without end takes up its own limit, and a thousand with
/// small ones must not take up the host either.
fn bound_tasks(home: &ControllerHome, group: &Path) -> Result<(), Error> {
    let directory = match home {
        ControllerHome::V2 => group,
        ControllerHome::V1(directory) => directory,
        ControllerHome::Missing(_) => return Ok(()),
    };
    let tasks = most_tasks(directory)?;
    write(directory, "pids.max", &(tasks * PIDS_OF_HOST_PERCENT / 100).to_string())
}

/// What `directory` could count at most if it had no limit: what the kernel has numbers and memory for, and the limits of the groups that it is in
/// (a service's `TasksMax`, a container's limit).
fn most_tasks(directory: &Path) -> Result<u64, Error> {
    let of_host = |path: &str| -> Result<u64, Error> {
        let text = fs::read_to_string(path).at("read", Path::new(path))?;
        text.trim().parse().map_err(io::Error::other).at("read", Path::new(path))
    };
    let host = of_host("/proc/sys/kernel/pid_max")?.min(of_host("/proc/sys/kernel/threads-max")?);
    // Without a number where there is no limit, and without the file at the root.
    let limit = |group: &Path| fs::read_to_string(group.join("pids.max")).ok()?.trim().parse::<u64>().ok();
    Ok(directory.ancestors().skip(1).filter_map(limit).fold(host, u64::min))
}

/// Enables the limits' controllers for the children of `group`. The reason if the host does not let us.
fn hand_on_controllers(own: &Own, group: &Path, leaf: &Path) -> Result<Option<String>, Error> {
    if own.controllers.is_empty() {
        return Ok(None);
    }
    // Only the real root group may both hold processes and hand on controllers; it has no cgroup.type.
    if own.path.join("cgroup.type").exists() {
        ensure_dir(leaf)?;
        write(leaf, "cgroup.procs", "0")?;
    }
    let result = write_controllers(&own.path, '+').and_then(|()| write_controllers(group, '+'));
    Ok(result.err().map(|error| format!("{} cannot hand on its controllers: {error}", own.path.display())))
}

/// Switches the limits' controllers on (`+`) or off (`-`) for the children of `group`, as far as it has them.
fn write_controllers(group: &Path, sign: char) -> io::Result<()> {
    let available = fs::read_to_string(group.join("cgroup.controllers"))?;
    for controller in available.split_whitespace().filter(|name| Controller::parse(name).is_some()) {
        fs::write(group.join("cgroup.subtree_control"), format!("{sign}{controller}"))?;
    }
    Ok(())
}

pub(crate) fn write(group: &Path, file: &str, value: &str) -> Result<(), Error> {
    let path = group.join(file);
    fs::write(&path, value).at("write", &path)
}

fn ensure_dir(path: &Path) -> Result<(), Error> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result.at("create", path),
    }
}

fn remove_dir(path: &Path) -> Result<(), Error> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.at("remove", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leaf_of_a_unit_is_systemds() {
        let unit = Path::new("/sys/fs/cgroup/system.slice/pando.service");
        let of_unit = unit.join("pando-daemon");
        assert_eq!(Leaf::find(of_unit.clone(), "pando-n1"), (unit.to_owned(), Leaf::OfUnit(of_unit)));
        let made = unit.join("pando-n1-daemon");
        for own in [unit.to_owned(), made.clone()] {
            assert_eq!(Leaf::find(own, "pando-n1"), (unit.to_owned(), Leaf::Made(made.clone())));
        }
        let root = PathBuf::from("/");
        assert_eq!(Leaf::find(root.clone(), "pando-n1"), (root, Leaf::Made("/pando-n1-daemon".into())));
    }

    #[test]
    fn groups_above_bound_what_there_can_be_at_most() {
        let root = tempfile::tempdir().unwrap();
        let node = root.path().join("service/node");
        fs::create_dir_all(&node).unwrap();
        let unlimited = most_tasks(&node).unwrap();
        assert!(unlimited > 300);
        write(root.path(), "pids.max", "300\n").unwrap();
        write(&root.path().join("service"), "pids.max", "max\n").unwrap();
        // Its own is what is to be set.
        write(&node, "pids.max", "7\n").unwrap();
        assert_eq!(most_tasks(&node).unwrap(), 300);
    }
}
