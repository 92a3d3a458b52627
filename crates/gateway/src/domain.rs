//! The domain under which a server and its sandboxes are reached.

use std::{fmt, str::FromStr};

use base::limits::{HOST_BYTES_MAX, NAME_BYTES_MAX};

/// The default: two labels, because TLS clients refuse a wildcard directly below `localhost`.
pub const DOMAIN_DEFAULT: &str = "pando.localhost";

/// A host name in lower case, perhaps with a port: `pando.localhost:7443`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    name: String,
    port: Option<u16>,
}

/// A text is no domain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a domain: use a host name of at least two labels, such as {DOMAIN_DEFAULT} or box.example.com:8443"
)]
pub struct InvalidDomain {
    text: String,
}

impl Domain {
    /// The host name, without port.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port that clients use, if it is not 443.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The same name with another port. 443 is left out, as clients do.
    pub fn with_port(&self, port: u16) -> Self {
        Self { name: self.name.clone(), port: Some(port).filter(|port| *port != 443) }
    }

    /// True below `localhost`: such names must resolve to this machine (RFC 6761).
    pub fn is_local(&self) -> bool {
        self.name.ends_with(".localhost")
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl FromStr for Domain {
    type Err = InvalidDomain;

    fn from_str(text: &str) -> Result<Self, InvalidDomain> {
        let invalid = || InvalidDomain { text: text.chars().take(NAME_BYTES_MAX).collect() };
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(port_number(port).ok_or_else(invalid)?)),
            None => (text, None),
        };
        // The longest label that goes before it: a port, a hyphen and a sandbox.
        let fits = name.len() + NAME_BYTES_MAX < HOST_BYTES_MAX;
        let is_address = name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if !fits || is_address || !name.contains('.') || !name.split('.').all(is_label) {
            return Err(invalid());
        }
        Ok(Self { name: name.to_ascii_lowercase(), port: port.filter(|port| *port != 443) })
    }
}

/// A port in decimal digits, without a sign. Not 0.
pub(crate) fn port_number(text: &str) -> Option<u16> {
    let digits = text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

/// A label of a host name, in either case.
pub(crate) fn is_label(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(inside)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_have_two_labels_and_perhaps_a_port() {
        let shown = |text: &str| text.parse::<Domain>().map(|domain| domain.to_string()).ok();
        for (text, expected) in [
            ("pando.localhost", "pando.localhost"),
            ("Pando.Localhost:7443", "pando.localhost:7443"),
            ("box.example.com:443", "box.example.com"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(expected), "{text}");
        }
        let long = format!("{}.example.com", ["abcdefg"; 40].join("."));
        for bad in [
            "",
            "localhost",
            "127.0.0.1",
            "a..b",
            "-a.b",
            "a.b-",
            "a.b:",
            "a.b:0",
            "a.b:+1",
            "a.b:99999",
            "a b.c",
            "ä.b",
            &long,
        ] {
            assert_eq!(shown(bad), None, "{bad}");
        }
    }
}
