//! Reading the log of a volume that was not closed, and what to make of damage.
//!
//! A crash may leave any part of what was not synced: a batch cut off, a batch missing before a whole one. That is the *tail*, and it is
//! dropped from its first unsound batch on; nobody was promised anything of it. But each batch says up to where the disk had synced when
//! it was written: if a sound batch behind says that the unsound one was on disk, or another file follows, then what was promised
//! is damaged, and the log is named and left as it is.

use std::{
    fs::{self, File},
    io::Read,
    ops::Range,
    path::{Path, PathBuf},
};

use base::frame;
use bytes::Bytes;
use store::{
    Store,
    id::{KeyId, SegmentId},
    seal::SegmentKey,
};

use crate::{
    error::WalError,
    limits::WAL_BATCH_BYTES_MAX,
    wal::{BATCH_KIND, HEADER_BYTES, HEADER_KIND, Header, VERSION, failed},
};

/// Bytes of a header with its frame.
const HEADER_FRAME_BYTES: usize = frame::HEADER_BYTES + HEADER_BYTES;

/// A batch that opened.
struct Batch {
    /// The last operation that was on disk when it was written.
    synced: u64,
    plain: Bytes,
    records: Vec<Range<usize>>,
    /// Where the next one begins.
    end: usize,
}

/// What a log has to give.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Encoded operations, with their numbers: one after the other.
    pub(crate) operations: Vec<(u64, Bytes)>,
    /// The files, each with its last operation.
    pub(crate) files: Vec<(PathBuf, u64)>,
}

/// Which epoch the log in `folder` belongs to, if there is one.
pub(crate) fn epoch(folder: &Path) -> Result<Option<[u8; 16]>, WalError> {
    for path in files(folder)? {
        let mut bytes = Vec::with_capacity(HEADER_FRAME_BYTES);
        let read = File::open(&path).and_then(|file| file.take(HEADER_FRAME_BYTES as u64).read_to_end(&mut bytes));
        read.map_err(failed("read", &path))?;
        if let Some(header) = decode_header(&bytes) {
            return Ok(Some(header.epoch));
        }
    }
    Ok(None)
}

/// Moves the log in `folder` aside, untouched: it belongs to a state that the volume does not come from.
pub(crate) fn set_aside(folder: &Path, epoch: [u8; 16]) -> Result<PathBuf, WalError> {
    let aside = folder.with_extension(format!("aside-{}", base::id::hex(&epoch)));
    fs::rename(folder, &aside).map_err(failed("set aside", folder))?;
    Ok(aside)
}

/// Reads the operations behind `committed`. A torn tail is cut off.
pub(crate) async fn read(folder: &Path, store: &Store, committed: u64) -> Result<Recovered, WalError> {
    let mut recovered = Recovered::default();
    let mut expected = None;
    let paths = files(folder)?;
    for (at, path) in paths.iter().enumerate() {
        let is_last = at + 1 == paths.len();
        let bytes = Bytes::from(fs::read(path).map_err(failed("read", path))?);
        let Some(header) = decode_header(&bytes) else {
            if is_last {
                // It was being made: its header is synced before anything is promised.
                fs::remove_file(path).map_err(failed("remove", path))?;
                break;
            }
            return Err(WalError::Damaged { path: path.clone(), offset: 0 });
        };
        let missing = expected.unwrap_or(header.first.min(committed + 1));
        if header.first != missing {
            return Err(WalError::Gap { path: path.clone(), expected: missing.max(1), found: header.first });
        }
        let key = store.keys().get(header.key).await;
        let key = key.map_err(|source| WalError::Key { path: path.clone(), source: source.into() })?;
        let key = SegmentKey::derive(&key, store.realm(), header.file);
        let next = read_file(path, &bytes, &key, header.first, is_last, &mut recovered.operations)?;
        expected = Some(next);
        if next == header.first {
            // Nothing is in it, and the next file will begin with the same operation.
            fs::remove_file(path).map_err(failed("remove", path))?;
            continue;
        }
        recovered.files.push((path.clone(), next - 1));
    }
    recovered.operations.retain(|(sequence, _)| *sequence > committed);
    Ok(recovered)
}

