//! Netlink sockets (netlink(7)), by which programs ask for interfaces and routes and are told of changes.
//!
//! What waits at one came from the kernel, which sends it to no other socket. A program that is told of changes may lose some at any time; of an answer
//! to a question it needs all.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::sockets;

use crate::image::SocketOption;

const SOL_NETLINK: i32 = 270;
const ADD_MEMBERSHIP: i32 = 1;
const LIST_MEMBERSHIPS: i32 = 9;
/// Groups that the address names.
const GROUPS_OF_ADDRESS: usize = 32;
/// Bytes for the groups of a socket: far more than any protocol has.
const GROUPS_BYTES: usize = 1024;

/// What a netlink socket is beside its options.
pub(super) struct Netlink {
    /// Its port and its first groups, if it has any.
    pub(super) address: Option<Vec<u8>>,
    /// Whom it sends to, if it was told that.
    pub(super) peer: Option<Vec<u8>>,
    /// Its other groups, as options that join them.
    pub(super) groups: Vec<SocketOption>,
    /// Messages wait to be read.
    pub(super) has_messages: bool,
}

impl Netlink {
    pub(super) fn read(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let named = |address: Vec<u8>| {
            address.get(4..).is_some_and(|rest| rest.iter().any(|byte| *byte != 0)).then_some(address)
        };
        let mut groups = [0; GROUPS_BYTES];
        let length = sockets::option_value(socket, SOL_NETLINK, LIST_MEMBERSHIPS, &mut groups)?.min(GROUPS_BYTES);
        let is_member = |group: &usize| groups[group / 8] >> (group % 8) & 1 == 1;
        let others = (GROUPS_OF_ADDRESS..length * 8).filter(is_member);
        let join = |group: usize| (SOL_NETLINK, ADD_MEMBERSHIP, (group as u32 + 1).to_ne_bytes().to_vec());
        let mut asked = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
        poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        Ok(Self {
            address: named(sockets::local_address(socket)?),
            peer: named(sockets::peer_address(socket)?),
            groups: others.map(join).collect(),
            has_messages: asked[0].revents().contains(PollFlags::IN),
        })
    }
}
