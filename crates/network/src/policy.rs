//! Bounds of policies, and what they mean for names.

use std::{
    net::{IpAddr, UdpSocket},
    sync::Arc,
};

use ipnet::Ipv4Net;
use model::NetworkPolicy;

use crate::{error::Error, ranges::Ranges};

/// Most networks that a policy allows, and most that it denies.
pub const ENTRIES_MAX: usize = 1_000;
/// Most DNS servers of a policy.
pub const SERVERS_MAX: usize = 4;

/// What a policy means for DNS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Nothing can be reached: no name is of any use, but could carry something out.
    pub(crate) nothing: bool,
    /// Its servers; empty: the node's.
    pub(crate) dns: Arc<[IpAddr]>,
}

impl Reach {
    pub(crate) fn of(policy: &NetworkPolicy, closed: &Ranges) -> Self {
        let denied = if policy.closed { vec![Ipv4Net::default()] } else { policy.deny.clone() };
        let left = Ranges::of([&Ipv4Net::default()]).without(&Ranges::of(&denied)).with(&Ranges::of(&policy.allow));
        Self { nothing: left.without(closed).is_empty(), dns: policy.dns.clone().into() }
    }
}

/// Fails if a policy is too long, or names servers that are not for sandboxes: the node asks them, and could reach more than they may.
pub(crate) fn check(policy: &NetworkPolicy, closed: &Ranges) -> Result<(), Error> {
    if policy.allow.len().max(policy.deny.len()) > ENTRIES_MAX {
        return Err(Error::TooLong(ENTRIES_MAX));
    }
    if policy.dns.len() > SERVERS_MAX {
        return Err(Error::TooManyServers(SERVERS_MAX));
    }
    match policy.dns.iter().find(|server| is_closed(**server, closed)) {
        Some(server) => Err(Error::ClosedServer(*server)),
        None => Ok(()),
    }
}

fn is_closed(server: IpAddr, closed: &Ranges) -> bool {
    match server {
        IpAddr::V4(address) => closed.contains(address) || is_own(server),
        IpAddr::V6(_) => true,
    }
}

/// Whether it is an address of the host: such can be bound to.
pub(crate) fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<Ipv4Net> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn names_are_of_no_use_where_nothing_is_reached() {
        let closed = Ranges::of(&nets(&["10.0.0.0/8"]));
        let nothing = |policy: NetworkPolicy| Reach::of(&policy, &closed).nothing;
        let open = NetworkPolicy::default();
        assert!(!nothing(open.clone()) && nothing(NetworkPolicy { closed: true, ..open.clone() }));
        assert!(nothing(NetworkPolicy { deny: nets(&["0.0.0.0/1", "128.0.0.0/1"]), ..open.clone() }));
        assert!(nothing(NetworkPolicy { closed: true, allow: nets(&["10.1.0.0/16"]), ..open.clone() }));
        assert!(!nothing(NetworkPolicy { closed: true, allow: nets(&["1.1.1.1/32"]), ..open }));
    }

    #[test]
    fn servers_of_the_host_or_of_closed_networks_are_refused() {
        let closed = Ranges::of(&nets(&["10.0.0.0/8"]));
        let with = |dns: &[&str]| {
            let dns = dns.iter().map(|server| server.parse().unwrap()).collect();
            check(&NetworkPolicy { dns, ..NetworkPolicy::default() }, &closed)
        };
        assert!(with(&["203.0.113.1"]).is_ok());
        for wrong in ["10.0.0.1", "127.0.0.1", "::1", "2001:db8::1"] {
            assert!(matches!(with(&[wrong]), Err(Error::ClosedServer(_))), "{wrong}");
        }
        assert!(matches!(with(&["1.1.1.1"; 5]), Err(Error::TooManyServers(4))));
    }
}
