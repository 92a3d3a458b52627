//! Who may ask a node for chunks: whoever has a data key of the realm.
//!
//! ```text
//! peer key = HKDF-SHA256(salt: "pando peers", secret: data key, info: "pando peer 1" realm)
//! tag      = HMAC-SHA256(peer key, challenge (32 bytes), number of the request (u64 little-endian), chunk's reference (32 bytes))
//! ```
//!
//! The challenge is of one connection and chosen by who is asked; requests of a connection are numbered from 0. So a tag is good once, on
//! one connection, for one chunk. Nothing shows that the asked one has the key: what it answers opens or does not.

use ring::{hkdf, hmac};

use crate::{id::Realm, keys::DataKey, segment::ChunkRef};

const SALT: &[u8] = b"pando peers";
const INFO: &[u8] = b"pando peer 1";

/// Bytes of a challenge.
pub const CHALLENGE_BYTES: usize = 32;

/// Bytes of a tag.
pub const TAG_BYTES: usize = 32;

/// What one request asks, and on which connection.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Of the connection.
    pub challenge: &'a [u8; CHALLENGE_BYTES],
    /// Its number on the connection, from 0.
    pub number: u64,
    /// What is asked for.
    pub chunk: &'a ChunkRef,
}

impl Request<'_> {
    fn bytes(&self) -> Vec<u8> {
        [&self.challenge[..], &self.number.to_le_bytes(), &self.chunk.encode()].concat()
    }
}

/// Signs requests, and checks them.
pub struct PeerKey(hmac::Key);

impl PeerKey {
    /// The key of the realm's peers that belongs to its data key `key`.
    pub fn derive(key: &DataKey, realm: &Realm) -> Self {
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(key.secret());
        let info = [INFO, realm.as_str().as_bytes()];
        let derived = secret.expand(&info, hmac::HMAC_SHA256).expect("HKDF's longest output is longer than a key");
        Self(hmac::Key::from(derived))
    }

    /// The tag of `request`.
    pub fn sign(&self, request: &Request<'_>) -> [u8; TAG_BYTES] {
        let tag = hmac::sign(&self.0, &request.bytes());
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Is this the tag of `request`? Takes the same time wherever they differ.
    pub fn verify(&self, request: &Request<'_>, tag: &[u8]) -> bool {
        hmac::verify(&self.0, &request.bytes(), tag).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{KeyId, SegmentId};

    fn key(realm: &str, secret: u8) -> PeerKey {
        PeerKey::derive(&DataKey::new(KeyId([1; 8]), 0, [secret; 32]), &realm.parse().unwrap())
    }

    #[test]
    fn a_tag_is_good_for_one_request_of_one_realm_and_key() {
        let chunk = ChunkRef { segment: SegmentId([3; 16]), offset: 64, length: 100, number: 2 };
        let other = ChunkRef { number: 3, ..chunk };
        let request = Request { challenge: &[7; 32], number: 4, chunk: &chunk };
        let tag = key("default", 1).sign(&request);
        assert!(key("default", 1).verify(&request, &tag));
        assert!(!key("default", 2).verify(&request, &tag), "another key");
        assert!(!key("other", 1).verify(&request, &tag), "another realm");
        for wrong in [
            Request { challenge: &[8; 32], ..request },
            Request { number: 5, ..request },
            Request { chunk: &other, ..request },
        ] {
            assert!(!key("default", 1).verify(&wrong, &tag), "{wrong:?}");
        }
        assert!(!key("default", 1).verify(&request, &tag[..31]) && !key("default", 1).verify(&request, &[]));
    }

    #[test]
    fn the_tag_is_the_documented_one() {
        let chunk = ChunkRef { segment: SegmentId(*b"0123456789abcdef"), offset: 64, length: 100, number: 2 };
        let request = Request { challenge: b"fedcba9876543210fedcba9876543210", number: 1, chunk: &chunk };
        let tag = base::id::hex(&key("golden", 9).sign(&request));
        assert_eq!(tag, "549cc49f45a2d41ad5f13a1f6694b878f8280b80db3bccbc93448da1e5c8db55");
    }
}
