//! Sockets without a connection, and connections that a copy finds reset.

use super::{Builder, CLOSE_ON_EXEC};
use crate::{
    image::{Socket, SocketOption, SocketPath},
    script::Check,
};

impl Builder<'_> {
    pub(super) fn options(&mut self, socket: i32, options: &[SocketOption]) {
        for (level, name, value) in options {
            let place = self.arena.words(&[*value as u32 as u64]);
            self.call(
                libc::SYS_setsockopt,
                [socket.into(), (*level).into(), (*name).into(), place.into(), 4u64.into()],
            );
        }
    }

    pub(super) fn socket(&mut self, socket: &Socket, flags: i32) -> i32 {
        let kind = socket.kind | CLOSE_ON_EXEC;
        let made = self.make(libc::SYS_socket, [socket.family.into(), kind.into(), socket.protocol.into()]);
        self.options(made, &socket.options);
        if let Some(address) = &socket.address {
            self.bind(made, address, socket);
        }
        if let Some(backlog) = socket.listening {
            self.call(libc::SYS_listen, [made.into(), u64::from(backlog).into()]);
        }
        if let Some(peer) = &socket.peer {
            let place = self.arena.data(peer, 8);
            self.call(libc::SYS_connect, [made.into(), place.into(), (peer.len() as u64).into()]);
        }
        self.later_flags(made, flags);
        made
    }

    fn bind(&mut self, made: i32, address: &[u8], socket: &Socket) {
        let place = self.arena.data(address, 8);
        let path = socket.path.as_ref().map(|file| self.arena.text(&file.path));
        if let Some(path) = path {
            // The root filesystem has the source's socket file, to which nothing listens any more.
            self.script.call(libc::SYS_unlinkat, [libc::AT_FDCWD.into(), path.into(), 0u64.into()], Check::Ignore);
        }
        self.call(libc::SYS_bind, [made.into(), place.into(), (address.len() as u64).into()]);
        if let (Some(path), Some(SocketPath { uid, gid, mode, .. })) = (path, &socket.path) {
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

    /// A connection whose peer has reset it: made to a listener of our own on loopback, which closes it with no lingering.
    pub(super) fn reset_connection(&mut self, family: i32, flags: i32) -> i32 {
        let address: Vec<u8> = if family == libc::AF_INET6 {
            let mut address = vec![0u8; 28];
            (address[0], address[23]) = (libc::AF_INET6 as u8, 1);
            address
        } else {
            vec![libc::AF_INET as u8, 0, 0, 0, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
        };
        let place = self.arena.data(&address, 8);
        let length = self.arena.words(&[address.len() as u64]);
        let no_linger = self.arena.words(&[1]); // struct linger { on: 1, seconds: 0 }
        let kind = libc::SOCK_STREAM | CLOSE_ON_EXEC;
        let bytes = address.len() as u64;
        let made = self.make(libc::SYS_socket, [family.into(), kind.into(), 0u64.into()]);
        let listener = self.make(libc::SYS_socket, [family.into(), kind.into(), 0u64.into()]);
        self.call(libc::SYS_bind, [listener.into(), place.into(), bytes.into()]);
        self.call(libc::SYS_listen, [listener.into(), 1u64.into()]);
        self.call(libc::SYS_getsockname, [listener.into(), place.into(), length.into()]);
        self.call(libc::SYS_connect, [made.into(), place.into(), bytes.into()]);
        let accepted = self.make(libc::SYS_accept4, [listener.into(), 0u64.into(), 0u64.into(), CLOSE_ON_EXEC.into()]);
        let linger = [accepted.into(), libc::SOL_SOCKET.into(), libc::SO_LINGER.into(), no_linger.into(), 8u64.into()];
        self.call(libc::SYS_setsockopt, linger);
        self.close(accepted);
        self.close(listener);
        self.later_flags(made, flags);
        made
    }
}
