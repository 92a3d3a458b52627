//! Which hierarchies exist, and where in them this process is.

use std::{
    collections::HashMap,
    fs,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use procfs::{CgroupPath, CgroupPaths, Mount, Mounts};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::error::{Context, Error};

/// The controllers whose limits are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "memory" => Some(Self::Memory),
            "pids" => Some(Self::Pids),
            "cpu" => Some(Self::Cpu),
            _ => None,
        }
    }
}

/// This process's own v2 group.
pub(super) struct Own {
    pub(super) path: PathBuf,
    pub(super) controllers: Vec<Controller>,
    pub(super) mount: Option<OwnedFd>,
}

pub(super) struct Found {
    pub(super) own: Own,
    /// This process's own v1 group of each controller that v1 has.
    pub(super) legacy: HashMap<Controller, PathBuf>,
}

pub(super) fn detect() -> Result<Found, Error> {
    let groups = CgroupPaths::read("self").doing("find this process's control groups")?;
    let mounts = Mounts::read("self").doing("list the mounts")?;
    let mounts: Vec<Mount<'_>> = mounts.iter().collect();
    let mut legacy = HashMap::new();
    for CgroupPath { controllers, path: group } in groups.iter() {
        let controllers = controllers.unwrap_or_default();
        for (name, controller) in controllers.split(',').filter_map(|name| Some((name, Controller::parse(name)?))) {
            let mounted =
                mounts.iter().find(|mount| mount.kind == "cgroup" && mount.options.split(',').any(|o| o == name));
            legacy.extend(mounted.and_then(|mount| Some((controller, directory_of(mount, group)?))));
        }
    }
    let group = groups.unified().ok_or(Error::NoCgroup2)?;
    let visible = mounts.iter().find(|mount| mount.kind == "cgroup2").and_then(|mount| directory_of(mount, group));
    let (path, mount) = match visible {
        Some(path) => (path, None),
        None => {
            let mount = mount_privately().doing("mount cgroup v2 for this process")?;
            let root = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
            (root.join(group.trim_start_matches('/')), Some(mount))
        }
    };
    let available = fs::read_to_string(path.join("cgroup.controllers")).at("read the controllers of", &path)?;
    let controllers = available.split_whitespace().filter_map(Controller::parse).collect();
    Ok(Found { own: Own { path, controllers, mount }, legacy })
}

fn mount_privately() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// Where a control group is, if it can be seen in this mount: a container sees its own group as the root of the mount.
fn directory_of(mount: &Mount<'_>, group: &str) -> Option<PathBuf> {
    let below = Path::new(group).strip_prefix(mount.root()).ok()?;
    Some(if below.as_os_str().is_empty() { mount.at() } else { mount.at().join(below) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_sees_its_group_below_the_mount() {
        let text = "31 23 0:28 /docker/abc /sys/fs/cgroup/memory ro,nosuid master:9 - cgroup cgroup rw,memory\n\
                    32 23 0:29 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let mounts = Mounts::of(text);
        let mounts: Vec<Mount<'_>> = mounts.iter().collect();
        assert_eq!(directory_of(&mounts[0], "/docker/abc").unwrap(), Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(directory_of(&mounts[0], "/docker/abc/x").unwrap(), Path::new("/sys/fs/cgroup/memory/x"));
        assert_eq!(directory_of(&mounts[0], "/other"), None);
        assert_eq!(directory_of(&mounts[1], "/a/b").unwrap(), Path::new("/sys/fs/cgroup/unified/a/b"));
    }
}
