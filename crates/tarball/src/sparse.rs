//! Maps of files with holes, as GNU tar writes them (its manual, "Storing Sparse Files"): in the header itself (the old format), in extended
//! headers (versions 0.0 and 0.1), and before the data (version 1.0).

use std::io::Read;

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use crate::{
    BLOCK, EXTENTS_MAX, Member, Members, TarError, padding,
    pax::{SPARSE_MAJOR, SPARSE_MAP, SPARSE_NUMBYTES, SPARSE_OFFSET, SPARSE_REALSIZE, SPARSE_SIZE},
};

/// Data between holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where in the file it begins.
    pub at: u64,
    /// How long it is.
    pub bytes: u64,
}

/// A file with holes. Its data is in the archive without them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sparse {
    /// One behind the other, none beyond the end.
    pub extents: Vec<Extent>,
    /// Bytes of the file, its holes too.
    pub size: u64,
}

impl Sparse {
    fn new(path: &[u8], extents: Vec<Extent>, size: u64) -> Result<Self, TarError> {
        let mut end = 0;
        for Extent { at, bytes } in &extents {
            let next = at.checked_add(*bytes).filter(|next| *at >= end && *next <= size);
            end = next.ok_or_else(|| malformed(path))?;
        }
        Ok(Self { extents, size })
    }
}

fn malformed(path: &[u8]) -> TarError {
    TarError::member(path, "its map of holes is malformed")
}

fn too_many(path: &[u8]) -> TarError {
    TarError::member(path, "it has too many holes")
}

pub(crate) fn map(members: &mut Members<impl Read>, member: &Member) -> Result<Option<Sparse>, TarError> {
    if let Some(map) = &member.old_map {
        return Ok(Some(map.clone()));
    }
    let path = &member.path;
    if member.record(SPARSE_MAJOR).is_some() {
        let size = member.number(SPARSE_REALSIZE).ok_or_else(|| malformed(path))?;
        return Sparse::new(path, before_data(members, path)?, size).map(Some);
    }
    if member.record(SPARSE_SIZE).is_none() {
        return Ok(None);
    }
    let size = member.number(SPARSE_SIZE).ok_or_else(|| malformed(path))?;
    let number = |text: &[u8]| str::from_utf8(text).ok()?.parse().ok();
    let numbers: Option<Vec<u64>> = match member.record(SPARSE_MAP) {
        Some(b"") => Some(Vec::new()),
        Some(map) => map.split(|byte| *byte == b',').map(number).collect(),
        None => {
            let is_one = |key: &[u8]| key == SPARSE_OFFSET.as_bytes() || key == SPARSE_NUMBYTES.as_bytes();
            member.records().filter(|(key, _)| is_one(key)).map(|(_, value)| number(value)).collect()
        }
    };
    let numbers = numbers.filter(|numbers| numbers.len() % 2 == 0).ok_or_else(|| malformed(path))?;
    let extents = numbers.as_chunks().0.iter().map(|[at, bytes]| Extent { at: *at, bytes: *bytes }).collect();
    Sparse::new(path, extents, size).map(Some)
}

/// The map in a header, and in the blocks behind it.
pub(crate) fn old_map(
    header: &Header,
    mut block: impl FnMut() -> Result<Option<[u8; BLOCK]>, TarError>,
) -> Result<Sparse, TarError> {
    let path = header.path_bytes();
    let gnu = header.as_gnu().ok_or_else(|| malformed(&path))?;
    let mut extents = Vec::new();
    let mut add = |parts: &[GnuSparseHeader]| -> Result<(), TarError> {
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let (at, bytes) = part.offset().and_then(|at| Ok((at, part.length()?))).map_err(|_| malformed(&path))?;
            extents.push(Extent { at, bytes });
        }
        if extents.len() > EXTENTS_MAX { Err(too_many(&path)) } else { Ok(()) }
    };
    add(&gnu.sparse)?;
    let mut is_extended = gnu.is_extended();
    while is_extended {
        let mut more = GnuExtSparseHeader::new();
        more.as_mut_bytes().copy_from_slice(&block()?.ok_or_else(|| malformed(&path))?);
        add(&more.sparse)?;
        is_extended = more.is_extended();
    }
    Sparse::new(&path, extents, gnu.real_size().map_err(|_| malformed(&path))?)
}

