//! Headers that requests to a host get on their way.

use std::fmt;

use super::domain::Domain;

/// Most headers of a rule.
const HEADERS_MAX: usize = 20;
/// Longest name and value of a header, in bytes.
const NAME_BYTES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 8 << 10;
/// Where HTTPS is.
const HTTPS: u16 = 443;

/// Headers of HTTPS requests to a host, set by the node. No sandbox sees their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderRule {
    /// The host. Without a port: that of HTTPS.
    pub domain: Domain,
    /// They take the place of those of the same names.
    pub headers: Vec<Header>,
}

/// A header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Hidden,
}

/// A text that is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub enum Hidden {
    /// As a client gave it.
    Plain(String),
    /// As it is kept.
    Sealed(String),
}

impl Hidden {
    /// What is shown in its place.
    pub const SHOWN: &str = "***";
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::SHOWN)
    }
}

impl HeaderRule {
    /// What is sealed with a value of this rule: a value that was copied to another rule does not open there.
    pub fn place_of(&self, header: &str) -> String {
        format!("{}\n{}\n", self.domain, header.to_ascii_lowercase())
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.domain.port.unwrap_or(HTTPS)
    }

    /// Fails, with the reason, if requests cannot have these headers.
    pub fn check(&self) -> Result<(), String> {
        let domain = &self.domain;
        if !(1..=HEADERS_MAX).contains(&self.headers.len()) {
            return Err(format!("the rule for {domain} needs 1 to {HEADERS_MAX} headers"));
        }
        match self.headers.iter().find_map(|header| header.problem()) {
            Some(problem) => Err(format!("the rule for {domain}: {problem}")),
            None => Ok(()),
        }
    }
}

impl Header {
    /// Longest value, in bytes.
    pub const VALUE_BYTES_MAX: usize = VALUE_BYTES_MAX;

    fn problem(&self) -> Option<String> {
        /// They frame the message, or say whose connection it is.
        const OTHERS: [&str; 8] =
            ["host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"];
        let shown: String = self.name.chars().take(80).collect();
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if !(1..=NAME_BYTES_MAX).contains(&self.name.len()) || !self.name.bytes().all(is_token) {
            return Some(format!("{shown:?} is no name of a header"));
        }
        if OTHERS.iter().any(|other| self.name.eq_ignore_ascii_case(other)) {
            return Some(format!("the header {shown} cannot be set"));
        }
        let Hidden::Plain(value) = &self.value else { return None };
        if value == Hidden::SHOWN {
            return Some(format!("{value} only stands for the value of the header {shown} in answers: give the value"));
        }
        let is_plain = |byte: u8| byte == b'\t' || (b' '..=b'~').contains(&byte);
        let is_fit = value.len() <= VALUE_BYTES_MAX && value.bytes().all(is_plain);
        (!is_fit).then(|| format!("use at most {VALUE_BYTES_MAX} printable ASCII characters for the header {shown}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, value: &str) -> HeaderRule {
        let header = Header { name: name.to_owned(), value: Hidden::Plain(value.to_owned()) };
        HeaderRule { domain: "api.example".parse().unwrap(), headers: vec![header] }
    }

    #[test]
    fn headers_that_could_be_other_lines_or_frames_are_refused() {
        assert!(rule("Authorization", "Bearer a b\tc").check().is_ok() && rule("x-y_z", "").check().is_ok());
        for (name, value) in
            [("a b", ""), ("", ""), ("a:", ""), ("HOST", "x"), ("te", "x"), ("a", "x\r\nb: c"), ("a", "é")]
        {
            assert!(rule(name, value).check().is_err(), "{name:?}: {value:?}");
        }
        assert!(rule("a", &"x".repeat(VALUE_BYTES_MAX + 1)).check().is_err());
        assert!(HeaderRule { headers: Vec::new(), ..rule("a", "b") }.check().is_err());
    }

    #[test]
    fn a_value_is_never_shown() {
        assert!(!format!("{:?}", rule("a", "secret")).contains("secret"));
    }
}
