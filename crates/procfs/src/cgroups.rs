//! `/proc/PID/cgroup`: the control groups of a process (cgroups(7)).

use std::fmt;

use crate::{error::Error, read::read};

/// The control groups that a process is in: one of each hierarchy.
#[derive(Debug)]
pub struct CgroupPaths(String);

/// The group of one hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupPath<'a> {
    /// The names of the hierarchy's controllers, separated by commas; `None` for version 2.
    pub controllers: Option<&'a str>,
    /// Its path from the root of the hierarchy, as the caller's cgroup namespace has it.
    pub path: &'a str,
}

impl CgroupPaths {
    /// Those of a process: its number, or `self`.
    pub fn read(process: impl fmt::Display) -> Result<Self, Error> {
        Ok(Self::of(&String::from_utf8_lossy(&read(&format!("/proc/{process}/cgroup"))?)))
    }

    /// These lines.
    pub fn of(lines: &str) -> Self {
        Self(lines.to_owned())
    }

    /// Each group, in the kernel's order. A line of another form is left out.
    pub fn iter(&self) -> impl Iterator<Item = CgroupPath<'_>> {
        self.0.lines().filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            Some(CgroupPath { controllers: (number != "0").then_some(controllers), path })
        })
    }

    /// The path of the version 2 group.
    pub fn unified(&self) -> Option<&str> {
        self.iter().find(|group| group.controllers.is_none()).map(|group| group.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_and_v1_lines_are_told_apart() {
        let groups = CgroupPaths::of("4:memory:/m\n1:cpu,cpuacct:/\n0::/unified/x\n");
        let found: Vec<_> = groups.iter().map(|group| (group.controllers, group.path)).collect();
        assert_eq!(found, [(Some("memory"), "/m"), (Some("cpu,cpuacct"), "/"), (None, "/unified/x")]);
        assert_eq!((groups.unified(), CgroupPaths::of("4:memory:/m\n").unified()), (Some("/unified/x"), None));
    }
}
