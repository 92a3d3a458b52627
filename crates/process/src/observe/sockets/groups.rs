//! Memberships of multicast groups. The kernel lists the groups of a network namespace, and tells whether a socket is a member of one.

use std::os::fd::BorrowedFd;
use sys::sockets;

use crate::error::{Context, Error};

/// A multicast group that is heard on an interface.
#[derive(Debug)]
pub(super) struct Group {
    level: i32,
    interface: u32,
    /// As a `sockaddr`.
    address: Vec<u8>,
}

/// All groups of the network namespace of process `pid`.
pub(super) fn list(pid: i32) -> Result<Vec<Group>, Error> {
    let mut groups = Vec::new();
    // A kernel may be without either.
    for (file, parse) in [("igmp", ipv4 as fn(&str) -> Vec<Group>), ("igmp6", ipv6)] {
        match procfs::read(&format!("/proc/{pid}/net/{file}")) {
            Err(error) if error.is_gone() => {}
            text => groups.extend(parse(&String::from_utf8_lossy(&text?))),
        }
    }
    Ok(groups)
}

/// Below each interface ("1\tlo        :     1      V3") its groups, as words in the order of the network ("\t\t\t\t010000E0     1 0:00000000\t\t0").
fn ipv4(text: &str) -> Vec<Group> {
    let mut interface = 0;
    let mut groups = Vec::new();
    for line in text.lines().skip(1) {
        let Some(first) = line.split_ascii_whitespace().next() else { continue };
        if !line.starts_with(['\t', ' ']) {
            interface = first.parse().unwrap_or(0);
        } else if let Ok(group) = u32::from_str_radix(first, 16) {
            let mut address = vec![0; 16];
            address[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            address[4..8].copy_from_slice(&group.to_ne_bytes());
            groups.push(Group { level: libc::IPPROTO_IP, interface, address });
        }
    }
    groups
}

/// "1    lo              ff020000000000000000000000000001     1 0000000C 0"
fn ipv6(text: &str) -> Vec<Group> {
    let group = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let interface = words.next()?.parse().ok()?;
        let group = u128::from_str_radix(words.nth(1)?, 16).ok()?;
        let mut address = vec![0; 28];
        address[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        address[8..24].copy_from_slice(&group.to_be_bytes());
        Some(Group { level: libc::IPPROTO_IPV6, interface, address })
    };
    text.lines().filter_map(group).collect()
}

/// The groups whose member a socket of this family may be, and in which way.
pub(super) fn memberships(
    pid: i32,
    socket: BorrowedFd<'_>,
    family: i32,
    groups: &[Group],
) -> Result<Vec<Vec<u8>>, Error> {
    let mut found = Vec::new();
    for group in groups.iter().filter(|group| family == libc::AF_INET6 || group.level == libc::IPPROTO_IP) {
        let filter = sockets::group_filter(socket, group.level, group.interface, &group.address);
        found.extend(filter.of("read multicast groups", pid)?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, UdpSocket},
        os::fd::AsFd,
    };

    use super::*;

    #[test]
    fn a_membership_is_found_by_the_list_of_groups() {
        let pid = std::process::id() as i32;
        let [member, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let group = Ipv4Addr::new(239, 9, 8, 7);
        member.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).unwrap();
        let groups = list(pid).unwrap();
        let of = |socket: &UdpSocket| memberships(pid, socket.as_fd(), libc::AF_INET, &groups).unwrap();
        let found = of(&member);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0][12..16], group.octets());
        assert_eq!(of(&other), Vec::<Vec<u8>>::new());
    }
}
