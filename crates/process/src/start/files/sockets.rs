//! Sockets without a connection, and connections that a copy finds reset.

use std::collections::HashMap;

use super::{Builder, CLOSE_ON_EXEC};
use crate::{
    image::{AddedSocket, FileKind, IntegerOption, Message, OpenFile, ProgramImage, Socket},
    options,
    script::Check,
};

/// The unix datagram sockets in the order in which they are connected: one that has a peer cannot become the peer of others any more. So each comes
/// behind those whose peer it is.
fn unix_sockets(image: &ProgramImage) -> Vec<usize> {
    let sockets: Vec<(usize, &Socket)> = image.files.iter().enumerate().filter_map(unix_socket).collect();
    let addresses = sockets.iter().enumerate().filter_map(|(at, (_, socket))| Some((socket.address.as_ref()?, at)));
    let by_address: HashMap<_, _> = addresses.collect();
    let peers: Vec<Option<usize>> =
        sockets.iter().map(|(_, socket)| by_address.get(socket.peer.as_ref()?).copied()).collect();
    let mut waits_for = vec![0; sockets.len()];
    peers.iter().flatten().for_each(|peer| waits_for[*peer] += 1);
    let mut order: Vec<usize> = (0..sockets.len()).filter(|at| waits_for[*at] == 0).collect();
    let mut next = 0;
    while let Some(at) = order.get(next) {
        if let Some(peer) = peers[*at] {
            waits_for[peer] -= 1;
            if waits_for[peer] == 0 {
                order.push(peer);
            }
        }
        next += 1;
    }
    // Two that have each other are a pair, and longer circles are not possible. The rest are their own peers.
    order.extend((0..sockets.len()).filter(|at| waits_for[*at] > 0));
    order.into_iter().map(|at| sockets[at].0).collect()
}

fn unix_socket((index, file): (usize, &OpenFile)) -> Option<(usize, &Socket)> {
    match &file.kind {
        FileKind::Socket(socket) if (socket.family, socket.kind) == (libc::AF_UNIX, libc::SOCK_DGRAM) => {
            Some((index, socket))
        }
        _ => None,
    }
}

