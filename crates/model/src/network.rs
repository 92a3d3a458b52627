//! What sandboxes may reach.

mod destination;
mod domain;
mod header;

use std::net::IpAddr;

pub use self::{
    destination::{Addresses, Destination},
    domain::{Domain, DomainName},
    header::{Header, HeaderRule, Hidden},
};

/// What one sandbox may reach. What its node keeps closed stays closed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// Nothing is reached but what is allowed by name. If nothing is, there is no DNS either.
    pub closed: bool,
    /// Reached, whatever is denied.
    pub allow: Vec<Addresses>,
    /// Not reached.
    pub deny: Vec<Addresses>,
    /// Where its DNS queries go; empty: to the node's own servers.
    pub dns: Vec<IpAddr>,
    /// Names that are reached by TLS and HTTP, whatever is denied.
    pub domains: Vec<Domain>,
    /// What its HTTPS requests get on their way. They allow nothing.
    pub rules: Vec<HeaderRule>,
    /// Most bytes a second that it sends, and that it gets.
    pub bandwidth: Option<u64>,
}

impl NetworkPolicy {
    /// Whether it is what every sandbox has.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether no address is reached but those that are allowed.
    pub fn denies_all(&self) -> bool {
        let is_all = |denied: &Addresses| denied.net.prefix_len() == 0 && denied.port.is_none();
        self.closed || self.deny.iter().any(is_all)
    }

    /// Whether nothing can be reached.
    pub fn reaches_nothing(&self) -> bool {
        self.allow.is_empty() && self.domains.is_empty() && self.denies_all()
    }

    /// Puts what is to be reached where it belongs.
    pub fn add_allowed(&mut self, destination: Destination) {
        match destination {
            Destination::Addresses(addresses) => self.allow.push(addresses),
            Destination::Domain(domain) => self.domains.push(domain),
        }
    }

    /// All that is to be reached.
    pub fn allowed(&self) -> impl Iterator<Item = Destination> + '_ {
        let addresses = self.allow.iter().copied().map(Destination::Addresses);
        addresses.chain(self.domains.iter().cloned().map(Destination::Domain))
    }
}
