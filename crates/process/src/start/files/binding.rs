//! Binding sockets again, also to an address that was free only because of an option that the program has switched off since.

use std::{collections::HashMap, net::IpAddr};

use super::Builder;
use crate::{
    image::{AddedSocket, FileKind, ProgramImage, Socket, SocketPath},
    script::Check,
};

/// A flag of a socket: level and name.
type Flag = (i32, i32);

const REUSE_ADDRESS: Flag = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
const REUSE_PORT: Flag = (libc::SOL_SOCKET, libc::SO_REUSEPORT);
const IP_BIND_ADDRESS_NO_PORT: i32 = 24;

/// Where internet sockets may be in each other's way: type and port.
pub(super) type Port = (i32, u16);

/// Sockets of one port.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    sockets: usize,
    /// One of them listens, or has `SO_REUSEPORT`.
    by_port: bool,
}

impl Crowd {
    /// The flag by which all of them can be bound. A port that one listens at can be shared by `SO_REUSEPORT` only, which for datagrams would
    /// spread them among the sockets.
    fn flag(&self) -> Option<Flag> {
        (self.sockets > 1).then_some(if self.by_port { REUSE_PORT } else { REUSE_ADDRESS })
    }
}

pub(super) fn crowds(image: &ProgramImage) -> HashMap<Port, Crowd> {
    let mut crowds = HashMap::<Port, Crowd>::new();
    for (index, file) in image.files.iter().enumerate() {
        let FileKind::Socket(socket) = &file.kind else { continue };
        let Some(port) = port(socket) else { continue };
        let crowd = crowds.entry(port).or_default();
        crowd.sockets += 1;
        crowd.by_port |= socket.listening.is_some() || has(REUSE_PORT, socket, image.added.socket(index));
    }
    crowds
}

fn port(socket: &Socket) -> Option<Port> {
    let address = socket.address.as_ref().filter(|_| is_internet(socket))?;
    let port = u16::from_be_bytes([*address.get(2)?, *address.get(3)?]);
    (port != 0).then_some((socket.kind, port))
}

fn is_internet(socket: &Socket) -> bool {
    matches!(socket.family, libc::AF_INET | libc::AF_INET6)
}

/// The flag by which a socket is bound to an address, and takes a port later.
fn without_port(socket: &Socket) -> Option<Flag> {
    let is_bound = socket.address.is_some() && is_internet(socket);
    (is_bound && port(socket).is_none()).then_some((libc::IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT))
}

/// Whether the program has the flag set.
fn has(flag: Flag, socket: &Socket, state: Option<&AddedSocket>) -> bool {
    let of_state =
        state.iter().flat_map(|state| &state.options).map(|(level, name, value)| ((*level, *name), value[0] != 0));
    let older = socket.options.iter().map(|(level, name, value)| ((*level, *name), *value != 0));
    older.chain(of_state).rfind(|(found, _)| *found == flag).is_some_and(|(_, set)| set)
}

/// The flag by which a socket can be bound to an address that the machine does not have.
fn free_bind(socket: &Socket) -> Option<Flag> {
    let address = socket.address.as_ref()?;
    let (address, flag): (IpAddr, Flag) = match socket.family {
        libc::AF_INET => (<[u8; 4]>::try_from(address.get(4..8)?).ok()?.into(), (libc::IPPROTO_IP, libc::IP_FREEBIND)),
        libc::AF_INET6 => {
            (<[u8; 16]>::try_from(address.get(8..24)?).ok()?.into(), (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND))
        }
        _ => return None,
    };
    let address = address.to_canonical();
    (!address.is_unspecified() && !address.is_loopback() && !address.is_multicast()).then_some(flag)
}

impl Builder<'_> {
    /// Binds a socket. What lets all of a port be bound it loses again in [`Self::leave_crowds`].
    pub(super) fn bind_socket(&mut self, made: i32, index: usize, socket: &Socket) {
        let Some(address) = &socket.address else { return };
        let state = self.image.added.socket(index);
        let crowd = port(socket).and_then(|port| self.crowds.get(&port)).and_then(Crowd::flag);
        let missing = |flag: &Flag| !has(*flag, socket, state);
        let own = [free_bind(socket), without_port(socket)].into_iter().flatten().filter(missing);
        let own: Vec<Flag> = own.collect();
        for flag in crowd.filter(missing).iter().chain(&own) {
            self.flag(made, *flag, 1);
        }
        self.bind(made, address, socket.path.as_ref());
        for flag in own {
            self.flag(made, flag, 0);
        }
    }

    /// Takes the flag away that let sockets of one port be bound, when all are.
    pub(super) fn leave_crowds(&mut self) {
        let image = self.image;
        for (index, file) in image.files.iter().enumerate() {
            let (FileKind::Socket(socket), Some((number, _))) = (&file.kind, file.numbers.first()) else { continue };
            let crowd = port(socket).and_then(|port| self.crowds.get(&port)).and_then(Crowd::flag);
            if let Some(flag) = crowd.filter(|flag| !has(*flag, socket, image.added.socket(index))) {
                self.flag(*number, flag, 0);
            }
        }
    }

    fn flag(&mut self, socket: i32, (level, name): Flag, value: i32) {
        self.option(socket, level, name, &value.to_ne_bytes(), Check::Success);
    }

    /// Binds to an address. A copy finds the source's socket file there, without a listener.
    pub(super) fn bind(&mut self, made: i32, address: &[u8], file: Option<&SocketPath>) {
        let place = self.arena.data(address, 8);
        let path = file.map(|file| self.arena.text(&file.path));
        if let Some(path) = path {
            self.script.call(libc::SYS_unlinkat, [libc::AT_FDCWD.into(), path.into(), 0u64.into()], Check::Ignore);
        }
        self.call(libc::SYS_bind, [made.into(), place.into(), (address.len() as u64).into()]);
        if let (Some(path), Some(SocketPath { uid, gid, mode, .. })) = (path, file) {
            let owner = [
                libc::AT_FDCWD.into(),
                path.into(),
                u64::from(*uid).into(),
                u64::from(*gid).into(),
                libc::AT_SYMLINK_NOFOLLOW.into(),
            ];
            self.call(libc::SYS_fchownat, owner);
            self.call(libc::SYS_fchmodat, [libc::AT_FDCWD.into(), path.into(), u64::from(*mode).into()]);
        }
    }
}
