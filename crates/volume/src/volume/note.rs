//! Notes of snapshots. A snapshot is a row of the heads' database, and so is its note: sealed, because people write into it what files are
//! about.

use bytes::BytesMut;
use store::{
    Store,
    id::SegmentId,
    seal::{self, SegmentKey},
};

use crate::{VolumeError, limits::NOTE_BYTES_MAX};

/// A note is the only chunk of a segment that no object holds.
const CHUNK: u32 = 0;

/// `note` as the heads keep it: a fresh segment's id and the sealed text, in hexadecimal digits; nothing for nothing.
pub(super) async fn seal(store: &Store, note: &str) -> Result<String, VolumeError> {
    if note.len() > NOTE_BYTES_MAX {
        return Err(VolumeError::Note { bytes: note.len() });
    }
    if note.is_empty() {
        return Ok(String::new());
    }
    let key = store.keys().current().await.map_err(VolumeError::store("get the key of a note"))?;
    let segment = SegmentId::random();
    let mut sealed = BytesMut::from(&segment.0[..]);
    SegmentKey::derive(&key, store.realm(), segment).seal(CHUNK, note.as_bytes(), &mut sealed);
    Ok(base::id::hex(&sealed))
}

/// The reverse; `None` for what is no note of this realm.
pub(super) async fn open(store: &Store, sealed: &str) -> Option<String> {
    if sealed.is_empty() {
        return Some(String::new());
    }
    let bytes = unhex(sealed)?;
    let (segment, sealed) = bytes.split_first_chunk::<16>()?;
    let key = store.keys().get(seal::key_id(sealed).ok()?).await.ok()?;
    let key = SegmentKey::derive(&key, store.realm(), SegmentId(*segment));
    String::from_utf8(key.open(CHUNK, sealed).ok()?.to_vec()).ok()
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| Some((digit(pair[0])? * 16 + digit(*pair.get(1)?)?) as u8)).collect()
}