/// Adds the operations of one file; the number of the one behind the last.
fn read_file(
    path: &Path,
    bytes: &Bytes,
    key: &SegmentKey,
    first: u64,
    is_last: bool,
    operations: &mut Vec<(u64, Bytes)>,
) -> Result<u64, WalError> {
    let (mut at, mut number, mut sequence) = (HEADER_FRAME_BYTES, 0, first);
    while at < bytes.len() {
        let Some(batch) = batch_at(bytes, at, key, number) else {
            if bytes[at..].iter().all(|byte| *byte == 0) {
                // It was filled ahead. If there was something, its operations are missing before those of the next file.
                break;
            }
            if !is_last || was_synced(bytes, at, key, number, sequence) {
                return Err(WalError::Damaged { path: path.to_owned(), offset: at });
            }
            cut_tail(path, at)?;
            break;
        };
        for record in batch.records {
            operations.push((sequence, batch.plain.slice(record)));
            sequence += 1;
        }
        (at, number) = (batch.end, number + 1);
    }
    Ok(sequence)
}

fn cut_tail(path: &Path, length: usize) -> Result<(), WalError> {
    tracing::warn!(path = %path.display(), length, "the log's tail was never synced and is dropped");
    let cut = || {
        let file = File::options().write(true).open(path)?;
        file.set_len(length as u64)?;
        file.sync_all()
    };
    cut().map_err(failed("cut the tail of", path))
}

/// Does a sound batch behind `at` say that operation `sequence` was on disk?
fn was_synced(bytes: &Bytes, at: usize, key: &SegmentKey, number: u32, sequence: u64) -> bool {
    let starts =
        (at + 1..bytes.len().saturating_sub(frame::HEADER_BYTES)).filter(|start| bytes[*start..].starts_with(b"PNDO"));
    let numbered = |start: usize| {
        let found = batch_number(bytes, start).filter(|found| *found > number)?;
        batch_at(bytes, start, key, found)
    };
    starts.filter_map(numbered).any(|batch| batch.synced >= sequence)
}

fn batch_number(bytes: &Bytes, start: usize) -> Option<u32> {
    let at = start + frame::HEADER_BYTES;
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The batch at `start`, if it is batch `number` and sound to the last bit.
fn batch_at(bytes: &Bytes, start: usize, key: &SegmentKey, number: u32) -> Option<Batch> {
    let header = bytes.get(start..start + frame::HEADER_BYTES)?;
    let length = u32::from_le_bytes(header.get(8..12)?.try_into().ok()?) as usize;
    if length > WAL_BATCH_BYTES_MAX {
        return None;
    }
    let end = start + frame::HEADER_BYTES + length;
    let (_, payload) = frame::decode(bytes.get(start..end)?, BATCH_KIND, VERSION).ok()?;
    let (found, sealed) = payload.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*found) != number {
        return None;
    }
    let plain = key.open(number, sealed).ok()?;
    let synced = u64::from_le_bytes(*plain.first_chunk()?);
    let records = record_ranges(&plain)?;
    Some(Batch { synced, plain, records, end })
}

fn record_ranges(plain: &Bytes) -> Option<Vec<Range<usize>>> {
    let (mut at, mut records) = (8, Vec::new());
    while at < plain.len() {
        let length = u32::from_le_bytes(plain.get(at..at + 4)?.try_into().ok()?) as usize;
        let record = at + 4..at + 4 + length;
        plain.get(record.clone())?;
        at = record.end;
        records.push(record);
    }
    Some(records)
}

fn decode_header(bytes: &[u8]) -> Option<Header> {
    let (_, payload) = frame::decode(bytes.get(..HEADER_FRAME_BYTES)?, HEADER_KIND, VERSION).ok()?;
    let (file, rest) = payload.split_first_chunk::<16>()?;
    let (key, rest) = rest.split_first_chunk::<8>()?;
    let (epoch, first) = rest.split_first_chunk::<16>()?;
    let first = u64::from_le_bytes(first.try_into().ok()?);
    Some(Header { file: SegmentId(*file), key: KeyId(*key), epoch: *epoch, first })
}

/// Files of the log, oldest first.
fn files(folder: &Path) -> Result<Vec<PathBuf>, WalError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed("list", folder))?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    let mut paths = paths.map_err(failed("list", folder))?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests;
