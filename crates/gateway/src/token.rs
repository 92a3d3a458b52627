//! Secrets that clients present.

use std::fmt;

use subtle::ConstantTimeEq;

/// A token that a client must know. It is never printed.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Takes the text of the token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// Compares in a time that depends on the lengths only.
    pub fn is(&self, presented: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(presented).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_equal() {
        let secret = Secret::new("abc");
        assert!(secret.is(b"abc"));
        for wrong in ["", "ab", "abd", "abcd", "ABC"] {
            assert!(!secret.is(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}
