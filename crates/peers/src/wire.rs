//! The requests, as both sides know them.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/challenge` | 200, 32 bytes: this connection's challenge |
//! | `GET /v1/chunks/REALM/KEY/CHUNK` with `authorization: Pando-Peer TAG` | 200, the sealed bytes; 404: not here; 401: the tag is wrong |
//!
//! KEY is the id of the data key that the tag is made with, CHUNK the encoded [`ChunkRef`], TAG that of [`store::peer`]: all in hexadecimal
//! digits. Requests for chunks are numbered on their connection from 0.

use store::{
    id::{KeyId, Realm, unhex},
    peer::TAG_BYTES,
    segment::ChunkRef,
};

pub(crate) const CHALLENGE_PATH: &str = "/v1/challenge";
const CHUNKS_PATH: &str = "/v1/chunks/";
const SCHEME: &str = "Pando-Peer ";

/// What a path asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) realm: Realm,
    pub(crate) key: KeyId,
    pub(crate) chunk: ChunkRef,
}

impl Asked {
    pub(crate) fn path(realm: &Realm, key: KeyId, chunk: &ChunkRef) -> String {
        format!("{CHUNKS_PATH}{realm}/{key}/{}", base::id::hex(&chunk.encode()))
    }

    pub(crate) fn parse(path: &str) -> Option<Self> {
        let mut parts = path.strip_prefix(CHUNKS_PATH)?.split('/');
        let (realm, key, chunk) = (parts.next()?, parts.next()?, parts.next()?);
        let mut bytes = [0; ChunkRef::BYTES];
        if parts.next().is_some() || !unhex(chunk, &mut bytes) {
            return None;
        }
        Some(Self { realm: realm.parse().ok()?, key: key.parse().ok()?, chunk: ChunkRef::decode(&bytes).ok()? })
    }
}

pub(crate) fn authorization(tag: &[u8; TAG_BYTES]) -> String {
    format!("{SCHEME}{}", base::id::hex(tag))
}

pub(crate) fn tag(authorization: &[u8]) -> Option<[u8; TAG_BYTES]> {
    let digits = std::str::from_utf8(authorization.strip_prefix(SCHEME.as_bytes())?).ok()?;
    let mut tag = [0; TAG_BYTES];
    unhex(digits, &mut tag).then_some(tag)
}

#[cfg(test)]
mod tests {
    use store::id::SegmentId;

    use super::*;

    #[test]
    fn what_is_asked_is_understood_and_nothing_else() {
        let chunk = ChunkRef { segment: SegmentId([3; 16]), offset: 64, length: 100, number: 2 };
        let asked = Asked { realm: "default".parse().unwrap(), key: KeyId([9; 8]), chunk };
        let path = Asked::path(&asked.realm, asked.key, &chunk);
        assert_eq!(Asked::parse(&path), Some(asked));
        for wrong in [&path[1..], &path[..path.len() - 1], &format!("{path}/x"), &path.replace("default", "DEF AULT")] {
            assert_eq!(Asked::parse(wrong), None, "{wrong}");
        }
        // A length that no writer makes, before anything of that length is looked for.
        let impossible = ChunkRef { length: u32::MAX, ..chunk };
        assert_eq!(Asked::parse(&Asked::path(&"default".parse().unwrap(), KeyId([9; 8]), &impossible)), None);
        assert_eq!(tag(authorization(&[0xab; 32]).as_bytes()), Some([0xab; 32]));
        assert!(tag(b"Pando-Peer abc").is_none() && tag(b"Basic").is_none() && tag(b"").is_none());
    }
}
