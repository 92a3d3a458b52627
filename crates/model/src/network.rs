//! What sandboxes may reach.

use std::net::IpAddr;

use ipnet::Ipv4Net;

/// What one sandbox may reach. What its node keeps closed stays closed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// Nothing is reached but what is allowed by name. If nothing is, there is no DNS either.
    pub closed: bool,
    /// Reached, whatever is denied.
    pub allow: Vec<Ipv4Net>,
    /// Not reached.
    pub deny: Vec<Ipv4Net>,
    /// Where its DNS queries go; empty: to the node's own servers.
    pub dns: Vec<IpAddr>,
}

impl NetworkPolicy {
    /// Whether it is what every sandbox has.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether nothing can be reached.
    pub fn reaches_nothing(&self) -> bool {
        let is_all = |net: &Ipv4Net| net.prefix_len() == 0;
        self.allow.is_empty() && (self.closed || self.deny.iter().any(is_all))
    }
}
