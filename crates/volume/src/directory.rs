//! Entries of directories, and the cookies that they are ordered by.
//!
//! A cookie is a keyed hash of the name with three bits that tell names of one hash apart. So an entry keeps its cookie as long as it
//! exists, on every node and in every fork: a listing goes on where it was, whatever was added or removed meanwhile. Without
//! the volume's salt nobody can choose names that collide.

use serde::{Deserialize, Serialize};

use crate::inode::{Ino, Kind};

/// Names of one hash that a directory can hold.
pub(crate) const SLOTS: u64 = 8;

/// Cookies of `.` and `..` are below all others.
pub(crate) const COOKIE_SELF: u64 = 1;
pub(crate) const COOKIE_PARENT: u64 = 2;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dirent {
    pub(crate) ino: Ino,
    pub(crate) kind: Kind,
    #[serde(with = "serde_bytes")]
    pub(crate) name: Vec<u8>,
}

/// The first of the cookies that `name` may have: positive as a signed number, and far above the two fixed ones.
pub(crate) fn first_cookie(salt: &[u8; 32], name: &[u8]) -> u64 {
    let hash = blake3::keyed_hash(salt, name);
    let low = hash.as_bytes().first_chunk().map_or(0, |low| u64::from_le_bytes(*low));
    (low >> 1) & !(SLOTS - 1) | 1 << 62
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_signed_offsets_with_room_for_collisions() {
        for name in ["", "a", "b", "a long name with spaces"] {
            let cookie = first_cookie(&[7; 32], name.as_bytes());
            assert!(
                cookie.is_multiple_of(SLOTS) && cookie > COOKIE_PARENT && i64::try_from(cookie + SLOTS).is_ok(),
                "{name}"
            );
        }
        assert_ne!(first_cookie(&[1; 32], b"a"), first_cookie(&[2; 32], b"a"));
    }
}
