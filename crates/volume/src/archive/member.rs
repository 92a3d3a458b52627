//! Members of an archive, one after the other, with what their extended headers say.

use std::io::{self, Read};

use tar::{EntryType, Header};

use super::{ArchiveError, BLOCK, padding, pax};
use crate::limits::ARCHIVE_HEADER_BYTES_MAX;

/// A member before its data.
pub(super) struct Member {
    pub(super) header: Header,
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    /// Of its data in the archive.
    pub(super) size: u64,
    /// Records of its extended header.
    records: Vec<u8>,
}

/// An archive that is read.
pub(super) struct Members<R> {
    stream: R,
    /// Bytes of the last member, and its padding, that were not read.
    left: u64,
    padding: usize,
}

impl Member {
    /// What the extended header says of `key`: the last one counts.
    pub(super) fn record(&self, key: &[u8]) -> Option<&[u8]> {
        self.records().rev().find(|(found, _)| *found == key).map(|(_, value)| value)
    }

    pub(super) fn records(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        // They were parsed when they were read.
        pax::parse(&self.records).unwrap_or_default().into_iter()
    }

    /// A number of the extended header.
    pub(super) fn number(&self, key: &[u8]) -> Option<u64> {
        std::str::from_utf8(self.record(key)?).ok()?.parse().ok()
    }
}

impl<R: Read> Members<R> {
    pub(super) fn new(stream: R) -> Self {
        Self { stream, left: 0, padding: 0 }
    }

    /// The next member; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Member>, ArchiveError> {
        let (mut records, mut long_name, mut long_link) = (Vec::new(), None, None);
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let bad = |_| ArchiveError::refused(&header.path_bytes(), "its header is malformed");
            let size = header.entry_size().map_err(bad)?;
            self.left = size;
            self.padding = padding(size);
            match header.entry_type() {
                EntryType::XHeader => {
                    records = self.extension(&header, size)?;
                    pax::parse(&records).ok_or_else(|| bad(io::ErrorKind::InvalidData.into()))?;
                }
                EntryType::GNULongName => long_name = Some(text(self.extension(&header, size)?)),
                EntryType::GNULongLink => long_link = Some(text(self.extension(&header, size)?)),
                // Defaults for all members, which nobody writes but for a comment.
                EntryType::XGlobalHeader => {}
                _ => {
                    let member = Member { path: Vec::new(), link: Vec::new(), size, records, header };
                    return self.member(member, long_name, long_link).map(Some);
                }
            }
        }
    }

    fn member(
        &mut self,
        mut member: Member,
        name: Option<Vec<u8>>,
        link: Option<Vec<u8>>,
    ) -> Result<Member, ArchiveError> {
        let header_path = member.header.path_bytes().into_owned();
        let path = member.record(b"GNU.sparse.name").or(member.record(b"path")).map(<[u8]>::to_vec);
        member.path = path.or(name).unwrap_or(header_path);
        let link = member.record(b"linkpath").map(<[u8]>::to_vec).or(link);
        member.link =
            link.or_else(|| member.header.link_name_bytes().map(|link| link.into_owned())).unwrap_or_default();
        if member.record(b"size").is_some() {
            let size = member.number(b"size");
            member.size = size.ok_or_else(|| ArchiveError::refused(&member.path, "its header is malformed"))?;
        }
        // Only files have data, whatever the header says.
        if !matches!(member.header.entry_type(), EntryType::Regular | EntryType::Continuous) {
            let what = member.header.entry_type();
            if matches!(what, EntryType::Link | EntryType::Symlink | EntryType::Directory | EntryType::Fifo) {
                member.size = 0;
            }
        }
        self.left = member.size;
        self.padding = padding(member.size);
        Ok(member)
    }

    /// Reads data of the member that was given out last, all of `buffer`.
    pub(super) fn read_exact(&mut self, path: &[u8], buffer: &mut [u8]) -> Result<(), ArchiveError> {
        let left = self.left.checked_sub(buffer.len() as u64);
        self.left = left.ok_or_else(|| ArchiveError::refused(path, "it has less data than it says"))?;
        self.fill(buffer)
    }

    pub(super) fn left(&self) -> u64 {
        self.left
    }

    fn skip(&mut self) -> Result<(), ArchiveError> {
        let wanted = self.left.saturating_add(self.padding as u64);
        let skipped = io::copy(&mut (&mut self.stream).take(wanted), &mut io::sink()).map_err(failed)?;
        (self.left, self.padding) = (0, 0);
        if skipped == wanted { Ok(()) } else { Err(failed(io::ErrorKind::UnexpectedEof.into())) }
    }

    /// `None` at the end: a block of zeros, or nothing where a header could be.
    fn header(&mut self) -> Result<Option<Header>, ArchiveError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.stream.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        if block == [0; BLOCK] {
            // Whoever sends it has sent all when the rest was read.
            io::copy(&mut self.stream, &mut io::sink()).map_err(failed)?;
            return Ok(None);
        }
        let header = Header::from_byte_slice(&block).clone();
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
            .sum();
        match header.cksum() {
            Ok(found) if found == sum => Ok(Some(header)),
            _ => Err(failed(io::Error::new(io::ErrorKind::InvalidData, "this is not a tar archive, or damaged"))),
        }
    }

    fn extension(&mut self, header: &Header, size: u64) -> Result<Vec<u8>, ArchiveError> {
        if size > ARCHIVE_HEADER_BYTES_MAX {
            return Err(ArchiveError::refused(&header.path_bytes(), "its extended header is too long"));
        }
        let mut bytes = vec![0; size as usize];
        self.read_exact(&header.path_bytes(), &mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), ArchiveError> {
        self.stream.read_exact(buffer).map_err(failed)
    }
}

/// A name of GNU's, without the zero at its end.
fn text(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}

fn failed(source: io::Error) -> ArchiveError {
    ArchiveError::Stream { action: "read", source }
}
