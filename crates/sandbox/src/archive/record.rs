//! Records, one frame each, and the digest over all of them.

use std::io::{BufReader, BufWriter, Read, Write};

use base::frame::{self, FrameError, HEADER_BYTES};
use serde::{Deserialize, Serialize, Serializer};

use super::{ArchiveTotals, limits::RECORD_BYTES_MAX};
use crate::error::{Context, Error};

const KIND: u16 = 0x4c01;
const VERSION: u16 = 1;

/// One record. The order of the variants and of their fields is the format.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) enum Record<'a> {
    /// An entry of the directory that is open; the first is the layer itself, without a name. Up to its `End` follow: of
    /// a file its data; of a directory its entries; then, of all, extended attributes.
    Entry {
        #[serde(serialize_with = "at_once")]
        name: &'a [u8],
        attributes: Attributes,
        #[serde(borrow)]
        node: Node<'a>,
    },
    /// A further name of an entry before it, which is not a directory. Has no `End`.
    Link {
        #[serde(serialize_with = "at_once")]
        name: &'a [u8],
        /// Below the layer.
        #[serde(serialize_with = "at_once")]
        first: &'a [u8],
    },
    /// Data of the file at an offset behind all data before it; the rest is holes.
    Data {
        at: u64,
        #[serde(serialize_with = "at_once")]
        bytes: &'a [u8],
    },
    /// An extended attribute; the next has a higher name.
    Xattr {
        #[serde(serialize_with = "at_once")]
        name: &'a [u8],
        #[serde(serialize_with = "at_once")]
        value: &'a [u8],
    },
    /// The end of an entry.
    End,
    /// The end of the archive: what was in it, and the digest (BLAKE3) of all bytes before this record.
    Trailer { entries: u64, data_bytes: u64, digest: [u8; 32] },
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) enum Node<'a> {
    Directory,
    File {
        size: u64,
    },
    Symlink {
        #[serde(serialize_with = "at_once")]
        target: &'a [u8],
    },
    Pipe,
    Socket,
    /// A character device 0:0.
    Whiteout,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attributes {
    /// Permissions, set-id bits and the sticky bit.
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Last modification.
    pub(super) seconds: i64,
    pub(super) nanoseconds: u32,
}

/// As one piece instead of byte after byte, which gives the same encoding.
fn at_once<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// Where records go.
pub(super) struct Sink<'a> {
    out: BufWriter<&'a mut dyn Write>,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<'a> Sink<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out: BufWriter::new(out), hasher: blake3::Hasher::new(), bytes: 0 }
    }

    pub(super) fn put(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let payload = postcard::to_stdvec(record).map_err(Error::ArchiveRecord)?;
        let framed = frame::encode(KIND, VERSION, &payload).map_err(Error::ArchiveFrame)?;
        self.hasher.update(&framed);
        self.bytes += framed.len() as u64;
        self.out.write_all(&framed).doing("write the layer archive")
    }

    pub(super) fn finish(mut self, entries: u64, data_bytes: u64) -> Result<ArchiveTotals, Error> {
        let digest = self.hasher.finalize().into();
        self.put(&Record::Trailer { entries, data_bytes, digest })?;
        self.out.flush().doing("write the layer archive")?;
        Ok(ArchiveTotals { entries, data_bytes, archive_bytes: self.bytes })
    }
}

/// Where records come from.
pub(super) struct Source<'a> {
    input: BufReader<&'a mut dyn Read>,
    hasher: blake3::Hasher,
    bytes: u64,
    frame: Vec<u8>,
}

impl<'a> Source<'a> {
    pub(super) fn new(input: &'a mut dyn Read) -> Self {
        Self { input: BufReader::new(input), hasher: blake3::Hasher::new(), bytes: 0, frame: Vec::new() }
    }

    /// The next record, sound by its own checksum, but not yet by the digest.
    pub(super) fn next(&mut self) -> Result<Record<'_>, Error> {
        self.frame.resize(HEADER_BYTES, 0);
        self.input.read_exact(&mut self.frame).doing("read the layer archive")?;
        let length = self.frame[8..12].iter().rev().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if length > RECORD_BYTES_MAX {
            return Err(Error::ArchiveFrame(FrameError::TooLong(length)));
        }
        self.frame.resize(HEADER_BYTES + length, 0);
        self.input.read_exact(&mut self.frame[HEADER_BYTES..]).doing("read the layer archive")?;
        self.bytes += self.frame.len() as u64;
        let (version, payload) = frame::decode(&self.frame, KIND, VERSION).map_err(Error::ArchiveFrame)?;
        if version != VERSION {
            return Err(Error::ArchiveFrame(FrameError::Version { found: version, newest: VERSION }));
        }
        let (record, rest) = postcard::take_from_bytes(payload).map_err(Error::ArchiveRecord)?;
        if !rest.is_empty() {
            return Err(Error::ArchiveFrame(FrameError::Trailing { extra: rest.len() }));
        }
        if !matches!(record, Record::Trailer { .. }) {
            self.hasher.update(&self.frame);
        }
        Ok(record)
    }

    /// Checks that the archive ends here and is what was written; `None` if it is not.
    pub(super) fn finish(mut self, entries: u64, data_bytes: u64) -> Result<Option<ArchiveTotals>, Error> {
        let digest = self.hasher.finalize().into();
        if self.next()? != (Record::Trailer { entries, data_bytes, digest }) {
            return Ok(None);
        }
        let mut more = Vec::new();
        self.input.take(1).read_to_end(&mut more).doing("read the layer archive")?;
        Ok(more.is_empty().then_some(ArchiveTotals { entries, data_bytes, archive_bytes: self.bytes }))
    }
}

/// Why an extended attribute is carried by no archive.
///
/// Most of overlay's marks are harmless anywhere: whiteouts and opaque directories say what is hidden, an origin is no
/// more than a hint of an inode's number. Two lead elsewhere. A redirect (a directory of a lower layer that was renamed)
/// is carried in the forms that the kernel writes, which stay within the layers below. A file of which only the
/// metadata is in this layer is never made by us (`metacopy=off`), so its data cannot be here.
pub(super) fn refused_mark(name: &[u8], value: &[u8], directory: bool) -> Option<&'static str> {
    match name {
        b"trusted.overlay.redirect" if !directory => Some("only a directory can be redirected"),
        b"trusted.overlay.redirect" if !stays_below(value) => Some("its redirect does not stay within the layers"),
        b"trusted.overlay.metacopy" => Some("its data is in another layer"),
        _ => None,
    }
}

/// One name, or a path from the root of the layers.
fn stays_below(redirect: &[u8]) -> bool {
    let plain = |name: &[u8]| !matches!(name, b"" | b"." | b"..");
    match redirect.strip_prefix(b"/") {
        Some(path) => path.split(|byte| *byte == b'/').all(plain),
        None => plain(redirect) && !redirect.contains(&b'/'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_that_lead_elsewhere_are_refused() {
        let redirect = b"trusted.overlay.redirect";
        for sound in [&b"name"[..], b"/home/user/dir", b"..."] {
            assert_eq!(refused_mark(redirect, sound, true), None);
            assert!(refused_mark(redirect, sound, false).is_some());
        }
        for unsound in [&b""[..], b"/", b"a/b", b"..", b"/a/../b", b"//a", b"/a/", b"/./a"] {
            assert!(refused_mark(redirect, unsound, true).is_some(), "{unsound:?}");
        }
        assert!(refused_mark(b"trusted.overlay.metacopy", b"", false).is_some());
        assert_eq!(refused_mark(b"trusted.overlay.opaque", b"y", true), None);
    }
}
