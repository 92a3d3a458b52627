//! The entries of a tar archive, as POSIX.1-2001 (pax), GNU tar and older programs write them.
//!
//! The tar crate reads the fields of headers. It reads no extended header with line ends in a value, as access lists and attributes have them, so
//! what belongs together is found here.

use std::io::{self, Read};

use tar::{EntryType, Header};

use crate::{
    error::{Error, refused},
    limits::DOCUMENT_BYTES_MAX,
    unpack::sparse::Extent,
};

pub(crate) const BLOCK: usize = 512;
/// Longest path, and longest target of a link: the kernel's own bound.
const NAME_BYTES_MAX: usize = 4_096;
/// Most parts of a file with holes.
const EXTENTS_MAX: usize = 1_000_000;

/// Key and value, as they come: a key may come again.
pub(crate) type Extended = Vec<(String, Vec<u8>)>;

/// One entry. Its data is read from [`Entries`].
pub(crate) struct Entry {
    pub(crate) header: Header,
    pub(crate) extended: Extended,
    pub(crate) name: Vec<u8>,
    pub(crate) link: Vec<u8>,
    /// Bytes of its data in the archive.
    pub(crate) size: u64,
    /// Where these go, and how long the file is, as old versions of GNU tar say it.
    pub(crate) holes: Option<(Vec<Extent>, u64)>,
}

impl Entry {
    /// The value of a key: the last one counts.
    pub(crate) fn value(&self, key: &str) -> Option<&[u8]> {
        self.extended.iter().rev().find(|(found, _)| found == key).map(|(_, value)| value.as_slice())
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        str::from_utf8(self.value(key)?).ok()
    }

    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.text(key)?.trim().parse().ok()
    }
}

/// Reads an archive from its beginning to its end.
pub(crate) struct Entries<R> {
    inner: R,
    /// Data of the present entry that was not read.
    left: u64,
    /// What fills its last block.
    padding: u64,
    /// Bytes that were read.
    at: u64,
}

impl<R: Read> Read for Entries<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let length = self.inner.read(&mut into[..most])?;
        self.left -= length as u64;
        self.at += length as u64;
        Ok(length)
    }
}

