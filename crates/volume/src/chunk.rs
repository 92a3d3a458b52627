//! Chunks of data as they are before sealing: one byte says how the rest is packed.
//!
//! ```text
//!   0  the bytes as they are
//!   1  a zstd frame of them
//! ```

use std::cell::RefCell;

use bytes::Bytes;
use zstd::bulk::Compressor;

use crate::limits::PACK_BYTES;

/// Fast enough for a writer (hundreds of MB/s), and half the size for text.
const ZSTD_LEVEL: i32 = 1;

thread_local! {
    /// Its tables are a megabyte: to make them for each chunk costs more than to pack it. None, and nothing is packed, if there was no memory for it.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = RefCell::new(Compressor::new(ZSTD_LEVEL).ok());
}

/// Packs `data`, at most [`PACK_BYTES`]; as it is where packing would save less than an eighth.
pub(crate) fn encode(data: &[u8]) -> Vec<u8> {
    let packed = COMPRESSOR.with_borrow_mut(|compressor| compressor.as_mut()?.compress(data).ok());
    let packed = packed.filter(|packed| packed.len() < data.len() / 8 * 7);
    let (codec, body) = match &packed {
        Some(packed) => (1, packed.as_slice()),
        None => (0, data),
    };
    let mut chunk = Vec::with_capacity(1 + body.len());
    chunk.push(codec);
    chunk.extend_from_slice(body);
    chunk
}

/// The data of a chunk; `None` if it is not one of a volume.
pub(crate) fn decode(chunk: &Bytes) -> Option<Bytes> {
    match chunk.split_first()? {
        (0, _) => Some(chunk.slice(1..)),
        (1, packed) => zstd::bulk::decompress(packed, PACK_BYTES).ok().map(Bytes::from),
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
            let chunk = Bytes::from(encode(data));
            assert_eq!((chunk[0], decode(&chunk).as_deref()), (codec, Some(data)));
        }
        assert_eq!(decode(&Bytes::from_static(b"\x02x")), None);
        assert_eq!(decode(&Bytes::from_static(b"\x01x")), None);
        assert_eq!(decode(&Bytes::new()), None);
    }
}
