//! Reading what may be compressed, by what it begins with.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek},
};

use flate2::bufread::MultiGzDecoder;

use crate::limits::{RATIO_BYTES_MIN, RATIO_MAX};

const GZIP: &[u8] = &[0x1f, 0x8b];
const XZ: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// What unfolding xz may take: `xz -9` needs 65 MiB.
const XZ_MEMORY_KIB: u32 = 256 << 10;

/// Whether a file is compressed. It is at its beginning afterwards.
pub(crate) fn is_compressed(file: &mut File) -> io::Result<bool> {
    let mut begin = Vec::new();
    file.take(XZ.len() as u64).read_to_end(&mut begin)?;
    file.rewind()?;
    Ok([GZIP, XZ, ZSTD].iter().any(|magic| begin.starts_with(magic)))
}

/// The content of a stream: plain, gzip, xz or zstd.
pub(crate) fn content<'a>(stream: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let counted = Counted { inner: stream, bytes: Default::default() };
    let compressed = std::rc::Rc::clone(&counted.bytes);
    let mut stream = BufReader::with_capacity(64 << 10, counted);
    let begin = stream.fill_buf()?;
    let is = |magic: &[u8]| begin.starts_with(magic);
    let inner: Box<dyn Read + 'a> = if is(GZIP) {
        Box::new(MultiGzDecoder::new(stream))
    } else if is(XZ) {
        Box::new(lzma_rust2::XzReader::new_mem_limit(stream, true, XZ_MEMORY_KIB))
    } else if is(ZSTD) {
        Box::new(zstd::Decoder::with_buffer(stream)?)
    } else {
        return Ok(Box::new(stream));
    };
    Ok(Box::new(Bounded { inner, compressed, bytes: 0 }))
}

struct Counted<R> {
    inner: R,
    bytes: std::rc::Rc<std::cell::Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(into)?;
        self.bytes.set(self.bytes.get() + length as u64);
        Ok(length)
    }
}

/// Ends where more unfolds than archives do.
struct Bounded<R> {
    inner: R,
    compressed: std::rc::Rc<std::cell::Cell<u64>>,
    bytes: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(into)?;
        self.bytes += length as u64;
        let most = RATIO_BYTES_MIN.max(self.compressed.get().saturating_mul(RATIO_MAX));
        if self.bytes > most {
            let why = format!("it unfolds to more than {RATIO_MAX} times its size");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn streams_are_known_by_their_beginnings() {
        let text = b"text ".repeat(1000);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).unwrap();
        let mut xz = lzma_rust2::XzWriter::new(Vec::new(), Default::default()).unwrap();
        xz.write_all(&text).unwrap();
        let zstd = zstd::encode_all(&text[..], 1).unwrap();
        for packed in [text.clone(), gzip.finish().unwrap(), xz.finish().unwrap(), zstd] {
            let mut found = Vec::new();
            content(&packed[..]).unwrap().read_to_end(&mut found).unwrap();
            assert!(found == text);
        }
        assert_eq!(content(&b""[..]).unwrap().read(&mut [0; 8]).unwrap(), 0);
    }
}
