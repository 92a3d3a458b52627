//! Who a program is and what it may do, as seen from outside its user namespace.

use procfs::Fields;

use crate::{error::Error, image::Privileges};

/// What `/proc/PID/status` says of who a thread is, and of what it may do.
const OF_THREADS: [&str; 9] = ["Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs"];

/// Whether two threads are the same user with the same privileges, by their `status`.
pub(super) fn are_alike(one: &Fields, other: &Fields) -> bool {
    OF_THREADS.iter().all(|name| one.get(name) == other.get(name))
}

/// Whether a program with this `status` could change who its threads are, or what they may do: by a capability, or by going back to another id.
pub(super) fn may_change(status: &Fields) -> Result<bool, Error> {
    let is_one = |ids: Vec<u64>| ids.windows(2).all(|pair| pair[0] == pair[1]);
    let one_user = is_one(status.numbers("Uid", 10)?) && is_one(status.numbers("Gid", 10)?);
    Ok(!one_user || privileges(status)?.permitted != 0)
}

/// The privileges of a program, by its `status`.
pub(crate) fn privileges(status: &Fields) -> Result<Privileges, Error> {
    let set = |name: &str| status.number(name, 16);
    Ok(Privileges {
        may_gain: status.number("NoNewPrivs", 10)? == 0,
        bounding: set("CapBnd")?,
        permitted: set("CapPrm")?,
        effective: set("CapEff")?,
        inheritable: set("CapInh")?,
        ambient: set("CapAmb")?,
    })
}

/// The effective ids of a process. They are those that this process sees, as files of the process's root filesystem have them.
#[derive(Debug)]
pub(crate) struct Rights {
    pub(crate) user: u32,
    pub(crate) groups: Vec<u32>,
    /// Whether modes do not count for it (`CAP_DAC_OVERRIDE`).
    pub(crate) overrides: bool,
}

impl Rights {
    pub(crate) fn of(pid: i32) -> Result<Self, Error> {
        let status = Fields::read(format!("/proc/{pid}/status"))?;
        let mut groups = status.numbers("Groups", 10)?;
        groups.push(status.effective("Gid")?);
        const DAC_OVERRIDE: u64 = 1 << 1;
        let overrides = status.number("CapEff", 16)? & DAC_OVERRIDE != 0;
        let groups = groups.into_iter().map(|group| group as u32).collect();
        Ok(Self { user: status.effective("Uid")? as u32, groups, overrides })
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
