//! Questions to the kernel from inside the network namespace of the process: lists of sockets, and what new sockets are like.

use std::{
    collections::{HashMap, hash_map::Entry},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use sys::namespace::{Kind, inside};

use crate::{
    error::{Context, Error},
    options::{self, Changed, Phase, SocketType, Values},
};

/// New sockets of the process's network namespace, one of each type that it has.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    values: HashMap<SocketType, Values>,
}

impl Fresh {
    /// How a socket of the process differs from a new one.
    pub(super) fn changed(
        &mut self,
        pid: i32,
        process: BorrowedFd<'_>,
        socket: BorrowedFd<'_>,
        of: SocketType,
        phase: Phase,
    ) -> Result<Changed, Error> {
        const WHAT: &str = "compare socket options";
        let fresh = match self.values.entry(of) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let made = inside(process, Kind::Network, || make(of)).flatten().of(WHAT, pid)?;
                place.insert(Values::read(made.as_fd(), of))
            }
        };
        let make_inside = || inside(process, Kind::Network, || make(of)).flatten();
        options::changed((socket, of), phase, fresh, make_inside).of(WHAT, pid)
    }
}

fn make(of: SocketType) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, Protocol, RawProtocol, SocketFlags, SocketType, socket_with};
    let protocol = RawProtocol::new(of.protocol as u32).map(Protocol::from_raw);
    let (family, kind) = (AddressFamily::from_raw(of.family as u16), SocketType::from_raw(of.kind as u32));
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?)
}
