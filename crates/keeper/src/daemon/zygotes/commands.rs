//! The commands of a copy: processes that its first process has cloned as children of the keeper, with numbers that the zygote's facts tell.

use std::{io, os::fd::OwnedFd};

use base::id::SandboxId;
use process::CommandFacts;
use procfs::Fields;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::super::{
    children::{Children, Role, pid_namespace},
    identity,
};
use crate::protocol::ForkedCommand;

/// Watches them, and gives a pidfd of each. `copy` is the first process; It may be one of them.
pub(super) fn watch(
    children: &mut Children,
    sandbox: &SandboxId,
    copy: i32,
    wanted: &[CommandFacts],
) -> io::Result<(Vec<ForkedCommand>, Vec<OwnedFd>)> {
    let namespace = pid_namespace(copy);
    let is_beside = |pid: &i32| namespace.is_some() && pid_namespace(*pid) == namespace;
    let beside: Vec<(i32, i32)> =
        children.strays(|_| false).into_iter().filter(is_beside).map(|pid| (pid, inside(pid))).collect();
    let first = inside(copy);
    let mut found = (Vec::new(), Vec::new());
    for CommandFacts { place, inside, .. } in wanted {
        let one = beside.iter().find(|(_, other)| other == inside).map(|(pid, _)| *pid);
        let Some(pid) = one.or((first == *inside).then_some(copy)) else {
            return Err(io::Error::other(format!("its command with the pid {inside} was not made")));
        };
        if pid != copy {
            children.watch(pid, Role::Program { id: sandbox.clone(), main: false })?;
        }
        let number = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        found.0.push(ForkedCommand { place: *place, inside: *inside, process: identity(pid)? });
        found.1.push(pidfd_open(number, PidfdFlags::empty())?);
    }
    Ok(found)
}

/// What a process is called in its own pid namespace; 0 for one that is gone.
fn inside(pid: i32) -> i32 {
    let ids = Fields::read(format!("/proc/{pid}/status")).and_then(|status| status.numbers("NSpid", 10));
    ids.ok().and_then(|ids| ids.last().copied()).unwrap_or_default() as i32
}
