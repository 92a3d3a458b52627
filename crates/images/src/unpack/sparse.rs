//! Maps of files with holes, as GNU tar writes them in extended headers: versions 0.0, 0.1 and 1.0 (its manual, "Storing Sparse Files"). The oldest
//! kind has an entry type of its own, and its map is read with the entry.

use std::io::Read;

use crate::{
    entries::{BLOCK, Entry},
    error::{Error, refused},
};

/// Most parts of a file.
const EXTENTS_MAX: u64 = 1_000_000;

/// Data between holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// Where the data of a file goes, and how long it is; none: it has no map.
pub(crate) fn map(data: &mut impl Read, entry: &Entry) -> Result<Option<(Vec<Extent>, u64)>, Error> {
    if entry.holes.is_some() {
        return Ok(entry.holes.clone());
    }
    if entry.number("GNU.sparse.major") == Some(1) {
        let Some(size) = entry.number("GNU.sparse.realsize") else { return refused("a file with holes has no size") };
        return Ok(Some((from_data(data)?, size)));
    }
    let Some(size) = entry.number("GNU.sparse.size") else { return Ok(None) };
    let numbers: Option<Vec<u64>> = match entry.value("GNU.sparse.map") {
        Some(map) => map.split(|byte| *byte == b',').map(parse).collect(),
        None => {
            let is_one = |key: &str| key == "GNU.sparse.offset" || key == "GNU.sparse.numbytes";
            entry.extended.iter().filter(|(key, _)| is_one(key)).map(|(_, value)| parse(value)).collect()
        }
    };
    let Some(numbers) = numbers else { return refused("the map of a file with holes is no list of numbers") };
    Ok(Some((pairs(&numbers)?, size)))
}

fn parse(text: &[u8]) -> Option<u64> {
    str::from_utf8(text).ok()?.trim().parse().ok()
}

fn pairs(numbers: &[u64]) -> Result<Vec<Extent>, Error> {
    let (pairs, rest) = numbers.as_chunks::<2>();
    if !rest.is_empty() {
        return refused("the map of a file with holes ends in the middle");
    }
    Ok(pairs.iter().map(|[at, bytes]| Extent { at: *at, bytes: *bytes }).collect())
}

/// Version 1.0: lines of numbers before the data, the first says how many pairs follow, filled up to whole blocks.
fn from_data(data: &mut impl Read) -> Result<Vec<Extent>, Error> {
    let mut lines = Lines { data, block: [0; BLOCK], at: BLOCK };
    let count = lines.next()?;
    if count > EXTENTS_MAX {
        return refused(format!("a file has {count} parts"));
    }
    let numbers = (0..count * 2).map(|_| lines.next()).collect::<Result<Vec<u64>, Error>>()?;
    pairs(&numbers)
}

struct Lines<'a, R> {
    data: &'a mut R,
    block: [u8; BLOCK],
    at: usize,
}

impl<R: Read> Lines<'_, R> {
    fn next(&mut self) -> Result<u64, Error> {
        let mut digits = Vec::new();
        loop {
            if self.at == BLOCK {
                self.data.read_exact(&mut self.block).map_err(Error::Archive)?;
                self.at = 0;
            }
            let byte = self.block[self.at];
            self.at += 1;
            match byte {
                b'\n' => break,
                byte if digits.len() < 20 => digits.push(byte),
                _ => return refused("the map of a file with holes has no numbers"),
            }
        }
        match parse(&digits) {
            Some(number) => Ok(number),
            None => refused("the map of a file with holes has no numbers"),
        }
    }
}
