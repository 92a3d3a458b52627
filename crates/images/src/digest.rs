//! SHA-256 of what is read.

use std::{
    fmt,
    io::{self, Read},
    str::FromStr,
};

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// `sha256:` and 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// The digits.
    pub fn hex(&self) -> &str {
        &self.0
    }

    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(base::id::hex(ring::digest::digest(&SHA256, bytes).as_ref()))
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64);
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match digits.filter(|digits| digits.bytes().all(is_digit)) {
            Some(digits) => Ok(Self(digits.to_owned())),
            None => {
                Err(Error::Refused(format!("{:?} is no digest of SHA-256", text.chars().take(80).collect::<String>())))
            }
        }
    }
}

impl TryFrom<String> for Digest {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

/// A digest of bytes that come in parts.
#[derive(Clone)]
pub struct Digester(Context);

impl Default for Digester {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Digester {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Of all of them so far.
    pub fn digest(&self) -> Digest {
        Digest(base::id::hex(self.0.clone().finish().as_ref()))
    }
}

/// A reader that adds up what it passes on.
pub(crate) struct Hashed<R> {
    inner: R,
    digester: Digester,
}

impl<R: Read> Hashed<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, digester: Digester::default() }
    }

    /// Of all of it: the rest is read, too.
    pub(crate) fn finish(mut self) -> io::Result<Digest> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.digester.digest())
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(into)?;
        self.digester.update(&into[..length]);
        Ok(length)
    }
}
