//! What can go wrong.

use std::{io, path::PathBuf};

use ipnet::Ipv4Net;

/// Why a network could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused something.
    #[error("cannot {action}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A file could not be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The host uses all that the node would choose from.
    #[error(
        "the host has routes to all networks that this node would take for its sandboxes: name a free one of /16 to /24"
    )]
    NoRange,
    /// Not one that a node can have.
    #[error("{0} has no room for the addresses of sandboxes, or too much: name one of /16 to /24")]
    Range(Ipv4Net),
    /// A network of the host's.
    #[error("{range} is no free range: the host has a route to {other}")]
    Taken {
        /// What was wanted.
        range: Ipv4Net,
        /// What is there.
        other: Ipv4Net,
    },
    /// As many sandboxes as the range has addresses.
    #[error("all addresses of {0} are in use: remove sandboxes, or give the node a larger range")]
    Full(Ipv4Net),
    /// A sandbox that has no link.
    #[error("sandbox {0} has no network")]
    NoLink(base::id::SandboxId),
    /// More than a policy may have.
    #[error("a network policy has at most {0} DNS servers")]
    TooManyServers(usize),
    /// So slow that nothing works, or faster than any network.
    #[error("the bandwidth of a sandbox is 64 KiB to 16 GiB a second")]
    Bandwidth,
    /// A rule that no request can follow.
    #[error("{0}")]
    Rule(String),
    /// More than a policy may have.
    #[error("a network policy has at most {0} rules for requests")]
    TooManyRules(usize),
    /// More than a policy may have.
    #[error("the domains of a network policy have at most {0} ports")]
    TooManyPorts(usize),
    /// It would say nothing: all else is reached, too.
    #[error("the domain {0} is allowed, but nothing else is denied: close the internet, or deny 0.0.0.0/0")]
    OpenBeside(String),
    /// One that is asked by the node, and is not for sandboxes.
    #[error("the DNS server {0} is not for sandboxes: name one of the internet, by its IPv4 address")]
    ClosedServer(std::net::IpAddr),
    /// More than a policy may have.
    #[error("a network policy has at most {0} entries")]
    TooLong(usize),
}

/// Adds what was being done to an error of the system.
pub(crate) trait Context<T> {
    fn doing(self, action: &'static str) -> Result<T, Error>;
    fn at(self, action: &'static str, path: &std::path::Path) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn doing(self, action: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::System { action, source: source.into() })
    }

    fn at(self, action: &'static str, path: &std::path::Path) -> Result<T, Error> {
        self.map_err(|source| Error::File { action, path: path.to_owned(), source: source.into() })
    }
}
