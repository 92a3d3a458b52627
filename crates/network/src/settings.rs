//! What is the same for all sandboxes of a node.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::{error::Error, ranges::Ranges};

/// The address that every sandbox has inside.
pub const INSIDE: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 2);

/// Where its packets go, and where its DNS server is.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 1);

/// Length of the prefix of both.
pub(crate) const INSIDE_PREFIX: u8 = 30;

/// Begins the names of the router's links to sandboxes; their numbers follow.
pub(crate) const LINK_PREFIX: &str = "s";

/// The link of a sandbox, inside.
pub const LINK: &str = "eth0";

/// Ranges that a node chooses one of: in those for measurements of networks, which routers of the internet drop (RFC 2544).
pub(crate) const CHOICE: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15);

/// Length of the prefix of one: 4,091 sandboxes.
pub(crate) const CHOSEN_PREFIX: u8 = 20;

/// What is no part of the internet (RFC 6890), multicast included, and the address at which Azure has settings of machines.
#[rustfmt::skip]
const PRIVATE: [([u8; 4], u8); 16] = [
    ([0, 0, 0, 0], 8), ([10, 0, 0, 0], 8), ([100, 64, 0, 0], 10), ([127, 0, 0, 0], 8), ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12), ([192, 0, 0, 0], 24), ([192, 0, 2, 0], 24), ([192, 88, 99, 0], 24), ([192, 168, 0, 0], 16),
    ([168, 63, 129, 16], 32), ([198, 18, 0, 0], 15), ([198, 51, 100, 0], 24), ([203, 0, 113, 0], 24), ([224, 0, 0, 0], 4), ([240, 0, 0, 0], 4),
];

/// What an operator chooses.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The addresses of sandboxes outside; none: a free range is chosen.
    pub range: Option<Ipv4Net>,
    /// Private networks that sandboxes may reach.
    pub allow: Vec<Ipv4Net>,
    /// Others that they may not reach.
    pub deny: Vec<Ipv4Net>,
}

impl Settings {
    /// What no policy of a sandbox opens.
    pub(crate) fn closed(&self, own: Ipv4Net) -> Ranges {
        let private = PRIVATE.map(|(address, prefix)| Ipv4Net::new_assert(Ipv4Addr::from_octets(address), prefix));
        let private = Ranges::of(&private).without(&Ranges::of(&self.allow));
        // Whatever is allowed: the node's own addresses, and what is denied by name.
        private.with(&Ranges::of(self.deny.iter().chain([&own])))
    }
}

/// The range as it is used: neither so small that a node is of no use, nor so large that the kernel's tables are.
pub(crate) fn checked(range: Ipv4Net) -> Result<Ipv4Net, Error> {
    match range.prefix_len() {
        16..=24 => Ok(range.trunc()),
        _ => Err(Error::Range(range)),
    }
}

/// Of a range: the address of the host's end, and of the router's.
pub(crate) fn ends(range: Ipv4Net) -> (Ipv4Addr, Ipv4Addr) {
    (address(range, 1), address(range, 2))
}

/// The addresses of sandboxes: numbers of them in the range.
pub(crate) fn numbers(range: Ipv4Net) -> std::ops::Range<u32> {
    // Beside the two ends, and but for the last.
    4..(1 << (32 - range.prefix_len())) - 1
}

pub(crate) fn address(range: Ipv4Net, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(range.network()) + number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_room_for_both_ends_and_sandboxes() {
        let range: Ipv4Net = "198.18.16.0/20".parse().unwrap();
        assert_eq!(ends(range), (Ipv4Addr::new(198, 18, 16, 1), Ipv4Addr::new(198, 18, 16, 2)));
        assert_eq!((numbers(range).len(), address(range, 4)), (4_091, Ipv4Addr::new(198, 18, 16, 4)));
        assert!(checked("10.0.0.0/25".parse().unwrap()).is_err() && checked("10.0.0.0/15".parse().unwrap()).is_err());
        assert_eq!(checked("10.1.2.3/16".parse().unwrap()).unwrap(), "10.1.0.0/16".parse().unwrap());
    }

    #[test]
    fn own_and_denied_addresses_are_closed_whatever_is_allowed() {
        let own: Ipv4Net = "10.9.0.0/20".parse().unwrap();
        let settings = Settings {
            range: None,
            allow: vec!["10.0.0.0/8".parse().unwrap()],
            deny: vec!["1.1.1.1/32".parse().unwrap()],
        };
        let closed: Vec<_> = settings.closed(own).elements().map(|(address, _)| address.to_string()).collect();
        assert!(closed.contains(&"10.9.0.0".to_owned()) && closed.contains(&"1.1.1.1".to_owned()));
        assert!(!closed.contains(&"10.0.0.0".to_owned()) && closed.contains(&"192.168.0.0".to_owned()));
    }
}
