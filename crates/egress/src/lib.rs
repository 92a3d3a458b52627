//! The egress proxy: connections of sandboxes whose policies name domains.
//!
//! ```text
//! sandbox ── TCP to a proxied port ──► router: redirect ──► proxy ──► socket in the router ──► host ──► the internet
//!                                                             │
//!                      who: the address of the link           ├─ name: SNI of the TLS hello, or Host of each request
//!                                                             └─ address: the proxy asks DNS itself, and checks the answer
//! ```
//!
//! The proxy believes nothing of what a sandbox sends but the name, and connects to that name and no other. So a forged name leads to the host of that
//! name. Its own sockets are in the router's namespace: the host judges their packets as it does those of sandboxes.
//!
//! TLS is passed on as it is, but for hosts of header rules: there the proxy speaks for the host, by an authority of the node's own that its sandboxes
//! trust, and sets headers in each request.
//!
//! A visit is one connection of a sandbox. It ends when the policy does not allow it any more, when its sandbox goes, and when nothing moves for long.

mod client;
mod head;
mod http;
mod places;
mod proxy;
mod route;
mod tls;
mod visit;

pub use authority::Error;
pub use proxy::{Proxy, Settings};