impl<R: Read> Entries<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, left: 0, padding: 0, at: 0 }
    }

    /// Where in the archive the data of the present entry begins.
    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    /// The next entry, with what was said of it before. None: the archive ends, in order or where its bytes do.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, Error> {
        let (mut extended, mut name, mut link) = (Extended::new(), None, None);
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.entry_size().map_err(Error::Archive)?;
            match header.entry_type() {
                EntryType::XHeader => extended = pax(&self.document(size)?)?,
                EntryType::GNULongName => name = Some(until_zero(self.document(size)?)),
                EntryType::GNULongLink => link = Some(until_zero(self.document(size)?)),
                EntryType::XGlobalHeader => drop(self.document(size)?),
                _ => return self.entry(header, size, (extended, name, link)).map(Some),
            }
        }
    }

    fn entry(
        &mut self,
        header: Header,
        size: u64,
        (extended, name, link): (Extended, Option<Vec<u8>>, Option<Vec<u8>>),
    ) -> Result<Entry, Error> {
        let mut entry = Entry { header, extended, name: Vec::new(), link: Vec::new(), size, holes: None };
        if entry.header.entry_type() == EntryType::GNUSparse {
            entry.holes = Some(self.old_holes(&entry.header)?);
        }
        entry.size = entry.number("size").unwrap_or(size);
        let plain = || entry.header.path_bytes().into_owned();
        let said = |key: &str| entry.value(key).map(<[u8]>::to_vec);
        let found = said("GNU.sparse.name").or_else(|| said("path")).or(name).unwrap_or_else(plain);
        let plain = || entry.header.link_name_bytes().map(std::borrow::Cow::into_owned);
        let target = said("linkpath").or(link).or_else(plain).unwrap_or_default();
        if found.len().max(target.len()) > NAME_BYTES_MAX {
            return refused(format!("it has a name of more than {NAME_BYTES_MAX} bytes"));
        }
        (entry.name, entry.link) = (found, target);
        // Some programs give links and directories a size, and no data.
        let has_data = !matches!(
            entry.header.entry_type(),
            EntryType::Link
                | EntryType::Symlink
                | EntryType::Directory
                | EntryType::Char
                | EntryType::Block
                | EntryType::Fifo
        );
        self.expect(if has_data { entry.size } else { 0 });
        Ok(entry)
    }

    fn expect(&mut self, bytes: u64) {
        self.left = bytes;
        self.padding = bytes.next_multiple_of(BLOCK as u64).saturating_sub(bytes);
    }

    fn skip(&mut self) -> Result<(), Error> {
        let rest = self.left.saturating_add(self.padding);
        (self.left, self.padding) = (0, 0);
        let skipped = io::copy(&mut (&mut self.inner).take(rest), &mut io::sink()).map_err(Error::Archive)?;
        self.at += skipped;
        if skipped < rest { refused("it ends in the middle of a file") } else { Ok(()) }
    }

    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, Error> {
        let mut block = [0; BLOCK];
        let mut length = 0;
        while length < BLOCK {
            match self.inner.read(&mut block[length..]).map_err(Error::Archive)? {
                0 if length == 0 => return Ok(None),
                0 => return refused("it ends in the middle of a block"),
                more => length += more,
            }
        }
        self.at += BLOCK as u64;
        Ok(Some(block))
    }

    fn header(&mut self) -> Result<Option<Header>, Error> {
        let Some(block) = self.block()? else { return Ok(None) };
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(&block);
        // The sum is that of all bytes, its own as spaces.
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
            .sum();
        match header.cksum() {
            Ok(said) if said == sum => Ok(Some(header)),
            Ok(_) | Err(_) => refused("it is no tar archive, or damaged"),
        }
    }

    /// What another entry says of the next one, whole.
    fn document(&mut self, size: u64) -> Result<Vec<u8>, Error> {
        if size > DOCUMENT_BYTES_MAX {
            return refused(format!("an extended header has {size} bytes"));
        }
        self.expect(size);
        let mut bytes = Vec::new();
        self.take(size).read_to_end(&mut bytes).map_err(Error::Archive)?;
        if (bytes.len() as u64) < size { refused("it ends in the middle of a header") } else { Ok(bytes) }
    }

    /// The map of a file in its header, and in the blocks behind that.
    fn old_holes(&mut self, header: &Header) -> Result<(Vec<Extent>, u64), Error> {
        let Some(gnu) = header.as_gnu() else { return refused("a file with holes has no map") };
        let mut extents = Vec::new();
        let mut add = |parts: &[tar::GnuSparseHeader]| -> Result<(), Error> {
            for part in parts.iter().filter(|part| !part.is_empty()) {
                let (at, bytes) = (part.offset().map_err(Error::Archive)?, part.length().map_err(Error::Archive)?);
                extents.push(Extent { at, bytes });
            }
            if extents.len() > EXTENTS_MAX { refused("a file has too many parts") } else { Ok(()) }
        };
        add(&gnu.sparse)?;
        let mut is_extended = gnu.is_extended();
        while is_extended {
            let Some(block) = self.block()? else { return refused("it ends in the middle of a map") };
            let mut more = tar::GnuExtSparseHeader::new();
            more.as_mut_bytes().copy_from_slice(&block);
            add(&more.sparse)?;
            is_extended = more.is_extended();
        }
        Ok((extents, gnu.real_size().map_err(Error::Archive)?))
    }
}

fn until_zero(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    bytes
}

/// The records of an extended header: length of the record, space, key, equals sign, value, line end. A value may have line ends, too.
fn pax(mut bytes: &[u8]) -> Result<Extended, Error> {
    let mut found = Extended::new();
    while !bytes.is_empty() {
        let record = || {
            let space = bytes.iter().position(|byte| *byte == b' ')?;
            let length: usize = str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
            let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            let key = str::from_utf8(&record[..equals]).ok()?.to_owned();
            Some((length, key, record[equals + 1..].to_vec()))
        };
        let Some((length, key, value)) = record() else { return refused("an extended header is damaged") };
        found.push((key, value));
        bytes = &bytes[length..];
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_extended_headers_may_have_line_ends() {
        let found = pax(b"18 path=some\nname\n12 a=b=\x00\xff\n\n\n6 e=\n\n").unwrap();
        let expected = [("path", &b"some\nname"[..]), ("a", b"b=\x00\xff\n\n"), ("e", b"\n")];
        let expected: Extended = expected.map(|(key, value)| (key.to_owned(), value.to_vec())).into();
        assert_eq!(found, expected);
        for wrong in [&b"9 a=b\n"[..], b"6 a=b", b"x a=b\n", b"6 abcd\n", b"0 \n", b"999999999999999999999 a=b\n"] {
            assert!(pax(wrong).is_err(), "{wrong:?}");
        }
    }
}
