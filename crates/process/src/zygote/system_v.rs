//! Makes the System V objects of a copy in its sandbox before it is started. Only a process of the host may choose their numbers: `/proc/sys` of a
//! sandbox is read-only.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use procfs::{Fields, IdMaps};
use serde::{Deserialize, Serialize};
use sys::{
    namespace::{self, inside},
    system_v::{Kind, Object},
};

use crate::image::SystemV;

/// A System V object that copies of a zygote have. It is made in their sandboxes, empty, when they are started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemVFacts {
    kind: Kind,
    number: i32,
    key: i32,
    creator: [u32; 2],
    amount: u64,
}

impl From<&SystemV> for SystemVFacts {
    fn from(object: &SystemV) -> Self {
        let &SystemV { kind, number, key, creator, .. } = object;
        Self { kind, number, key, creator, amount: object.amount() }
    }
}

/// Makes them in the sandbox whose pid 1 has this pidfd.
pub(super) fn make(init: BorrowedFd<'_>, objects: &[SystemVFacts]) -> io::Result<()> {
    if objects.is_empty() {
        return Ok(());
    }
    let known = Fields::read(format!("/proc/self/fdinfo/{}", init.as_raw_fd())).map_err(io::Error::other)?;
    let pid = known.number("Pid", 10).map_err(io::Error::other)? as i32;
    let ids = IdMaps::of(pid).map_err(io::Error::other)?;
    inside(init, namespace::Kind::Ipc, || objects.iter().try_for_each(|object| make_one(&ids, object))).flatten()
}

fn make_one(ids: &IdMaps, object: &SystemVFacts) -> io::Result<()> {
    let &SystemVFacts { kind, number, key, creator: [user, group], amount } = object;
    // In the place of a user that this sandbox does not have, its root is the creator.
    let user = ids.user_outside(user).or_else(|| ids.user_outside(0)).unwrap_or_default();
    let group = ids.group_outside(group).or_else(|| ids.group_outside(0)).unwrap_or_default();
    let ids = [user, group];
    Object { kind, number, key, owner: ids, creator: ids, mode: 0, amount }.make()
}
