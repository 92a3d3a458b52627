//! Short texts, sealed by themselves: for records and rows that must not hold them openly.
//!
//! ```text
//! hexadecimal: segment id (random, 16 bytes), then the text, sealed as chunk 0 of it
//! ```

use base::id::hex;
use bytes::BytesMut;
use zeroize::Zeroizing;

use crate::{
    id::SegmentId,
    keys::{KeyError, RealmKeys},
    seal::{BrokenSeal, SegmentKey, key_id},
};

/// The one chunk of a segment.
const CHUNK: u32 = 0;
const SEGMENT_BYTES: usize = 16;

/// Why a text cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// It is no such text, or was changed.
    #[error(transparent)]
    Seal(#[from] BrokenSeal),
    /// Its key cannot be had.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Seals bytes. What they are for should be among them: a sealed text can be moved to another place.
pub async fn seal(keys: &RealmKeys, plain: &[u8]) -> Result<String, KeyError> {
    let (key, segment) = (keys.current().await?, SegmentId::random());
    let mut out = BytesMut::from(&segment.0[..]);
    SegmentKey::derive(&key, keys.realm(), segment).seal(CHUNK, plain, &mut out);
    Ok(hex(&out))
}

/// What was sealed.
pub async fn open(keys: &RealmKeys, text: &str) -> Result<Zeroizing<Vec<u8>>, TextError> {
    let bytes = unhex(text).ok_or(BrokenSeal)?;
    let (segment, sealed) = bytes.split_first_chunk::<SEGMENT_BYTES>().ok_or(BrokenSeal)?;
    let key = keys.get(key_id(sealed)?).await?;
    let opened = SegmentKey::derive(&key, keys.realm(), SegmentId(*segment)).open(CHUNK, sealed)?;
    Ok(Zeroizing::new(opened.to_vec()))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let mut bytes = vec![0; text.len() / 2];
    crate::id::unhex(text, &mut bytes).then_some(bytes)
}
