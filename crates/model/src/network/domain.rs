//! Names of hosts, and patterns of them.

use std::{fmt, str::FromStr};

/// Longest name of a host, in bytes (RFC 1035).
const NAME_BYTES_MAX: usize = 253;
/// Longest part of one between two dots, in bytes.
const LABEL_BYTES_MAX: usize = 63;

/// The name of a host, in lower case and without a dot at its end. It is no address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainName(String);

impl DomainName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DomainName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.strip_suffix('.').unwrap_or(text);
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let label = |label: &str| (1..=LABEL_BYTES_MAX).contains(&label.len()) && label.bytes().all(allowed);
        // A name whose last part is a number is an address that is wrong.
        let named = name.rsplit('.').next().is_some_and(|last| last.bytes().any(|byte| !byte.is_ascii_digit()));
        if name.len() <= NAME_BYTES_MAX && named && name.split('.').all(label) {
            Ok(Self(name.to_ascii_lowercase()))
        } else {
            Err(format!("{:?} is no name of a host", shown(text)))
        }
    }
}

/// One name, or all names below one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain {
    /// The name, or the one that they are below.
    pub name: DomainName,
    /// Not the name itself, but each name below it, however deep.
    pub is_wildcard: bool,
    /// None: the ports of HTTP and HTTPS.
    pub port: Option<u16>,
}

impl Domain {
    /// Whether it stands for a name, whatever the port.
    pub fn holds(&self, name: &DomainName) -> bool {
        let rest = name.0.strip_suffix(&self.name.0);
        match self.is_wildcard {
            true => rest.is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            false => rest == Some(""),
        }
    }

    /// The ports that it stands for.
    pub fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        const HTTP: [u16; 2] = [80, 443];
        let usual = self.port.is_none().then_some(HTTP).into_iter().flatten();
        usual.chain(self.port)
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_wildcard { "*." } else { "" }, self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromStr for Domain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{:?} is no domain: give example.com, *.example.com or example.com:8443", shown(text));
        let (pattern, port) = split_port(text).ok_or_else(wrong)?;
        let below = pattern.strip_prefix("*.");
        let name = below.unwrap_or(pattern).parse().map_err(|_| wrong())?;
        Ok(Self { name, is_wildcard: below.is_some(), port })
    }
}

/// Splits a text from the port behind it, if there is one. None: that is no port.
pub(super) fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let Some((rest, port)) = text.rsplit_once(':') else { return Some((text, None)) };
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|port| is_number && *port != 0)?;
    Some((rest, Some(port)))
}

/// The beginning of a text, for errors.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DomainName {
        text.parse().unwrap()
    }

    #[test]
    fn a_wildcard_stands_for_all_names_below_but_not_its_own() {
        let domain: Domain = "*.Example.com".parse().unwrap();
        assert!(domain.holds(&name("a.example.com")) && domain.holds(&name("b.a.EXAMPLE.com.")));
        for other in ["example.com", "badexample.com", "example.com.evil.org", "com"] {
            assert!(!domain.holds(&name(other)), "{other}");
        }
        let one: Domain = "example.com".parse().unwrap();
        assert!(one.holds(&name("example.com")) && !one.holds(&name("a.example.com")));
    }

    #[test]
    fn texts_are_read_and_shown() {
        for text in ["example.com", "*.example.com", "a-b.c_d.e:8443", "*.x:1"] {
            assert_eq!(text.parse::<Domain>().unwrap().to_string(), text);
        }
        let long = format!("{}.com", "a".repeat(64));
        for bad in ["", "*", "*.", "a..b", "a b", "a/b", "1.1.1.1", "a:0", "a:+1", "a:65536", "a:", "x.*.y", &long] {
            assert!(bad.parse::<Domain>().is_err(), "{bad}");
        }
        assert_eq!("a".parse::<Domain>().unwrap().ports().collect::<Vec<_>>(), [80, 443]);
        assert_eq!("a:9".parse::<Domain>().unwrap().ports().collect::<Vec<_>>(), [9]);
    }
}
