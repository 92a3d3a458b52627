//! What sandboxes may reach.

use std::net::IpAddr;

pub use model::{Addresses, Destination};
use serde::{Deserialize, Serialize};

/// What a sandbox may reach. What its node keeps closed stays closed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkPolicy {
    /// Nothing is reached but what is allowed by name. If nothing is, there is no DNS either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
    /// What is reached, whatever is denied: networks such as `10.0.0.0/8` and, by TLS and HTTP, domains such as `*.example.com`, each with a port
    /// behind a colon or without; at most 1,000 of both.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "base::texts")]
    pub allow: Vec<Destination>,
    /// Networks that are not reached, each with a port or without; at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "base::texts")]
    pub deny: Vec<Addresses>,
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
        let mut policy = Self { closed, deny, dns, ..Self::default() };
        allow.into_iter().for_each(|destination| policy.add_allowed(destination));
        policy
    }
}

impl From<model::NetworkPolicy> for NetworkPolicy {
    fn from(policy: model::NetworkPolicy) -> Self {
        let allow = policy.allowed().collect();
        Self { closed: policy.closed, allow, deny: policy.deny, dns: policy.dns }
    }
}