/// A list before the data: numbers in lines, how many pairs first, up to the end of a block.
fn before_data(members: &mut Members<impl Read>, path: &[u8]) -> Result<Vec<Extent>, TarError> {
    let before = members.left();
    let count = number(members, path)?;
    if count > EXTENTS_MAX as u64 {
        return Err(too_many(path));
    }
    let mut extents = Vec::new();
    for _ in 0..count {
        extents.push(Extent { at: number(members, path)?, bytes: number(members, path)? });
    }
    let used = before - members.left();
    members.read_exact(path, &mut [0; BLOCK][..padding(used)])?;
    Ok(extents)
}

fn number(members: &mut Members<impl Read>, path: &[u8]) -> Result<u64, TarError> {
    let mut number: u64 = 0;
    for digits in 0.. {
        let mut byte = [0];
        members.read_exact(path, &mut byte)?;
        let digit = match byte[0] {
            b'\n' if digits > 0 => return Ok(number),
            byte @ b'0'..=b'9' => u64::from(byte - b'0'),
            _ => break,
        };
        match number.checked_mul(10).and_then(|number| number.checked_add(digit)) {
            Some(next) => number = next,
            None => break,
        }
    }
    Err(malformed(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pax;

    /// An archive with one file: header, extended header, and 1,024 bytes of data.
    fn archive(records: &[(&str, &str)], data: &[u8]) -> Vec<u8> {
        let mut extended = Vec::new();
        records.iter().for_each(|(key, value)| pax::push(&mut extended, key.as_bytes(), value.as_bytes()));
        let mut bytes = Vec::new();
        for (kind, name, content) in [(b'x', "x", &extended[..]), (b'0', "file", data)] {
            let mut header = Header::new_ustar();
            header.set_entry_type(tar::EntryType::new(kind));
            header.set_path(name).unwrap();
            header.set_size(content.len() as u64);
            header.set_cksum();
            bytes.extend_from_slice(header.as_bytes());
            bytes.extend_from_slice(content);
            bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        }
        bytes
    }

    fn read(archive: &[u8]) -> Result<Option<Sparse>, TarError> {
        let mut members = Members::new(archive);
        let member = members.next_member()?.unwrap();
        members.map(&member)
    }

    #[test]
    fn maps_are_read_in_all_versions() {
        let extents =
            vec![Extent { at: 0, bytes: 512 }, Extent { at: 1024, bytes: 512 }, Extent { at: 4096, bytes: 0 }];
        let expected = Sparse { extents, size: 4096 };
        let many = |size| {
            let all = [("0", "512"), ("1024", "512"), ("4096", "0")];
            let all = all.map(|(at, bytes)| [("GNU.sparse.offset", at), ("GNU.sparse.numbytes", bytes)]);
            [&[("GNU.sparse.size", size)], all.as_flattened()].concat()
        };
        let first = archive(&many("4096"), &[1; 1024]);
        let second = archive(&[("GNU.sparse.size", "4096"), ("GNU.sparse.map", "0,512,1024,512,4096,0")], &[1; 1024]);
        let mut data = b"3\n0\n512\n1024\n512\n4096\n0\n".to_vec();
        data.resize(512 + 1024, 0);
        let third = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "4096")];
        for archive in [first, second, archive(&third, &data)] {
            assert_eq!(read(&archive).unwrap().as_ref(), Some(&expected));
        }
        assert_eq!(read(&archive(&[], &[1; 9])).unwrap(), None);
    }

    #[test]
    fn maps_that_cannot_be_are_refused() {
        for (size, map) in [
            ("100", "0,512"),
            ("4096", "0,512,100,512"),
            ("4096", "0,512,600"),
            ("4096", "0,x"),
            ("x", "0,512"),
            ("4096", "18446744073709551615,2"),
        ] {
            let archive = archive(&[("GNU.sparse.size", size), ("GNU.sparse.map", map)], &[1; 512]);
            assert!(matches!(read(&archive), Err(TarError::Member { .. })), "{size} {map}");
        }
    }
}