impl Builder<'_> {
    /// Options as states of versions 1 and 2 have them.
    pub(super) fn integer_options(&mut self, socket: i32, options: &[IntegerOption]) {
        for (level, name, value) in options {
            self.option(socket, *level, *name, &value.to_ne_bytes(), Check::Success);
        }
    }

    /// The options that a socket gets at once.
    pub(super) fn options(&mut self, socket: i32, index: usize, check: Check) {
        let image = self.image;
        for (level, name, value) in image.added.socket(index).iter().flat_map(|state| &state.options) {
            if !options::is_late(*level, *name) {
                self.option(socket, *level, *name, value, check);
            }
        }
    }

    pub(super) fn option(&mut self, socket: i32, level: i32, name: i32, value: &[u8], check: Check) {
        let place = self.arena.data(value, 8);
        let length = value.len() as u64;
        let args = [socket.into(), level.into(), name.into(), place.into(), length.into()];
        self.script.call(libc::SYS_setsockopt, args, check);
    }

    pub(super) fn socket(&mut self, index: usize, socket: &Socket, flags: i32) -> i32 {
        let kind = socket.kind | CLOSE_ON_EXEC;
        let made = self.make(libc::SYS_socket, [socket.family.into(), kind.into(), socket.protocol.into()]);
        self.integer_options(made, &socket.options);
        self.options(made, index, Check::Success);
        self.bind_socket(made, index, socket);
        if let Some(backlog) = socket.listening {
            self.call(libc::SYS_listen, [made.into(), u64::from(backlog).into()]);
        }
        if socket.family != libc::AF_UNIX {
            self.connect(made, socket);
        }
        self.later_flags(made, flags);
        made
    }

    /// Tells a datagram socket whom it sends to.
    fn connect(&mut self, made: i32, socket: &Socket) {
        if let Some(peer) = &socket.peer {
            let place = self.arena.data(peer, 8);
            self.call(libc::SYS_connect, [made.into(), place.into(), (peer.len() as u64).into()]);
        }
    }

    /// What sockets get when all of them are there: what waits at them, peers among them, and what would be in the way of these.
    pub(super) fn complete_sockets(&mut self) {
        let image = self.image;
        self.leave_crowds();
        let number = |index: usize| image.files[index].numbers.first().map_or(-1, |(number, _)| *number);
        let socket = |index: usize| match &image.files[index].kind {
            FileKind::Socket(socket) => Some(socket),
            _ => None,
        };
        for index in unix_sockets(image) {
            let Some(socket) = socket(index) else { continue };
            let queue = image.added.socket(index).map_or(&[][..], |state| &state.queue);
            // One that has a peer takes nothing from others, and of its peer it takes more than of others (`net.unix.max_dgram_qlen`).
            let of_others = queue.iter().rposition(|message| Some(&message.from) != socket.peer.as_ref());
            let (before, after) = queue.split_at(of_others.map_or(0, |last| last + 1));
            self.send_all(before, socket);
            self.connect(number(index), socket);
            self.send_all(after, socket);
        }
        self.join_pairs();
        for (index, state) in &image.added.sockets {
            // A filter would judge what has not been sent yet.
            if !self.is_late(*index) {
                self.complete_socket(number(*index), state);
            }
        }
    }

    pub(super) fn complete_socket(&mut self, socket: i32, state: &AddedSocket) {
        const MCAST_JOIN_GROUP: i32 = 42;
        const MCAST_MSFILTER: i32 = 48;
        // Of a struct group_filter: its beginning is a struct group_req, behind which mode (0: all but these) and number of sources follow.
        const GROUP_REQ_BYTES: usize = 136;
        const GROUP_FILTER_BYTES: usize = 144;
        for group in &state.groups {
            let family = i32::from(u16::from_ne_bytes([group[8], group[9]]));
            let level = if family == libc::AF_INET6 { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
            self.option(socket, level, MCAST_JOIN_GROUP, &group[..GROUP_REQ_BYTES], Check::Success);
            if group[GROUP_REQ_BYTES..GROUP_FILTER_BYTES].iter().any(|byte| *byte != 0) {
                self.option(socket, level, MCAST_MSFILTER, group, Check::Success);
            }
        }
        if !state.filter.is_empty() {
            let program = self.arena.words(&state.filter);
            // struct sock_fprog
            let program = [state.filter.len() as u64, program].map(u64::to_ne_bytes).concat();
            self.option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program, Check::Success);
        }
        for (level, name, value) in state.options.iter().filter(|(level, name, _)| options::is_late(*level, *name)) {
            self.option(socket, *level, *name, value, Check::Success);
        }
        if state.shutdown != 0 {
            // RCV_SHUTDOWN 1, SEND_SHUTDOWN 2, as the kernel keeps them; `shutdown` takes one less. One without a peer is shut down as well, and
            // the kernel says ENOTCONN.
            let how = u64::from(state.shutdown - 1);
            self.script.call(libc::SYS_shutdown, [socket.into(), how.into()], Check::Ignore);
        }
    }

    fn send_all(&mut self, messages: &[Message], to: &Socket) {
        if let Some(address) = &to.address {
            messages.iter().for_each(|message| self.send(message, address));
        }
    }

    /// Sends a datagram to the unix socket at `address`, by the socket that sent it, or by one without a name.
    fn send(&mut self, message: &Message, address: &[u8]) {
        let image = self.image;
        let is_sender = |(index, _): &(usize, &crate::image::OpenFile)| {
            let own = match &image.files[*index].kind {
                FileKind::Socket(socket) => socket.address.as_ref(),
                _ => image.added.socket(*index).and_then(|state| state.name.as_ref()).map(|name| &name.address),
            };
            own == Some(&message.from)
        };
        let named = (message.from.len() > 2).then(|| image.files.iter().enumerate().find(is_sender)).flatten();
        match named.and_then(|(_, file)| file.numbers.first()) {
            Some((sender, _)) => self.send_by(*sender, message, address),
            None => {
                let kind = libc::SOCK_DGRAM | CLOSE_ON_EXEC;
                let sender = self.make(libc::SYS_socket, [libc::AF_UNIX.into(), kind.into(), 0u64.into()]);
                // What a new socket sends has to fit into the usual buffer.
                if message.bytes.len() > 100_000 {
                    let room = (message.bytes.len() as i32).to_ne_bytes();
                    self.option(sender, libc::SOL_SOCKET, libc::SO_SNDBUF, &room, Check::Success);
                }
                self.send_by(sender, message, address);
                self.close(sender);
            }
        }
    }

    fn send_by(&mut self, sender: i32, message: &Message, address: &[u8]) {
        let (bytes, to) = (self.arena.data(&message.bytes, 1), self.arena.data(address, 8));
        let length = message.bytes.len() as u64;
        // A full buffer is an error, not a wait.
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let to = [to.into(), (address.len() as u64).into()];
        let args = [sender.into(), bytes.into(), length.into(), flags.into(), to[0], to[1]];
        self.script.call(libc::SYS_sendto, args, Check::Equal(message.bytes.len() as i64));
    }

    /// A connection whose peer has reset it: made to a listener of our own on loopback, which closes it with no lingering.
    pub(super) fn reset_connection(&mut self, index: usize, family: i32, flags: i32) -> i32 {
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
        // Options that cannot be set any more are lost with the connection.
        self.options(made, index, Check::Ignore);
        self.later_flags(made, flags);
        made
    }
}
