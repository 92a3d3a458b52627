//! The host of a request: what it says, apart from its port.

use std::net::{IpAddr, Ipv6Addr};

use base::limits::HOST_BYTES_MAX;

/// What a host says about the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    /// Nothing: `localhost` or an address.
    Local,
    /// Nothing: the domain itself.
    Domain,
    /// The one label before the domain, in lower case.
    Below(String),
    /// It is a name that is not ours.
    Elsewhere,
}

impl Host {
    /// `None` if the text is neither a name nor an address, perhaps with a port. `domain` is in lower case.
    pub(super) fn parse(text: &str, domain: &str) -> Option<Self> {
        // Before anything is copied: a hostile host may be huge.
        if text.len() > HOST_BYTES_MAX + ".:65535".len() {
            return None;
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (address, port) = rest.split_once(']')?;
            address.parse::<Ipv6Addr>().ok()?;
            return (port.is_empty() || is_port(port.strip_prefix(':')?)).then_some(Self::Local);
        }
        let name = match text.split_once(':') {
            Some((name, port)) => Some(name).filter(|_| is_port(port))?,
            None => text,
        };
        // The root of the name system may be written.
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if name.len() > HOST_BYTES_MAX || !name.bytes().all(allowed) || name.split('.').any(str::is_empty) {
            return None;
        }
        if name == "localhost" || name.parse::<IpAddr>().is_ok() {
            return Some(Self::Local);
        }
        Some(match name.strip_suffix(domain) {
            Some("") => Self::Domain,
            Some(before) => match before.strip_suffix('.') {
                Some(label) if !label.contains('.') => Self::Below(label.to_owned()),
                _ => Self::Elsewhere,
            },
            None => Self::Elsewhere,
        })
    }
}

/// Which port clients use is not compared: there may be forwarding between.
fn is_port(text: &str) -> bool {
    text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit())
}
