//! Where the node itself connects to when a user has named the place: to what sandboxes may reach, and nothing else.
//!
//! A user must not use the node to get where a sandbox cannot get. The address is judged that is connected to, so a name that means another address a
//! moment later gains nothing.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use ipnet::Ipv4Net;

use crate::{policy::is_own, ranges::Ranges, settings::Settings};

/// What may be connected to. IPv4 only, as with sandboxes.
#[derive(Debug, Clone)]
pub struct Outside {
    closed: Ranges,
    /// Addresses that the operator has allowed one by one: they may be the node's own.
    named: Vec<Ipv4Addr>,
}

/// An address, or a name that has no other one, is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{host} has the address {address}, and the node connects to no such address for its users")]
pub struct Denied {
    /// As it was asked for.
    pub host: String,
    /// What it means.
    pub address: IpAddr,
}

/// A name leads nowhere.
#[derive(Debug, thiserror::Error)]
pub enum Unresolved {
    /// To closed addresses only.
    #[error(transparent)]
    Denied(Denied),
    /// To none at all.
    #[error("{host} has no IPv4 address")]
    NoAddress {
        /// The name.
        host: String,
    },
    /// No server tells.
    #[error("the name {host} cannot be resolved")]
    Failed {
        /// The name.
        host: String,
        /// Why.
        source: io::Error,
    },
}

impl Outside {
    /// `own` are the addresses of the node's sandboxes, if they have any.
    pub fn of(settings: &Settings, own: Option<Ipv4Net>) -> Self {
        // Those that are allowed alone: networks are allowed for what else is in them.
        let alone = settings.allow.iter().filter(|net| net.prefix_len() == 32);
        let closed = settings.closed(own.unwrap_or(crate::settings::CHOICE));
        Self { closed, named: alone.map(Ipv4Net::addr).collect() }
    }

    /// Whether `host`, which has this address, may be connected to.
    pub fn check(&self, host: &str, address: IpAddr) -> Result<(), Denied> {
        let is_open = match address {
            IpAddr::V4(address) if self.closed.contains(address) => false,
            IpAddr::V4(address) => self.named.contains(&address) || !is_own(address.into()),
            IpAddr::V6(_) => false,
        };
        if is_open { Ok(()) } else { Err(Denied { host: host.to_owned(), address }) }
    }

    /// The addresses of a name that may be connected to: one at least.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Unresolved> {
        let found = tokio::net::lookup_host((host, port)).await;
        let found = found.map_err(|source| Unresolved::Failed { host: host.to_owned(), source })?;
        let (mut open, mut denied) = (Vec::new(), None);
        for address in found.filter(SocketAddr::is_ipv4) {
            match self.check(host, address.ip()) {
                Ok(()) => open.push(address),
                Err(error) => denied = denied.or(Some(error)),
            }
        }
        match denied {
            _ if !open.is_empty() => Ok(open),
            Some(denied) => Err(Unresolved::Denied(denied)),
            None => Err(Unresolved::NoAddress { host: host.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outside(allow: &[&str], deny: &[&str]) -> Outside {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Outside::of(&Settings { range: None, allow: nets(allow), deny: nets(deny) }, "10.9.0.0/20".parse().ok())
    }

    fn is_open(outside: &Outside, address: &str) -> bool {
        outside.check("name", address.parse().unwrap()).is_ok()
    }

    #[test]
    fn private_own_and_ipv6_addresses_are_closed() {
        let outside = outside(&[], &[]);
        for address in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "0.0.0.0", "198.18.0.4", "::1", "2606:4700::1"] {
            assert!(!is_open(&outside, address), "{address}");
        }
        assert!(is_open(&outside, "1.1.1.1"));
    }

    #[test]
    fn the_operator_opens_networks_and_own_addresses_one_by_one() {
        let network = outside(&["10.0.0.0/8", "127.0.0.0/8"], &["10.1.0.0/16"]);
        assert!(is_open(&network, "10.200.0.1") && !is_open(&network, "10.1.0.1") && !is_open(&network, "10.9.0.4"));
        assert!(!is_open(&network, "127.0.0.1"), "it is the node's own");
        assert!(is_open(&outside(&["127.0.0.1/32"], &[]), "127.0.0.1"));
        assert!(!is_open(&outside(&["127.0.0.1/32"], &["127.0.0.0/8"]), "127.0.0.1"));
    }

    #[tokio::test]
    async fn names_of_closed_addresses_are_refused_with_the_address() {
        let denied = outside(&[], &[]).resolve("localhost", 443).await.unwrap_err();
        assert!(denied.to_string().contains("localhost has the address 127."), "{denied}");
        let open = outside(&["127.0.0.1/32"], &[]).resolve("localhost", 443).await.unwrap();
        assert_eq!(open[0], "127.0.0.1:443".parse().unwrap());
    }
}
