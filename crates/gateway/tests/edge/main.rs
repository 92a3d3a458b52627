//! The edge with real sockets and real clients: curl, Python, Node, WebSockets, HTTP/2. Sandboxes are programs on this
//! machine: [`support::Loopback`] connects to them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bounds;
mod clients;
mod own;
mod proxied;
mod slow;
mod smuggled;
mod streams;
mod support;
mod tunnels;
