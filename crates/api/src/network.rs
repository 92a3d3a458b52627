//! What sandboxes may reach.

use std::net::IpAddr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

/// What a sandbox may reach. What its node keeps closed stays closed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkPolicy {
    /// Nothing is reached but what is allowed by name. If nothing is, there is no DNS either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
    /// Networks that are reached, whatever is denied; at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Ipv4Net>,
    /// Networks that are not reached; at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Ipv4Net>,
    /// Its DNS servers, in the place of the node's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<IpAddr>,
}

impl NetworkPolicy {
    /// Whether it is what every sandbox has.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl From<NetworkPolicy> for model::NetworkPolicy {
    fn from(NetworkPolicy { closed, allow, deny, dns }: NetworkPolicy) -> Self {
        Self { closed, allow, deny, dns }
    }
}

impl From<model::NetworkPolicy> for NetworkPolicy {
    fn from(model::NetworkPolicy { closed, allow, deny, dns }: model::NetworkPolicy) -> Self {
        Self { closed, allow, deny, dns }
    }
}
