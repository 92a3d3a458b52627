//! Header, index and footer of a segment as bytes. Pure.

use base::frame::{self, FrameError, HEADER_BYTES};

use crate::{
    id::{KeyId, Realm, SegmentId},
    kind, limits,
};

const VERSION: u16 = 1;

/// Length of the footer.
pub(super) const FOOTER_BYTES: usize = HEADER_BYTES + 32;

/// Why bytes are not part of a sound segment.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum LayoutError {
    #[error("its {part} is damaged")]
    Frame { part: &'static str, source: FrameError },
    #[error("its {part} does not fit the rest")]
    Inconsistent { part: &'static str },
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) segment: SegmentId,
    pub(super) index_offset: u64,
    pub(super) index_bytes: u32,
    pub(super) chunks: u32,
}

pub(super) fn encode_header(segment: SegmentId, key: KeyId, realm: &Realm) -> Vec<u8> {
    let name = realm.as_str().as_bytes();
    let payload = [&segment.0[..], &key.0, &[name.len() as u8], name].concat();
    frame::encode(kind::SEGMENT, VERSION, &payload).expect("a header has at most 88 bytes")
}

/// Checks a header, which is known to be that of `segment` and `realm`.
pub(super) fn check_header(bytes: &[u8], segment: SegmentId, realm: &Realm) -> Result<(), LayoutError> {
    let part = "header";
    let (_, payload) = decode(part, bytes, kind::SEGMENT)?;
    let name = realm.as_str().as_bytes();
    let fits = payload.len() == 25 + name.len()
        && payload[..16] == segment.0
        && payload[24] as usize == name.len()
        && &payload[25..] == name;
    if fits { Ok(()) } else { Err(LayoutError::Inconsistent { part }) }
}

/// The header's length follows from the realm.
pub(super) fn header_bytes(realm: &Realm) -> u64 {
    (HEADER_BYTES + 25 + realm.as_str().len()) as u64
}

pub(super) fn encode_index(lengths: &[u32]) -> Vec<u8> {
    let payload: Vec<u8> = lengths.iter().flat_map(|length| length.to_le_bytes()).collect();
    frame::encode(kind::SEGMENT_INDEX, VERSION, &payload).expect("an index has at most 16 MiB")
}

pub(super) fn decode_index(bytes: &[u8], chunks: u32) -> Result<Vec<u32>, LayoutError> {
    let part = "index";
    let (_, payload) = decode(part, bytes, kind::SEGMENT_INDEX)?;
    if payload.len() != chunks as usize * 4 {
        return Err(LayoutError::Inconsistent { part });
    }
    Ok(payload.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
}

pub(super) fn encode_footer(footer: &Footer) -> Vec<u8> {
    let mut payload = footer.segment.0.to_vec();
    payload.extend_from_slice(&footer.index_offset.to_le_bytes());
    payload.extend_from_slice(&footer.index_bytes.to_le_bytes());
    payload.extend_from_slice(&footer.chunks.to_le_bytes());
    frame::encode(kind::SEGMENT_FOOTER, VERSION, &payload).expect("a footer has 32 bytes")
}

/// The footer of `segment`, at the end of an object of `size` bytes. What it says has been checked against the size.
pub(super) fn decode_footer(bytes: &[u8], segment: SegmentId, size: u64) -> Result<Footer, LayoutError> {
    let part = "footer";
    let (_, payload) = decode(part, bytes, kind::SEGMENT_FOOTER)?;
    let inconsistent = LayoutError::Inconsistent { part };
    let Ok(payload) = <&[u8; 32]>::try_from(payload) else { return Err(inconsistent) };
    let word = |at: usize| u32::from_le_bytes([payload[at], payload[at + 1], payload[at + 2], payload[at + 3]]);
    let index_offset = u64::from(word(16)) | u64::from(word(20)) << 32;
    let footer = Footer { segment, index_offset, index_bytes: word(24), chunks: word(28) };
    let fits = payload[..16] == segment.0
        && footer.chunks as usize <= limits::CHUNKS_MAX
        && footer.index_bytes as usize == HEADER_BYTES + footer.chunks as usize * 4
        && index_offset.checked_add(u64::from(footer.index_bytes) + FOOTER_BYTES as u64) == Some(size);
    if fits { Ok(footer) } else { Err(inconsistent) }
}

fn decode<'a>(part: &'static str, bytes: &'a [u8], kind: u16) -> Result<(u16, &'a [u8]), LayoutError> {
    frame::decode(bytes, kind, VERSION).map_err(|source| LayoutError::Frame { part, source })
}

/// Footer, index and header behind good checksums: the first byte says which it is, and at which size of the object.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let (Some((which, payload)), segment) = (bytes.split_first(), SegmentId(*b"0123456789abcdef")) else { return };
    let framed = |kind| frame::encode(kind, VERSION, payload).expect("short");
    match which % 3 {
        0 => {
            let size = payload.last_chunk().map_or(0, |size| u64::from_le_bytes(*size));
            let footer = framed(kind::SEGMENT_FOOTER);
            if let Ok(read) = decode_footer(&footer, segment, size) {
                assert_eq!(encode_footer(&read), footer);
            }
        }
        1 => drop(decode_index(&framed(kind::SEGMENT_INDEX), (payload.len() / 4) as u32)),
        _ => drop(check_header(&framed(kind::SEGMENT), segment, &"golden".parse().expect("a name"))),
    }
}
