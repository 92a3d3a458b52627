//! TCP connections whose two ends are in the program, or were: they are read when all of its processes stand still.

use std::{
    collections::HashMap,
    io,
    net::Ipv6Addr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use base::limits::CONNECTION_BYTES_MAX;
use sys::{sockets, tcp::Repair};

use crate::{
    error::{Context, Error},
    image::{Connection, End, FileKind, connections},
    observe::files::Files,
};

/// Address and port, those of version 4 as version 6 has them.
type Endpoint = ([u8; 16], u16);

/// An end that was met.
#[derive(Debug)]
struct Met {
    /// The place of its file.
    file: usize,
    socket: OwnedFd,
    local: Vec<u8>,
    peer: Vec<u8>,
}

/// The ends that have been met, by own and other endpoint.
#[derive(Debug, Default)]
pub(super) struct Connections {
    met: HashMap<(Endpoint, Endpoint), Met>,
    /// In the order in which they were met.
    order: Vec<(Endpoint, Endpoint)>,
}

impl Connections {
    /// Notes an end; `file` is the place of its file.
    pub(super) fn note(&mut self, socket: BorrowedFd<'_>, file: usize) -> io::Result<()> {
        let (local, peer) = (sockets::local_address(socket)?, sockets::peer_address(socket)?);
        if let (Some(own), Some(other)) = (endpoint(&local), endpoint(&peer)) {
            self.met.insert((own, other), Met { file, socket: socket.try_clone_to_owned()?, local, peer });
            self.order.push((own, other));
        }
        Ok(())
    }

    /// Makes connections of the ends that belong to each other.
    pub(super) fn complete(mut self, pid: i32, files: &mut Files) -> Result<(), Error> {
        for (own, other) in std::mem::take(&mut self.order) {
            // A socket that is connected to itself has no other end.
            if own == other {
                continue;
            }
            let Some(first) = self.met.remove(&(own, other)) else { continue };
            let second = self.met.remove(&(other, own));
            let found = match &second {
                Some(second) => read(&first, second),
                None if is_inside(own, other) => read_alone(&first),
                None => continue,
            };
            let Some(ends) = found.of("read a connection", pid)? else { continue };
            for (met, end) in [(Some(&first), End::First), (second.as_ref(), End::Second)] {
                let Some(met) = met else { continue };
                files.files[met.file].kind = FileKind::Connection { connection: files.connections.len(), end };
            }
            files.connections.push(ends);
        }
        Ok(())
    }
}

/// Both stand still while they are read. Nothing if more waits in one than a copy's sockets take: a copy finds it reset.
fn read(first: &Met, second: &Met) -> io::Result<Option<Connection>> {
    let max = CONNECTION_BYTES_MAX;
    let (one, other) = (Repair::begin(first.socket.as_fd())?, Repair::begin(second.socket.as_fd())?);
    let (one, other) = (one.read(max)?, other.read(max)?);
    if [&one.received, &one.sent, &other.received, &other.sent].into_iter().any(|queue| queue.len() > max) {
        return Ok(None);
    }
    let (ends_at, others_ends_at) = (one.received_end, other.received_end);
    let ends = [
        connections::end_of(one, first.local.clone(), first.peer.clone(), others_ends_at),
        connections::end_of(other, second.local.clone(), second.peer.clone(), ends_at),
    ];
    Ok(Some(Connection { ends }))
}

/// The other end is closed.
fn read_alone(end: &Met) -> io::Result<Option<Connection>> {
    let max = CONNECTION_BYTES_MAX;
    let read = Repair::begin(end.socket.as_fd())?.read(max)?;
    if read.received.len() > max {
        return Ok(None);
    }
    Ok(connections::with_closed_end(read, end.local.clone(), end.peer.clone()))
}

/// Whether both endpoints are of the sandbox: those of loopback, or the same address.
fn is_inside((own, _): Endpoint, (other, _): Endpoint) -> bool {
    let is_loopback = |address| {
        let address = Ipv6Addr::from(address);
        address.is_loopback() || address.to_ipv4_mapped().is_some_and(|four| four.is_loopback())
    };
    own == other || is_loopback(own) && is_loopback(other)
}

fn endpoint(address: &[u8]) -> Option<Endpoint> {
    let port = u16::from_be_bytes([*address.get(2)?, *address.get(3)?]);
    let family = i32::from(u16::from_ne_bytes([address[0], address[1]]));
    let mut ip = [0; 16];
    match family {
        libc::AF_INET => {
            ip[10..12].fill(0xff);
            ip[12..].copy_from_slice(address.get(4..8)?);
        }
        libc::AF_INET6 => ip.copy_from_slice(address.get(8..24)?),
        _ => return None,
    }
    Some((ip, port))
}
