//! TCP connections between processes of the program, or of one with itself.
//!
//! Both ends are made in repair mode (`TCP_REPAIR`), in which a socket takes addresses, sequence numbers and what waits in it without a word to
//! its peer. Each end begins behind what the other one has received, so that nothing waits to be acknowledged. When both ends are there, they send
//! again what was on its way.

use sys::tcp::repair;

use super::{Builder, CLOSE_ON_EXEC, Made};
use crate::{
    image::{Connection, ConnectionEnd, End, FileKind, OpenFile},
    script::Check,
};

const TCP: i32 = libc::IPPROTO_TCP;
/// Bytes that a socket takes at a time in repair mode: it has room for 17 pages (`tcp_send_rcvq` in net/ipv4/tcp_input.c).
const PIECE_BYTES: usize = 64 << 10;
/// `SO_BUF_LOCK`
const BUFFER_LOCK: i32 = 72;
/// A new socket takes as much.
const USUAL_BYTES: usize = 16 << 10;

impl Builder<'_> {
    /// Makes them. Needs `CAP_NET_ADMIN`, and `CAP_NET_BIND_SERVICE` for low ports.
    pub(in crate::start) fn connect_all(mut self) -> Made {
        let image = self.image;
        for (index, connection) in image.connections.iter().enumerate() {
            self.both_ends(index, connection);
        }
        self.made()
    }

    /// Gives them their options, without any such right. An option that this process may not set is lost.
    pub(in crate::start) fn set_connections(mut self) -> Made {
        let image = self.image;
        for (index, file) in image.files.iter().enumerate() {
            if let (FileKind::Connection { .. }, Some((number, _))) = (&file.kind, file.numbers.first()) {
                self.options(*number, index, Check::Ignore);
                self.later_flags(*number, file.flags);
            }
        }
        self.made()
    }

    fn both_ends(&mut self, index: usize, connection: &Connection) {
        let image = self.image;
        let file = |wanted: End| {
            let is_it = |file: &OpenFile| match file.kind {
                FileKind::Connection { connection, end } => (connection, end) == (index, wanted),
                _ => false,
            };
            image.files.iter().position(is_it)
        };
        let Some(first) = file(End::First) else { return };
        let made = [&connection.ends[0], &connection.ends[1]].map(|end| self.repaired(end));
        for socket in made {
            self.repair(socket, repair::MODE, 0);
        }
        for (socket, end) in made.into_iter().zip(&connection.ends) {
            self.send_missing(socket, end);
        }
        match file(End::Second) {
            Some(second) => self.settle_pair(made, [&image.files[first], &image.files[second]]),
            None => {
                self.close(made[1]);
                self.settle(made[0], &image.files[first].numbers);
            }
        }
    }

    fn repair(&mut self, socket: i32, name: i32, value: i32) {
        self.option(socket, TCP, name, &value.to_ne_bytes(), Check::Success);
    }

    /// One end, still in repair mode.
    fn repaired(&mut self, end: &ConnectionEnd) -> i32 {
        let family = i32::from(u16::from_ne_bytes([end.local[0], end.local[1]]));
        let kind = libc::SOCK_STREAM | CLOSE_ON_EXEC;
        let socket = self.make(libc::SYS_socket, [family.into(), kind.into(), 0u64.into()]);
        self.repair(socket, repair::MODE, 1);
        for (queue, number) in [(repair::RECEIVED, end.received_from), (repair::SENT, end.sent_from)] {
            self.repair(socket, repair::QUEUE, queue);
            self.repair(socket, repair::SEQUENCE, number as i32);
        }
        for (nr, address) in [(libc::SYS_bind, &end.local), (libc::SYS_connect, &end.peer)] {
            let place = self.arena.data(address, 8);
            self.call(nr, [socket.into(), place.into(), (address.len() as u64).into()]);
        }
        self.negotiated(socket, end);
        self.buffer(socket, libc::SO_RCVBUF, end.received.len());
        self.repair(socket, repair::QUEUE, repair::RECEIVED);
        end.received.chunks(PIECE_BYTES).for_each(|piece| self.write_all(socket, piece));
        self.repair(socket, repair::QUEUE, repair::NO_QUEUE);
        self.option(socket, TCP, repair::WINDOW, &end.window, Check::Success);
        socket
    }

    /// What both ends agreed on when they were connected.
    fn negotiated(&mut self, socket: i32, end: &ConnectionEnd) {
        const SEGMENT: u32 = 2;
        const SCALE: u32 = 3;
        const SELECTIVE: u32 = 4;
        const TIMESTAMPS: u32 = 8;
        // struct tcp_repair_opt: code and value.
        let mut options = vec![(SEGMENT, end.segment)];
        options.extend(end.window_scale.map(|(sent, received)| (SCALE, u32::from(sent) | u32::from(received) << 16)));
        options.extend(end.selective.then_some((SELECTIVE, 0)));
        options.extend(end.timestamp.map(|_| (TIMESTAMPS, 0)));
        let bytes: Vec<u8> =
            options.iter().flat_map(|(code, value)| [code.to_ne_bytes(), value.to_ne_bytes()].concat()).collect();
        self.option(socket, TCP, repair::OPTIONS, &bytes, Check::Success);
        if let Some(timestamp) = end.timestamp {
            self.repair(socket, repair::TIMESTAMP, timestamp as i32);
        }
    }

    /// What was on its way, and the end of what it sends.
    fn send_missing(&mut self, socket: i32, end: &ConnectionEnd) {
        self.buffer(socket, libc::SO_SNDBUF, end.sent.len());
        if !end.sent.is_empty() {
            self.write_all(socket, &end.sent);
        }
        if end.has_ended {
            self.call(libc::SYS_shutdown, [socket.into(), libc::SHUT_WR.into()]);
        }
    }

    fn write_all(&mut self, socket: i32, bytes: &[u8]) {
        let place = self.arena.data(bytes, 1);
        // A full buffer is an error, not a wait.
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let args = [socket.into(), place.into(), (bytes.len() as u64).into(), flags.into(), 0u64.into(), 0u64.into()];
        self.script.call(libc::SYS_sendto, args, Check::Equal(bytes.len() as i64));
    }

    /// Room for so many bytes, as far as the host gives it (`net.core.rmem_max`, `wmem_max`). The size stays one that the kernel may change.
    fn buffer(&mut self, socket: i32, name: i32, bytes: usize) {
        if bytes > USUAL_BYTES {
            let room = (bytes as i32).saturating_mul(2);
            self.option(socket, libc::SOL_SOCKET, name, &room.to_ne_bytes(), Check::Success);
            self.option(socket, libc::SOL_SOCKET, BUFFER_LOCK, &0i32.to_ne_bytes(), Check::Success);
        }
    }
}
