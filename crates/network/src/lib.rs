//! Networks of sandboxes.
//!
//! ```text
//! sandbox                        router (a network namespace of the node's)           host
//! eth0 169.254.0.2/30 ═══════════ sN: route to 198.18.0.N                              pdXXXXXXXX 198.18.0.1/30
//!   rules of the link:             forward: policy of each sandbox, bounds  up ═══════ input: nothing comes in
//!   169.254.0.2 <-> 198.18.0.N     169.254.0.1: DNS                                    postrouting: masquerade
//! ```
//!
//! Every sandbox has the same address inside, so that a program's copy finds its own, and one of the node's range outside. Its link's rules put the one
//! for the other, without state. They are in the sandbox's namespace and belong to the node: root of a sandbox has no say in its network.
//!
//! Of sandboxes whose policies have domains, the router sends connections to the egress proxy (`pando-egress`), for which [`Network::listen`] has the
//! socket, and [`Dns::resolve`] the addresses.
//!
//! All of it lives in the kernel, and outlives the node: links go with the sandbox's namespace, the router with its mount. [`Network::open`] takes over
//! what it finds.

mod dns;
mod error;
mod link;
mod links;
mod netlink;
mod nft;
mod outside;
mod policy;
mod probe;
mod ranges;
mod router;
mod rules;
mod settings;

pub use dns::{Dns, QUERIES_MAX};
pub use error::Error;
pub use netlink::Sockets;
pub use outside::{Denied, Outside, Unresolved};
pub use policy::{DOMAIN_PORTS_MAX, ENTRIES_MAX, RULES_MAX, Reach, SERVERS_MAX};
pub use probe::{closed_forwarding, probe};
pub use router::Network;
pub use settings::{GATEWAY, INSIDE, LINK, Settings};
