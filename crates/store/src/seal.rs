//! Sealing of chunks: AES-256-GCM, so that nobody without a realm's key reads a chunk, and any other chunk in its place is refused.
//!
//! ```text
//! segment key = HKDF-SHA256(salt: segment id, secret: data key, info: "pando segment 1" realm)
//! nonce       = 8 zero bytes, chunk number as u32 big-endian
//! bound data  = "pando chunk 1", length of the realm (u8), realm, data key id, segment id, chunk number (u32 little-endian)
//! sealed      = data key id (8 bytes), ciphertext, tag (16 bytes)
//! ```
//!
//! No nonce is used twice with one key: a segment's id is random and fresh, its key is its own, and its one writer counts its chunks.

use bytes::{Bytes, BytesMut};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf,
};

use crate::{
    id::{KeyId, Realm, SegmentId},
    keys::DataKey,
};

/// Bytes that sealing puts before a chunk: the data key's id.
pub const BEFORE: usize = 8;
/// Bytes that it puts behind: the tag.
pub const BEHIND: usize = 16;
/// Both.
pub const OVERHEAD: usize = BEFORE + BEHIND;

const SEGMENT_INFO: &[u8] = b"pando segment 1";
const CHUNK_INFO: &[u8] = b"pando chunk 1";

/// The bytes are not what was sealed as this chunk: damaged, cut, moved from another place, or of another realm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the seal is broken")]
pub struct BrokenSeal;

/// Seals and opens the chunks of one segment.
pub struct SegmentKey {
    id: KeyId,
    key: LessSafeKey,
    /// The bound data but for the chunk number.
    bound: Vec<u8>,
}

impl SegmentKey {
    /// The key of `segment`, derived from the realm's `key`.
    pub fn derive(key: &DataKey, realm: &Realm, segment: SegmentId) -> Self {
        let name = realm.as_str().as_bytes();
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, &segment.0).extract(key.secret());
        let info = [SEGMENT_INFO, name];
        let derived = secret.expand(&info, &AES_256_GCM).expect("HKDF's longest output is longer than a key");
        let length = [u8::try_from(name.len()).expect("a realm's name has at most 63 bytes")];
        let bound = [CHUNK_INFO, &length, name, &key.id().0, &segment.0].concat();
        Self { id: key.id(), key: LessSafeKey::new(UnboundKey::from(derived)), bound }
    }

    /// Appends chunk `number`, sealed, to `out`. A number is never sealed twice.
    pub fn seal(&self, number: u32, plain: &[u8], out: &mut BytesMut) {
        out.reserve(plain.len() + OVERHEAD);
        out.extend_from_slice(&self.id.0);
        let start = out.len();
        out.extend_from_slice(plain);
        let (_, tag) = self.seal_in_place(number, &mut out[start..]);
        out.extend_from_slice(&tag);
    }

    /// Seals chunk `number` where it is; gives what belongs before and behind it.
    pub fn seal_in_place(&self, number: u32, plain: &mut [u8]) -> ([u8; BEFORE], [u8; BEHIND]) {
        let tag = self.key.seal_in_place_separate_tag(nonce(number), self.bound(number), plain);
        let tag = tag.expect("a chunk is shorter than GCM's longest message");
        (self.id.0, tag.as_ref().try_into().expect("GCM's tag has 16 bytes"))
    }

    /// What was sealed as chunk `number`.
    pub fn open(&self, number: u32, sealed: &[u8]) -> Result<Bytes, BrokenSeal> {
        if key_id(sealed)? != self.id {
            return Err(BrokenSeal);
        }
        let mut opened = sealed[BEFORE..].to_vec();
        let plain = self.key.open_in_place(nonce(number), self.bound(number), &mut opened).map_err(|_| BrokenSeal)?;
        let length = plain.len();
        opened.truncate(length);
        Ok(opened.into())
    }

    fn bound(&self, number: u32) -> Aad<Vec<u8>> {
        Aad::from([&self.bound[..], &number.to_le_bytes()].concat())
    }
}

/// Which data key a sealed chunk says it was sealed with.
pub fn key_id(sealed: &[u8]) -> Result<KeyId, BrokenSeal> {
    match sealed.first_chunk() {
        Some(id) if sealed.len() >= OVERHEAD => Ok(KeyId(*id)),
        _ => Err(BrokenSeal),
    }
}

fn nonce(number: u32) -> Nonce {
    let mut nonce = [0; 12];
    nonce[8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(realm: &str, secret: u8, segment: u8) -> SegmentKey {
        let data = DataKey::new(KeyId([7; 8]), 0, [secret; 32]);
        SegmentKey::derive(&data, &realm.parse().unwrap(), SegmentId([segment; 16]))
    }

    fn sealed(key: &SegmentKey, number: u32, plain: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        key.seal(number, plain, &mut out);
        out.to_vec()
    }

    #[test]
    fn a_sealed_chunk_opens_to_what_it_was() {
        let key = key("default", 1, 2);
        for length in [0, 1, 4095, 1 << 20] {
            let plain = vec![0x5a; length];
            let sealed = sealed(&key, 3, &plain);
            assert_eq!(sealed.len(), length + OVERHEAD);
            assert_eq!(key.open(3, &sealed).unwrap(), plain);
        }
    }

    #[test]
    fn every_bit_flip_and_every_truncation_is_refused() {
        let key = key("default", 1, 2);
        let sealed = sealed(&key, 0, b"a chunk that is long enough for more than one block of AES");
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.open(0, &damaged), Err(BrokenSeal), "bit {bit}");
        }
        for length in 0..sealed.len() {
            assert_eq!(key.open(0, &sealed[..length]), Err(BrokenSeal), "cut to {length}");
        }
    }

    #[test]
    fn a_chunk_opens_only_in_its_place_realm_and_key() {
        let sealed = sealed(&key("default", 1, 2), 3, b"plain");
        assert_eq!(key("default", 1, 2).open(4, &sealed), Err(BrokenSeal), "another place");
        assert_eq!(key("default", 1, 9).open(3, &sealed), Err(BrokenSeal), "another segment");
        assert_eq!(key("other", 1, 2).open(3, &sealed), Err(BrokenSeal), "another realm");
        assert_eq!(key("default", 9, 2).open(3, &sealed), Err(BrokenSeal), "another data key");
        assert!(key("default", 1, 2).open(3, &sealed).is_ok());
    }

    #[test]
    fn the_bytes_are_the_documented_ones() {
        let secret: Vec<u8> = (0..32).collect();
        let data = DataKey::new(KeyId(*b"\x10\x11\x12\x13\x14\x15\x16\x17"), 0, secret.try_into().unwrap());
        let key = SegmentKey::derive(&data, &"golden".parse().unwrap(), SegmentId(*b"0123456789abcdef"));
        assert_eq!(sealed(&key, 5, b"what was sealed"), include_bytes!("../tests/golden/sealed-chunk-v1.bin"));
    }
}
