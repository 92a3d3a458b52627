//! Members of an archive, one after the other, with what their extended headers say.

use std::io::{self, Read};

use tar::{EntryType, Header};

use crate::{BLOCK, Extent, HEADER_BYTES_MAX, Sparse, TarError, padding, pax, sparse};

/// A member before its data.
pub struct Member {
    /// Its header.
    pub header: Header,
    /// Its path, as it is in the archive.
    pub path: Vec<u8>,
    /// Where it leads, if it is a link.
    pub link: Vec<u8>,
    /// Bytes of its data in the archive.
    pub size: u64,
    /// Keys and values of its extended header.
    records: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its map, if that is in the header, as GNU's old format has it.
    pub(crate) old_map: Option<Sparse>,
}

impl Member {
    /// What the extended header says of `key`: the last one counts.
    pub fn record(&self, key: &str) -> Option<&[u8]> {
        self.records().rev().find(|(found, _)| *found == key.as_bytes()).map(|(_, value)| value)
    }

    /// All that the extended header says, in its order.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        self.records.iter().map(|(key, value)| (&key[..], &value[..]))
    }

    /// A text of the extended header.
    pub fn text(&self, key: &str) -> Option<&str> {
        str::from_utf8(self.record(key)?).ok()
    }

    /// A number of the extended header.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.text(key)?.trim().parse().ok()
    }
}

/// An archive that is read.
pub struct Members<R> {
    stream: R,
    /// Bytes of the last member, and its padding, that were not read.
    left: u64,
    padding: usize,
    /// Bytes that were read.
    at: u64,
}

/// What members before one say of it.
#[derive(Default)]
struct Before {
    records: Vec<(Vec<u8>, Vec<u8>)>,
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl<R: Read> Members<R> {
    /// Reads the archive from where `stream` is.
    pub fn new(stream: R) -> Self {
        Self { stream, left: 0, padding: 0, at: 0 }
    }

    /// Where in the archive the data of the last member begins, as long as none of it was read.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Bytes of the last member's data that were not read.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// The next member; `None` at the end, where the rest of the stream is read, too.
    pub fn next_member(&mut self) -> Result<Option<Member>, TarError> {
        let mut before = Before::default();
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let malformed = || TarError::member(&header.path_bytes(), "its header is malformed");
            let size = header.entry_size().map_err(|_| malformed())?;
            match header.entry_type() {
                EntryType::XHeader => {
                    let bytes = self.extension(&header, size)?;
                    let records = pax::parse(&bytes).ok_or_else(malformed)?;
                    before.records = records.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
                }
                EntryType::GNULongName => before.path = Some(until_zero(self.extension(&header, size)?)),
                EntryType::GNULongLink => before.link = Some(until_zero(self.extension(&header, size)?)),
                // Defaults for all members: in practice only a comment (`git archive`).
                EntryType::XGlobalHeader => self.expect(size),
                _ => return self.member(header, size, before).map(Some),
            }
        }
    }

    fn member(&mut self, header: Header, size: u64, before: Before) -> Result<Member, TarError> {
        let old_map = match header.entry_type() {
            EntryType::GNUSparse => Some(sparse::old_map(&header, || self.block())?),
            _ => None,
        };
        let records = before.records;
        let mut member = Member { header, path: Vec::new(), link: Vec::new(), size, records, old_map };
        let said = |key: &str| member.record(key).map(<[u8]>::to_vec);
        let plain = || member.header.path_bytes().into_owned();
        let path = said(pax::SPARSE_NAME).or_else(|| said("path")).or(before.path).unwrap_or_else(plain);
        let plain = || member.header.link_name_bytes().map(|link| link.into_owned());
        let link = said("linkpath").or(before.link).or_else(plain).unwrap_or_default();
        (member.path, member.link) = (path, link);
        if member.record("size").is_some() {
            let size = member.number("size");
            member.size = size.ok_or_else(|| TarError::member(&member.path, "its header is malformed"))?;
        }
        // Some programs give a size to what has no data.
        if matches!(
            member.header.entry_type(),
            EntryType::Link
                | EntryType::Symlink
                | EntryType::Directory
                | EntryType::Fifo
                | EntryType::Char
                | EntryType::Block
        ) {
            member.size = 0;
        }
        self.expect(member.size);
        Ok(member)
    }

    /// Where the data of a file goes; `None`: it has no holes. To be called before its data is read.
    pub fn map(&mut self, member: &Member) -> Result<Option<Sparse>, TarError> {
        sparse::map(self, member)
    }

    /// As [`Self::map`], of any file: one without holes is one stretch.
    pub fn stretches(&mut self, member: &Member) -> Result<Sparse, TarError> {
        let whole = || Sparse { extents: vec![Extent { at: 0, bytes: member.size }], size: member.size };
        Ok(self.map(member)?.unwrap_or_else(whole))
    }

    /// Reads data of the last member, all of `buffer`.
    pub fn read_exact(&mut self, path: &[u8], buffer: &mut [u8]) -> Result<(), TarError> {
        let left = self.left.checked_sub(buffer.len() as u64);
        self.left = left.ok_or_else(|| TarError::member(path, "it has less data than it says"))?;
        self.stream.read_exact(buffer).map_err(failed)?;
        self.at += buffer.len() as u64;
        Ok(())
    }

    fn expect(&mut self, size: u64) {
        (self.left, self.padding) = (size, padding(size));
    }

    fn skip(&mut self) -> Result<(), TarError> {
        let wanted = self.left.saturating_add(self.padding as u64);
        let skipped = io::copy(&mut (&mut self.stream).take(wanted), &mut io::sink()).map_err(failed)?;
        (self.left, self.padding) = (0, 0);
        self.at += skipped;
        if skipped == wanted { Ok(()) } else { Err(TarError::Archive(CUT)) }
    }

    /// `None` where the stream ends.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.stream.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(TarError::Archive("it ends in the middle of a block")),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        self.at += BLOCK as u64;
        Ok(Some(block))
    }

    /// `None` at the end: a block of zeros, or nothing where a header could be.
    fn header(&mut self) -> Result<Option<Header>, TarError> {
        let Some(block) = self.block()? else { return Ok(None) };
        if block == [0; BLOCK] {
            // The sender has sent all when the rest was read.
            io::copy(&mut self.stream, &mut io::sink()).map_err(failed)?;
            return Ok(None);
        }
        let header = Header::from_byte_slice(&block).clone();
        // The sum is that of all bytes, its own as spaces.
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
            .sum();
        match header.cksum() {
            Ok(found) if found == sum => Ok(Some(header)),
            Ok(_) | Err(_) => Err(TarError::Archive("it is no tar archive, or damaged")),
        }
    }

    /// What is said of the next member, whole.
    fn extension(&mut self, header: &Header, size: u64) -> Result<Vec<u8>, TarError> {
        if size > HEADER_BYTES_MAX {
            return Err(TarError::member(&header.path_bytes(), "its extended header is too long"));
        }
        self.expect(size);
        let mut bytes = vec![0; size as usize];
        self.read_exact(&header.path_bytes(), &mut bytes)?;
        Ok(bytes)
    }
}

const CUT: &str = "it ends in the middle of a file";

/// A name of GNU's, without the zero at its end.
fn until_zero(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    bytes
}

fn failed(source: io::Error) -> TarError {
    if source.kind() == io::ErrorKind::UnexpectedEof { TarError::Archive(CUT) } else { TarError::Read(source) }
}
