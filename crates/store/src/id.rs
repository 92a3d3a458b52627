//! Names of what is stored.

use std::{fmt, str::FromStr};

/// Why a text or bytes are not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind}: {rule}")]
pub struct InvalidId {
    kind: &'static str,
    text: String,
    rule: &'static str,
}

/// Whose data it is. A realm has its own keys, and nothing is shared between realms: neither chunks nor a cache entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Realm(String);

impl Realm {
    /// The realm's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The realm of a node that was told of none.
impl Default for Realm {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl FromStr for Realm {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let ordinary = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9');
        let allowed = |byte: u8| ordinary(byte) || matches!(byte, b'-' | b'_' | b'.');
        let good = text.len() <= base::limits::NAME_BYTES_MAX
            && text.bytes().next().is_some_and(ordinary)
            && text.bytes().all(allowed);
        if good {
            return Ok(Self(text.to_owned()));
        }
        let shown = text.chars().take(base::limits::NAME_BYTES_MAX).collect();
        let rule = "use 1 to 63 of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit";
        Err(InvalidId { kind: "realm", text: shown, rule })
    }
}

impl fmt::Display for Realm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $kind:literal, $rule:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; $bytes]);

        impl $name {
            /// A new identifier from the kernel's random source.
            pub fn random() -> Self {
                let mut bytes = [0; $bytes];
                base::id::fill_random(&mut bytes);
                Self(bytes)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let mut bytes = [0; $bytes];
                if unhex(text, &mut bytes) {
                    return Ok(Self(bytes));
                }
                let shown = text.chars().take(base::limits::NAME_BYTES_MAX).collect();
                Err(InvalidId { kind: $kind, text: shown, rule: $rule })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&base::id::hex(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
    };
}

random_id!(
    /// One segment. 128 random bits: no two writers ever choose the same.
    SegmentId,
    16,
    "segment id",
    "it is 32 lower-case hexadecimal digits"
);

random_id!(
    /// One manifest. 128 random bits: no two writers ever choose the same.
    ManifestId,
    16,
    "manifest id",
    "it is 32 lower-case hexadecimal digits"
);

random_id!(
    /// One lease.
    LeaseId,
    16,
    "lease id",
    "it is 32 lower-case hexadecimal digits"
);

random_id!(
    /// One data key of a realm.
    KeyId,
    8,
    "key id",
    "it is 16 lower-case hexadecimal digits"
);

/// Fills `bytes` from lower-case hexadecimal digits; false if `text` is not exactly that.
pub fn unhex(text: &str, bytes: &mut [u8]) -> bool {
    let digits = text.as_bytes();
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    if digits.len() != bytes.len() * 2 {
        return false;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let (Some(high), Some(low)) = (value(pair[0]), value(pair[1])) else { return false };
        *byte = high << 4 | low;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_from_its_text() {
        let id = SegmentId::random();
        assert_eq!(id.to_string().parse::<SegmentId>().unwrap(), id);
        for bad in ["", "00", &"g".repeat(32), &"A".repeat(32), &"0".repeat(33)] {
            assert!(bad.parse::<SegmentId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_realm_cannot_leave_its_folder() {
        for bad in ["", "..", "a/b", "A", "a\0", &"a".repeat(64)] {
            assert!(bad.parse::<Realm>().is_err(), "{bad:?}");
        }
        assert_eq!("default".parse::<Realm>().unwrap().as_str(), "default");
    }
}
