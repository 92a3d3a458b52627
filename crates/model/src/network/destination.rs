//! What policies name: addresses or domains.

use std::{fmt, net::Ipv4Addr, str::FromStr};

use ipnet::Ipv4Net;

use super::domain::{Domain, shown, split_port};

/// Addresses, and a port of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addresses {
    /// All addresses of it.
    pub net: Ipv4Net,
    /// This port, of TCP and UDP; none: every port and every protocol.
    pub port: Option<u16>,
}

impl From<Ipv4Net> for Addresses {
    fn from(net: Ipv4Net) -> Self {
        Self { net, port: None }
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.net.fmt(f)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromStr for Addresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{:?} is no network: give 10.0.0.0/8, 203.0.113.7 or 203.0.113.7:443", shown(text));
        let (net, port) = split_port(text).ok_or_else(wrong)?;
        let net = net.parse().or_else(|_| net.parse::<Ipv4Addr>().map(Ipv4Net::from));
        Ok(Self { net: net.map_err(|_| wrong())?.trunc(), port })
    }
}

/// What a sandbox may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// By address.
    Addresses(Addresses),
    /// By name.
    Domain(Domain),
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addresses(addresses) => addresses.fmt(f),
            Self::Domain(domain) => domain.fmt(f),
        }
    }
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let addresses = text.parse().map(Self::Addresses);
        let wrong =
            |_| format!("{:?} is neither a network such as 10.0.0.0/8 nor a domain such as *.example.com", shown(text));
        addresses.or_else(|_: String| text.parse().map(Self::Domain)).map_err(|error: String| wrong(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_a_network_or_a_domain() {
        for (text, shown) in [("10.1.2.3/8", "10.0.0.0/8"), ("1.1.1.1", "1.1.1.1/32"), ("1.1.1.1:53", "1.1.1.1/32:53")]
        {
            let destination: Destination = text.parse().unwrap();
            assert!(
                matches!(destination, Destination::Addresses(_)) && destination.to_string() == shown,
                "{destination}"
            );
        }
        assert!(matches!("a.example:443".parse().unwrap(), Destination::Domain(_)));
        for bad in ["300.1.1.1", "1.1.1.1/33", "1.1.1.1/8:0", "::1", "2001:db8::/32", ""] {
            assert!(bad.parse::<Destination>().is_err(), "{bad}");
        }
    }
}
