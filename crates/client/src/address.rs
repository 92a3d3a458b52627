//! Where requests go: the socket of a node, or the URL of a server.

use std::{fmt, path::PathBuf, str::FromStr};

use hyper::{Uri, http::uri::Scheme};

/// Where a client's requests go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// To a node on this machine.
    Socket(PathBuf),
    /// To a server.
    Url(Url),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(socket) => write!(f, "the node at {}", socket.display()),
            Self::Url(url) => write!(f, "the server at {url}"),
        }
    }
}

/// The URL of a server: `https://HOST[:PORT]` or `http://HOST[:PORT]`, without a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Whether the connection is encrypted.
    pub(crate) tls: bool,
    /// A name or an address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Host and port as they were given.
    pub(crate) authority: String,
}

/// A text is no URL of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no URL of a server: give it as https://HOST:PORT or http://HOST:PORT")]
pub struct InvalidUrl(String);

impl FromStr for Url {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let invalid = || InvalidUrl(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(_) | None => return Err(invalid()),
        };
        let authority = uri.authority().ok_or_else(invalid)?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || authority.as_str().contains('@') {
            return Err(invalid());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() || (authority.port().is_some() && authority.port_u16().is_none()) {
            return Err(invalid());
        }
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { tls, host, port, authority: authority.to_string() })
    }
}

impl Url {
    /// Whether the name stands for this machine, which name servers need not know (RFC 6761).
    pub(crate) fn is_local(&self) -> bool {
        let host = self.host.to_ascii_lowercase();
        host == "localhost" || host.ends_with(".localhost")
    }

    /// Whether the host says nothing about a domain: headers may then name a sandbox.
    pub(crate) fn has_no_domain(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost") || self.host.parse::<std::net::IpAddr>().is_ok()
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http{}://{}", if self.tls { "s" } else { "" }, self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_host_and_no_path() {
        let url: Url = "https://api.pando.localhost:7443/".parse().unwrap();
        assert_eq!((url.tls, url.host.as_str(), url.port), (true, "api.pando.localhost", 7443));
        assert_eq!(url.to_string(), "https://api.pando.localhost:7443");
        assert!(url.is_local() && !url.has_no_domain());
        let url: Url = "http://[::1]".parse().unwrap();
        assert_eq!((url.tls, url.host.as_str(), url.port), (false, "::1", 80));
        assert!(url.has_no_domain() && !url.is_local());
        for wrong in ["", "pando", "/run/pando.sock", "ftp://a", "https://", "https://a/b", "http://a?b", "http://u@a"]
        {
            assert!(wrong.parse::<Url>().is_err(), "{wrong}");
        }
    }
}
