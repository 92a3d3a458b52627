//! What sandboxes may reach.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use model::Header;
pub use model::{Addresses, Destination, Domain, Hidden};
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
    /// Headers that the node sets in HTTPS requests; at most 100 rules. They allow nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<HeaderRule>,
    /// Most bytes a second that it sends, and that it gets: 64 KiB to 16 GiB; none: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
}

/// Headers of HTTPS requests to a host, set by the node. No sandbox sees their values.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderRule {
    /// `api.example.com` or `*.example.com`, at port 443, or with another one behind a colon. An exact name goes before a wildcard, and a longer
    /// wildcard before a shorter one.
    #[serde(with = "base::texts::one")]
    pub domain: Domain,
    /// 1 to 20 names with their values, which take the place of those that a request has. In answers the values are `***`.
    pub headers: BTreeMap<String, String>,
}

impl fmt::Debug for HeaderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.headers.keys().collect();
        f.debug_struct("HeaderRule").field("domain", &self.domain).field("headers", &names).finish()
    }
}

impl NetworkPolicy {
    /// Whether it is what every sandbox has.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl From<NetworkPolicy> for model::NetworkPolicy {
    fn from(NetworkPolicy { closed, allow, deny, dns, rules, bandwidth }: NetworkPolicy) -> Self {
        let mut policy = Self { closed, deny, dns, bandwidth, ..Self::default() };
        allow.into_iter().for_each(|destination| policy.add_allowed(destination));
        policy.rules = rules.into_iter().map(|HeaderRule { domain, headers }| rule(domain, headers)).collect();
        policy
    }
}

/// A rule as the node takes it, and checks it.
pub fn rule(domain: Domain, headers: impl IntoIterator<Item = (String, String)>) -> model::HeaderRule {
    let header = |(name, value)| Header { name, value: Hidden::Plain(value) };
    model::HeaderRule { domain, headers: headers.into_iter().map(header).collect() }
}

impl From<model::NetworkPolicy> for NetworkPolicy {
    fn from(policy: model::NetworkPolicy) -> Self {
        let hidden = |header: Header| (header.name, Hidden::SHOWN.to_owned());
        let rule = |model::HeaderRule { domain, headers }| HeaderRule {
            domain,
            headers: headers.into_iter().map(hidden).collect(),
        };
        let allow = policy.allowed().collect();
        let rules = policy.rules.into_iter().map(rule).collect();
        Self { closed: policy.closed, allow, deny: policy.deny, dns: policy.dns, rules, bandwidth: policy.bandwidth }
    }
}
