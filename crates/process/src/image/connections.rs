//! TCP connections whose two ends are in the program.

use serde::{Deserialize, Serialize};
use sys::tcp::{self, WINDOW_BYTES};

/// Both ends of a connection. The second may be closed, and what it has sent received: then no file has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Connection {
    pub(crate) ends: [ConnectionEnd; 2],
}

/// One end, as a copy makes it: nothing that it has sent is unacknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConnectionEnd {
    /// Its own address as a `sockaddr`, and that of its peer.
    pub(crate) local: Vec<u8>,
    pub(crate) peer: Vec<u8>,
    pub(crate) segment: u32,
    pub(crate) window_scale: Option<(u8, u8)>,
    pub(crate) selective: bool,
    pub(crate) timestamp: Option<u32>,
    /// Number of the first byte that waits here to be read.
    pub(crate) received_from: u32,
    #[serde(with = "serde_bytes")]
    pub(crate) received: Vec<u8>,
    /// Number of the first byte that the other end has not received.
    pub(crate) sent_from: u32,
    /// What the other end has not received.
    #[serde(with = "serde_bytes")]
    pub(crate) sent: Vec<u8>,
    pub(crate) window: [u8; WINDOW_BYTES],
    /// It sends no more.
    pub(crate) has_ended: bool,
}

impl Connection {
    /// Whether its ends have each other's ports, and addresses of the lengths that such addresses have.
    pub(crate) fn is_sound(&self) -> bool {
        let [first, second] = &self.ends;
        let is_address = |address: &[u8]| match address {
            [low, high, ..] => match i32::from(u16::from_ne_bytes([*low, *high])) {
                libc::AF_INET => address.len() == size_of::<libc::sockaddr_in>(),
                libc::AF_INET6 => address.len() == size_of::<libc::sockaddr_in6>(),
                _ => false,
            },
            _ => false,
        };
        [first, second].iter().all(|end| is_address(&end.local) && is_address(&end.peer))
            && first.local[2..4] == second.peer[2..4]
            && second.local[2..4] == first.peer[2..4]
    }
}

/// States in which an end has said that it sends no more: FIN_WAIT1, FIN_WAIT2, LAST_ACK, CLOSING.
const HAS_ENDED: [u8; 4] = [4, 5, 9, 11];
/// States in which it has heard that: CLOSE_WAIT, LAST_ACK, CLOSING.
const HAS_HEARD: [u8; 3] = [8, 9, 11];

/// Whether a connection in this state of `struct tcp_info` can be made again.
pub(crate) fn goes_on(state: u8) -> bool {
    const ESTABLISHED: u8 = 1;
    state == ESTABLISHED || HAS_ENDED.contains(&state) || HAS_HEARD.contains(&state)
}

/// One end from what was read of it. `received_end`: of the other end.
pub(crate) fn end_of(read: tcp::End, local: Vec<u8>, peer: Vec<u8>, others_received_end: u32) -> ConnectionEnd {
    // The end of what an end sends takes a number, too.
    let (has_ended, has_heard) = (HAS_ENDED.contains(&read.state), HAS_HEARD.contains(&read.state));
    let received_end = read.received_end.wrapping_sub(u32::from(has_heard));
    let sent_end = read.sent_end.wrapping_sub(u32::from(has_ended));
    let missing = sent_end.wrapping_sub(others_received_end) as usize;
    let missing = if missing > read.sent.len() { 0 } else { missing };
    ConnectionEnd {
        local,
        peer,
        segment: read.segment,
        window_scale: read.window_scale,
        selective: read.selective,
        timestamp: read.timestamp,
        received_from: received_end.wrapping_sub(read.received.len() as u32),
        received: read.received,
        sent_from: sent_end.wrapping_sub(missing as u32),
        sent: read.sent[read.sent.len() - missing..].to_vec(),
        window: window_before_end(read.window, has_heard),
        has_ended,
    }
}

/// A connection whose other end was closed when all that it has sent had been received. None for another one, which is reset in a copy: what a closed
/// end has still to send can be read by nothing.
pub(crate) fn with_closed_end(read: tcp::End, local: Vec<u8>, peer: Vec<u8>) -> Option<Connection> {
    const CLOSE_WAIT: u8 = 8;
    if read.state != CLOSE_WAIT || !read.sent.is_empty() {
        return None;
    }
    let sent_end = read.sent_end;
    let end = end_of(read, local, peer, sent_end);
    let [_, room_there, most_there, room, _] = words(end.window);
    let closed = ConnectionEnd {
        local: end.peer.clone(),
        peer: end.local.clone(),
        window_scale: end.window_scale.map(|(sent, received)| (received, sent)),
        received_from: sent_end,
        received: Vec::new(),
        sent_from: end.received_from.wrapping_add(end.received.len() as u32),
        sent: Vec::new(),
        window: bytes([sent_end, room, room, room_there.min(most_there), sent_end]),
        has_ended: true,
        ..end
    };
    Some(Connection { ends: [end, closed] })
}

/// The window before the end of what the other end sends was heard, if it was: it is sent again.
fn window_before_end(window: [u8; WINDOW_BYTES], has_heard: bool) -> [u8; WINDOW_BYTES] {
    let mut words = words(window);
    if has_heard {
        let [.., room, heard_to] = &mut words;
        (*room, *heard_to) = (room.wrapping_add(1), heard_to.wrapping_sub(1));
    }
    bytes(words)
}

/// A `struct tcp_repair_window`: where the other end's window was told last, what that is and the most that it was, and the same two of what is
/// received.
type Window = [u32; WINDOW_BYTES / 4];

fn words(window: [u8; WINDOW_BYTES]) -> Window {
    std::array::from_fn(|n| u32::from_ne_bytes(std::array::from_fn(|byte| window[n * 4 + byte])))
}

fn bytes(words: Window) -> [u8; WINDOW_BYTES] {
    std::array::from_fn(|byte| words[byte / 4].to_ne_bytes()[byte % 4])
}
