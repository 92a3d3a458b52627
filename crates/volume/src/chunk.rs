//! Chunks of data as they are before sealing: one byte says how the rest is packed.
//!
//! ```text
//!   0  the bytes as they are
//!   1  a zstd frame of them
//! ```

use std::{borrow::Cow, cell::RefCell};

use bytes::Bytes;
use zstd::bulk::Compressor;

use crate::limits::PACK_BYTES;

const AS_IT_IS: u8 = 0;
const ZSTD: u8 = 1;

/// Fast enough for a writer (hundreds of MB/s), and half the size for text.
const ZSTD_LEVEL: i32 = 1;

thread_local! {
    /// Its tables are a megabyte: to make them for each chunk costs more than to pack it. None, and nothing is packed, if there was no memory for it.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = RefCell::new(Compressor::new(ZSTD_LEVEL).ok());
}

/// Data that becomes a chunk, behind the room for what says how it is packed.
pub(crate) struct Open(Vec<u8>);

impl Open {
    pub(crate) fn new() -> Self {
        Self(vec![AS_IT_IS])
    }

    /// Bytes of data.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len() - 1
    }

    pub(crate) fn add(&mut self, data: &[u8]) {
        self.0.extend_from_slice(data);
    }

    pub(crate) fn clear(&mut self) {
        self.0.truncate(1);
    }

    /// The chunk, of at most [`PACK_BYTES`] of data; as it is where packing would save less than an eighth.
    pub(crate) fn encode(&self) -> Cow<'_, [u8]> {
        let data = &self.0[1..];
        // No longer than what is worth it: a compressor that has no room left gives up.
        let mut packed = vec![ZSTD; 1 + data.len() / 8 * 7];
        let length = COMPRESSOR
            .with_borrow_mut(|compressor| compressor.as_mut()?.compress_to_buffer(data, &mut packed[1..]).ok());
        match length {
            Some(length) => {
                packed.truncate(1 + length);
                Cow::Owned(packed)
            }
            None => Cow::Borrowed(&self.0),
        }
    }
}

/// The data of a chunk; `None` if it is not one of a volume.
pub(crate) fn decode(chunk: &Bytes) -> Option<Bytes> {
    match chunk.split_first()? {
        (&AS_IT_IS, _) => Some(chunk.slice(1..)),
        (&ZSTD, packed) => zstd::bulk::decompress(packed, PACK_BYTES).ok().map(Bytes::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_comes_back_packed_or_not() {
        let mut noise = vec![0; PACK_BYTES];
        base::id::fill_random(&mut noise);
        for (data, codec) in [(&b"short"[..], 0), (&noise, 0), (&[7; PACK_BYTES], 1)] {
            let mut open = Open::new();
            open.add(data);
            let chunk = Bytes::copy_from_slice(&open.encode());
            assert_eq!((chunk[0], decode(&chunk).as_deref()), (codec, Some(data)));
        }
        assert_eq!(decode(&Bytes::from_static(b"\x02x")), None);
        assert_eq!(decode(&Bytes::from_static(b"\x01x")), None);
        assert_eq!(decode(&Bytes::new()), None);
    }
}
