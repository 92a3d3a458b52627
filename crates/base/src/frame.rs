//! The frame around everything that outlives a process: magic, kind, version, length, checksum, then the payload.
//!
//! ```text
//! offset 0   magic     "PNDO"
//!        4   kind      u16 little-endian: what the payload is
//!        6   version   u16: of the payload's encoding
//!        8   length    u32: payload bytes
//!       12   checksum  u32: CRC-32 (IEEE) of the payload
//!       16   payload
//! ```
//!
//! A reader checks all five before it looks at the payload, so a torn or foreign file is named, never parsed.

const MAGIC: [u8; 4] = *b"PNDO";

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 16;

/// Why bytes are not the expected frame.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum FrameError {
    #[error("{have} bytes are too short for a frame that needs {need}")]
    Truncated { have: usize, need: usize },
    #[error("not a Pando record")]
    Magic,
    #[error("a record of kind {found}, expected kind {expected}")]
    Kind { found: u16, expected: u16 },
    #[error("version {found} of the record is newer than this program knows ({newest})")]
    Version { found: u16, newest: u16 },
    #[error("{extra} bytes follow the record")]
    Trailing { extra: usize },
    #[error("the checksum does not match: the record is damaged")]
    Checksum,
    #[error("a payload of {0} bytes is too long for a frame")]
    TooLong(usize),
}

/// Frames `payload`.
pub fn encode(kind: u16, version: u16, payload: &[u8]) -> Result<Vec<u8>, FrameError> {
    let mut framed = Vec::with_capacity(HEADER_BYTES + payload.len());
    framed.extend_from_slice(&[0; HEADER_BYTES]);
    framed.extend_from_slice(payload);
    complete(kind, version, &mut framed)?;
    Ok(framed)
}

/// Frames what stands behind [`HEADER_BYTES`] that were left free, where it is.
///
/// # Panics
///
/// If it has not even these.
pub fn complete(kind: u16, version: u16, framed: &mut [u8]) -> Result<(), FrameError> {
    let (header, payload) = framed.split_at_mut(HEADER_BYTES);
    let length = u32::try_from(payload.len()).map_err(|_| FrameError::TooLong(payload.len()))?;
    header[..4].copy_from_slice(&MAGIC);
    header[4..6].copy_from_slice(&kind.to_le_bytes());
    header[6..8].copy_from_slice(&version.to_le_bytes());
    header[8..12].copy_from_slice(&length.to_le_bytes());
    header[12..].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    Ok(())
}

/// The version and payload of a frame of `kind`, at most version `newest`.
pub fn decode(framed: &[u8], kind: u16, newest: u16) -> Result<(u16, &[u8]), FrameError> {
    let Some((header, payload)) = framed.split_at_checked(HEADER_BYTES) else {
        return Err(FrameError::Truncated { have: framed.len(), need: HEADER_BYTES });
    };
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if header[..4] != MAGIC {
        return Err(FrameError::Magic);
    }
    if half(4) != kind {
        return Err(FrameError::Kind { found: half(4), expected: kind });
    }
    if half(6) > newest {
        return Err(FrameError::Version { found: half(6), newest });
    }
    let length = word(8) as usize;
    if payload.len() < length {
        return Err(FrameError::Truncated { have: framed.len(), need: HEADER_BYTES + length });
    }
    if payload.len() > length {
        return Err(FrameError::Trailing { extra: payload.len() - length });
    }
    if crc32fast::hash(payload) != word(12) {
        return Err(FrameError::Checksum);
    }
    Ok((half(6), payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_gives_back_its_payload() {
        let framed = encode(7, 1, b"hello").unwrap();
        assert_eq!(decode(&framed, 7, 1).unwrap(), (1, &b"hello"[..]));
    }

    #[test]
    fn the_layout_on_disk_is_the_documented_one() {
        let golden = b"PNDO\x07\x00\x01\x00\x05\x00\x00\x00\x86\xa6\x10\x36hello";
        assert_eq!(encode(7, 1, b"hello").unwrap(), golden);
    }

    #[test]
    fn every_truncation_and_every_bit_flip_is_refused() {
        let framed = encode(7, 1, b"some payload").unwrap();
        for length in 0..framed.len() {
            assert!(decode(&framed[..length], 7, 1).is_err(), "cut to {length}");
        }
        for bit in 0..framed.len() * 8 {
            let mut damaged = framed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // A flip that lowers the version still carries a sound payload; all else is refused.
            let refused = decode(&damaged, 7, 1).is_err() || (48..64).contains(&bit);
            assert!(refused, "bit {bit}");
        }
    }
}
