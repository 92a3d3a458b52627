//! Who a program is: what it may do with files, as seen from outside its user namespace.

use procfs::{Fields, IdMaps};

use crate::error::Error;

/// The effective ids of a process. They are those that this process sees, as files of the process's root filesystem have them.
#[derive(Debug)]
pub(crate) struct Rights {
    pub(crate) user: u32,
    pub(crate) groups: Vec<u32>,
    /// Whether it is root in its user namespace.
    pub(crate) is_root: bool,
}

impl Rights {
    pub(crate) fn of(pid: i32) -> Result<Self, Error> {
        let status = Fields::read(format!("/proc/{pid}/status"))?;
        let mut groups = status.numbers("Groups", 10)?;
        groups.push(status.effective("Gid")?);
        let user = status.effective("Uid")? as u32;
        let groups = groups.into_iter().map(|group| group as u32).collect();
        Ok(Self { user, groups, is_root: IdMaps::of(pid)?.user_inside(user) == 0 })
    }

    /// Which bits of a file's mode count for it: how far they are to the left.
    pub(crate) fn class(&self, owner: u32, group: u32) -> u32 {
        match owner == self.user {
            true => 6,
            false if self.groups.contains(&group) => 3,
            false => 0,
        }
    }
}
