//! The state of TCP connections, read without changing them (`TCP_REPAIR`).

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use crate::sockets::{option, option_value, set_option};

/// Options of [`libc::IPPROTO_TCP`] that libc does not name.
pub mod repair {
    /// `TCP_REPAIR`
    pub const MODE: i32 = 19;
    /// `TCP_REPAIR_QUEUE`
    pub const QUEUE: i32 = 20;
    /// `TCP_QUEUE_SEQ`
    pub const SEQUENCE: i32 = 21;
    /// `TCP_REPAIR_OPTIONS`
    pub const OPTIONS: i32 = 22;
    /// `TCP_TIMESTAMP`
    pub const TIMESTAMP: i32 = 24;
    /// `TCP_REPAIR_WINDOW`
    pub const WINDOW: i32 = 29;
    /// Values of [`QUEUE`]: none, what was received, what was sent.
    pub const NO_QUEUE: i32 = 0;
    /// See [`NO_QUEUE`].
    pub const RECEIVED: i32 = 1;
    /// See [`NO_QUEUE`].
    pub const SENT: i32 = 2;
}

/// Bytes of `struct tcp_repair_window`.
pub const WINDOW_BYTES: usize = 20;
/// Most bytes that are read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// One end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// As in `struct tcp_info`.
    pub state: u8,
    /// Largest segment that it sends.
    pub segment: u32,
    /// By how many bits the windows of what it sends and receives are shifted, if both ends do that.
    pub window_scale: Option<(u8, u8)>,
    /// Whether both ends acknowledge selectively.
    pub selective: bool,
    /// What its clock for timestamps shows, if both ends use them.
    pub timestamp: Option<u32>,
    /// Number of the byte behind the last one that was received.
    pub received_end: u32,
    /// Bytes that were received and not read.
    pub received: Vec<u8>,
    /// Number of the byte behind the last one that was sent.
    pub sent_end: u32,
    /// Bytes that were sent and are not acknowledged.
    pub sent: Vec<u8>,
    /// `struct tcp_repair_window`
    pub window: [u8; WINDOW_BYTES],
}

/// A connection that stands still until this is dropped: it sends nothing.
#[derive(Debug)]
pub struct Repair<'a> {
    socket: BorrowedFd<'a>,
    /// `SO_REUSEADDR`, which the kernel sets and clears with the mode.
    reuses: i32,
}

impl<'a> Repair<'a> {
    /// Needs `CAP_NET_ADMIN` in the user namespace of its network namespace.
    pub fn begin(socket: BorrowedFd<'a>) -> io::Result<Self> {
        let reuses = option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
        set_option(socket, libc::IPPROTO_TCP, repair::MODE, 1)?;
        Ok(Self { socket, reuses })
    }

    /// Reads it. Of each queue no more than `max` bytes are read, and one more to tell.
    pub fn read(&self, max: usize) -> io::Result<End> {
        const SELECTIVE: u8 = 2;
        const TIMESTAMPS: u8 = 1;
        const SCALED: u8 = 4;
        let mut info = [0u8; 104];
        option_value(self.socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
        let [state, options, scales] = [info[0], info[5], info[6]];
        let segment = u32::from_ne_bytes([info[16], info[17], info[18], info[19]]);
        let timestamp = option(self.socket, libc::IPPROTO_TCP, repair::TIMESTAMP)? as u32;
        let mut window = [0; WINDOW_BYTES];
        option_value(self.socket, libc::IPPROTO_TCP, repair::WINDOW, &mut window)?;
        let (received_end, received) = self.queue(repair::RECEIVED, max)?;
        let (sent_end, sent) = self.queue(repair::SENT, max)?;
        Ok(End {
            state,
            segment,
            window_scale: (options & SCALED != 0).then_some((scales & 15, scales >> 4)),
            selective: options & SELECTIVE != 0,
            timestamp: (options & TIMESTAMPS != 0).then_some(timestamp),
            received_end,
            received,
            sent_end,
            sent,
            window,
        })
    }

    fn queue(&self, queue: i32, max: usize) -> io::Result<(u32, Vec<u8>)> {
        set_option(self.socket, libc::IPPROTO_TCP, repair::QUEUE, queue)?;
        let read = self.peek(max);
        let end = option(self.socket, libc::IPPROTO_TCP, repair::SEQUENCE);
        set_option(self.socket, libc::IPPROTO_TCP, repair::QUEUE, repair::NO_QUEUE)?;
        Ok((end? as u32, read?))
    }

    fn peek(&self, max: usize) -> io::Result<Vec<u8>> {
        let mut room = PIECE_BYTES.min(max + 1);
        loop {
            let mut bytes = vec![0u8; room];
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            // SAFETY: `bytes` has `room` bytes.
            let read = unsafe { libc::recv(self.socket.as_raw_fd(), bytes.as_mut_ptr().cast(), room, flags) };
            if read == -1 {
                let error = io::Error::last_os_error();
                return if error.kind() == io::ErrorKind::WouldBlock { Ok(Vec::new()) } else { Err(error) };
            }
            if (read as usize) < room || room > max {
                bytes.truncate(read as usize);
                return Ok(bytes);
            }
            room = (room * 4).min(max + 1);
        }
    }
}

impl Drop for Repair<'_> {
    fn drop(&mut self) {
        // Without a probe of the window, which the other end would answer. It fails only for a socket that is in no such mode.
        const OFF_IN_SILENCE: i32 = -1;
        let _ = set_option(self.socket, libc::IPPROTO_TCP, repair::MODE, OFF_IN_SILENCE);
        let _ = set_option(self.socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, self.reuses);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        os::fd::AsFd,
    };

    use super::*;

    #[test]
    fn a_connection_is_read_and_goes_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        one.write_all(&[7; 100_000]).unwrap();
        let mut some = vec![0; 40_000];
        other.read_exact(&mut some).unwrap();
        let (first, second) = {
            let (first, second) = (Repair::begin(one.as_fd()).unwrap(), Repair::begin(other.as_fd()).unwrap());
            (first.read(1 << 20).unwrap(), second.read(1 << 20).unwrap())
        };
        let on_its_way = first.sent_end.wrapping_sub(second.received_end) as usize;
        assert_eq!(second.received.len() + on_its_way, 60_000);
        assert!(first.sent.len() >= on_its_way && second.received.iter().all(|byte| *byte == 7));
        assert_eq!((first.state, second.state, second.sent.len()), (1, 1, 0));
        let reuses = |socket: BorrowedFd<'_>| option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR).unwrap();
        // A listener of the standard library has it, and what it accepts.
        assert_eq!((reuses(one.as_fd()), reuses(other.as_fd())), (0, 1));
        one.write_all(b"more").unwrap();
        let mut rest = vec![0; 60_004];
        other.read_exact(&mut rest).unwrap();
        assert_eq!(&rest[60_000..], b"more");
    }
}
