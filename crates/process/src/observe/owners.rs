//! Who gets a signal when something happens at an open file.

use std::os::fd::AsFd;

use procfs::Fields;
use sys::file;

use crate::{
    error::{Context, Error},
    image::SignalOwner,
    observe::descriptors::Holder,
    refusal::Refusal,
};

/// `F_OWNER_PGRP`
const GROUP: i32 = 2;

/// The owner of an open file of process `pid`: `file` is a duplicate of its descriptor `fd`. A copy has the threads of these processes and no
/// other one, so the owner must be one of these.
pub(crate) fn read(
    holders: &[Holder<'_>],
    pid: i32,
    fd: i32,
    file: impl AsFd,
) -> Result<Result<Option<SignalOwner>, Refusal>, Error> {
    let is_one = |id: i32| holders.iter().any(|holder| holder.pid == id);
    let file::SignalOwner { kind, id, signal } = file::signal_owner(file).of("read a descriptor's owner", pid)?;
    if id == 0 {
        return Ok(Ok((signal != 0).then_some(SignalOwner { kind, id, signal })));
    }
    // A group has the number of its leader.
    let status = match Fields::read(format!("/proc/{id}/status")) {
        Err(error) if error.is_gone() => None,
        status => Some(status?),
    };
    let is_own = match &status {
        Some(_) if kind == GROUP => is_one(id),
        Some(status) => is_one(status.number("Tgid", 10)? as i32),
        None => false,
    };
    match status.filter(|_| is_own) {
        None => Ok(Err(Refusal::ForeignOwner { fd, owner: id })),
        Some(status) => {
            let inside = status.numbers("NSpid", 10)?.last().map_or(id, |id| *id as i32);
            Ok(Ok(Some(SignalOwner { kind, id: inside, signal })))
        }
    }
}
