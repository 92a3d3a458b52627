//! Tokens that are derived, never stored.
//!
//! The database holds one random secret. A token is `HMAC-SHA-256(secret, purpose, id, generation)` as 64 hexadecimal
//! digits, so it survives restarts, is the same on every server of the database, and no row holds it. A new generation
//! makes a new token.

use base::id::{fill_random, hex};
use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use ring::{digest, hmac};

use crate::{ControlError, Time};

/// What a token is for. Tokens of one purpose are worth nothing for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The sandbox's files and commands.
    Envd,
    /// Traffic to the sandbox's ports.
    Traffic,
    /// The content of a volume.
    Volume,
}

impl Purpose {
    fn as_str(self) -> &'static str {
        match self {
            Self::Envd => "envd",
            Self::Traffic => "traffic",
            Self::Volume => "volume",
        }
    }
}

/// The server's secret.
pub(crate) struct Secret(hmac::Key);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The text of a new secret, for the database.
    pub(crate) fn new_text() -> String {
        let mut bytes = [0; 32];
        fill_random(&mut bytes);
        hex(&bytes)
    }

    pub(crate) fn new(text: &str) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()))
    }

    pub(crate) fn token(&self, purpose: Purpose, id: &str, generation: u64) -> Token {
        // No id has a zero byte, so no two messages are equal.
        let message = format!("{}\0{id}\0{generation}", purpose.as_str());
        Token(hex(hmac::sign(&self.0, message.as_bytes()).as_ref()))
    }
}

/// An access token. It is not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What a signed URL allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOperation {
    /// To download the file.
    Read,
    /// To upload it.
    Write,
}

impl FileOperation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// A URL of a file, as its signature covers it.
#[derive(Debug, Clone, Copy)]
pub struct SignedUrl<'a> {
    /// The path as the client wrote it, decoded.
    pub path: &'a str,
    /// What it allows.
    pub operation: FileOperation,
    /// The user, or an empty text.
    pub user: &'a str,
    /// When it ends, in seconds since 1970.
    pub expires_s: Option<u64>,
}

/// Why a signature is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// It is of another URL, operation, user, time or token.
    #[error("invalid signature")]
    Wrong,
    /// Its time is over. The words are those of E2B.
    #[error("signature is already expired")]
    Expired,
}

impl Token {
    /// The token, to be given to its owner.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares in constant time.
    pub fn verify(&self, presented: &str) -> Result<(), ControlError> {
        if same(&self.0, presented) { Ok(()) } else { Err(ControlError::Token) }
    }

    /// The signature of a URL, as the SDKs make it.
    pub fn sign(&self, url: &SignedUrl<'_>) -> String {
        let SignedUrl { path, operation, user, expires_s } = url;
        let mut text = format!("{path}:{}:{user}:{}", operation.as_str(), self.0);
        if let Some(expires_s) = expires_s {
            text = format!("{text}:{expires_s}");
        }
        format!("v1_{}", BASE64_STANDARD_NO_PAD.encode(digest::digest(&digest::SHA256, text.as_bytes())))
    }

    /// Checks the signature of a URL, in constant time, and then whether its time is over.
    pub fn verify_url(&self, url: &SignedUrl<'_>, signature: &str, now: Time) -> Result<(), SignatureError> {
        if !same(&self.sign(url), signature) {
            return Err(SignatureError::Wrong);
        }
        match url.expires_s {
            Some(expires_s) if expires_s < now.ms() / 1000 => Err(SignatureError::Expired),
            _ => Ok(()),
        }
    }
}

/// Compares two texts in a time that tells nothing of where they differ: by their tags under a key that no one knows.
fn same(expected: &str, presented: &str) -> bool {
    let mut bytes = [0; 32];
    fill_random(&mut bytes);
    let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
    let tag = hmac::sign(&key, expected.as_bytes());
    hmac::verify(&key, presented.as_bytes(), tag.as_ref()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(purpose: Purpose, id: &str, generation: u64) -> Token {
        Secret::new("secret").token(purpose, id, generation)
    }

    #[test]
    fn tokens_differ_by_purpose_id_and_generation() {
        let one = token(Purpose::Envd, "s1", 1);
        assert_eq!(one, token(Purpose::Envd, "s1", 1));
        assert!(one.verify(one.as_str()).is_ok());
        for other in [token(Purpose::Traffic, "s1", 1), token(Purpose::Envd, "s2", 1), token(Purpose::Envd, "s1", 2)] {
            assert!(one.verify(other.as_str()).is_err());
        }
        assert!(one.verify("").is_err() && one.verify(&one.as_str()[..63]).is_err());
        assert!(!format!("{one:?}").contains(one.as_str()));
    }

    #[test]
    fn signatures_are_those_of_the_sdk() {
        // e2b.sandbox.signature.get_signature("/home/user/a b", "read", None, "token") of version 2.63.0.
        let token = Token("token".to_owned());
        let url = SignedUrl { path: "/home/user/a b", operation: FileOperation::Read, user: "", expires_s: None };
        assert_eq!(token.sign(&url), "v1_89i1CdL10IxsNEUmvQmokwWMZvXEcyPUSmtaHQ34VYI");
        let until = SignedUrl { user: "root", operation: FileOperation::Write, expires_s: Some(1_700_000_000), ..url };
        assert_eq!(token.sign(&until), "v1_j685vDxY2qJL8Gr+KzPC0wB2jkQUZTje+sYWs7y3SVg");
    }

    #[test]
    fn an_expired_or_altered_signature_is_refused() {
        let token = token(Purpose::Envd, "s1", 1);
        let url = SignedUrl { path: "/f", operation: FileOperation::Read, user: "", expires_s: Some(100) };
        let signature = token.sign(&url);
        assert_eq!(token.verify_url(&url, &signature, Time::from_ms(100_999)), Ok(()));
        assert_eq!(token.verify_url(&url, &signature, Time::from_ms(101_000)), Err(SignatureError::Expired));
        let later = SignedUrl { expires_s: Some(1_000), ..url };
        assert_eq!(token.verify_url(&later, &signature, Time::from_ms(0)), Err(SignatureError::Wrong));
        let write = SignedUrl { operation: FileOperation::Write, ..url };
        assert_eq!(token.verify_url(&write, &signature, Time::from_ms(0)), Err(SignatureError::Wrong));
    }
}
