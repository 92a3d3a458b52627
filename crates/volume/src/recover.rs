//! Reading the log of a volume that was not closed, and what to make of damage.
//!
//! A crash may leave any part of what was not synced: a batch cut off, a batch missing before a whole one, also in a file that others
//! follow. That is the *tail*, and the log is dropped from its first unsound batch on; nobody was promised anything of it. But each batch
//! says up to where the disk had synced when it was written: if a sound batch behind says that the unsound one was on disk, then what was
//! promised is damaged, and the log is named and left as it is.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read},
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
    limits::{WAL_BATCH_BYTES_MAX, WAL_OVERTAKEN_MAX},
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
    /// Encoded operations that a commit has, as far as they are there.
    pub(crate) committed: Vec<Bytes>,
    /// Those behind it, with their numbers: one after the other.
    pub(crate) operations: Vec<(u64, Bytes)>,
    /// The files, each with its last operation.
    pub(crate) files: Vec<(PathBuf, u64)>,
}

/// Which epochs the files of the log in `folder` belong to. There are several from a restore until the next commit.
pub(crate) fn epochs(folder: &Path) -> Result<BTreeSet<[u8; 16]>, WalError> {
    let mut epochs = BTreeSet::new();
    for path in files(folder)? {
        epochs.extend(read_header(&path)?.map(|header| header.epoch));
    }
    Ok(epochs)
}

/// A header that is of this file.
fn read_header(path: &Path) -> Result<Option<Header>, WalError> {
    Ok(any_header(path)?.filter(|header| is_of(header, path)))
}

/// A file that was taken over from another one has a new header and a new name. After a crash of the machine it may have one of them only: then
/// it was never synced, and nothing that it was before is needed.
fn is_of(header: &Header, path: &Path) -> bool {
    path.file_name() == Some(OsStr::new(&header.file_name()))
}

fn any_header(path: &Path) -> Result<Option<Header>, WalError> {
    let mut bytes = Vec::with_capacity(HEADER_FRAME_BYTES);
    let read = File::open(path).and_then(|file| file.take(HEADER_FRAME_BYTES as u64).read_to_end(&mut bytes));
    read.map_err(failed("read", path))?;
    Ok(decode_header(&bytes))
}

/// Removes files without a sound header, of which nothing can be told.
pub(crate) fn clear(folder: &Path) -> Result<(), WalError> {
    discard(folder, &files(folder)?)
}

/// Moves the log in `folder` aside, untouched: it belongs to a state that the volume does not come from.
pub(crate) fn set_aside(folder: &Path, epoch: [u8; 16]) -> Result<PathBuf, WalError> {
    let aside = aside(folder, epoch);
    fs::rename(folder, &aside).map_err(failed("set aside", folder))?;
    Ok(aside)
}

/// Moves the files of other epochs than `epoch` aside: they are of before a restore.
pub(crate) fn set_others_aside(folder: &Path, epoch: [u8; 16]) -> Result<(), WalError> {
    for path in files(folder)? {
        let Some(other) = read_header(&path)?.map(|header| header.epoch).filter(|other| *other != epoch) else {
            continue;
        };
        let aside = aside(folder, other);
        tracing::warn!(path = %path.display(), aside = %aside.display(), "a file of the log is of before a restore: it is set aside");
        let file_name = path.file_name().unwrap_or_default();
        let moved = fs::create_dir_all(&aside).and_then(|()| fs::rename(&path, aside.join(file_name)));
        moved.map_err(failed("set aside", &path))?;
    }
    Ok(())
}

fn aside(folder: &Path, epoch: [u8; 16]) -> PathBuf {
    folder.with_extension(format!("aside-{}", base::id::hex(&epoch)))
}

/// Reads the operations, those behind `committed` without a gap. A torn tail is cut off. If it fails, nothing is changed.
pub(crate) async fn read(folder: &Path, store: &Store, committed: u64) -> Result<Recovered, WalError> {
    let mut recovered = Recovered::default();
    let (mut expected, mut begun) = (committed + 1, false);
    let (mut discarded, paths) = divide(files(folder)?, committed)?;
    let (overtaken, mut torn_at) = (discarded.split_off(discarded.len().saturating_sub(WAL_OVERTAKEN_MAX)), None);
    for path in overtaken {
        // It says what was done of requests; nothing else of it is needed, and nothing damaged there matters.
        let before = recovered.operations.len();
        if let Ok(Some(file)) = LogFile::read(&path, store).await {
            file.read_batches(&mut recovered.operations);
        }
        match recovered.operations[before..].last() {
            Some((last, _)) => recovered.files.push((path, *last)),
            None => discarded.push(path),
        }
    }
    for (at, path) in paths.iter().enumerate() {
        let Some(file) = LogFile::read(path, store).await? else {
            // What was in it is missing before the next one.
            discarded.push(path.clone());
            continue;
        };
        let first = file.header.first;
        if first > expected || (first < expected && begun) {
            if first < expected || say_synced(&paths[at..], store, expected.max(committed + 1)).await? {
                return Err(WalError::Gap { path: path.clone(), expected, found: first });
            }
            tracing::warn!(path = %path.display(), expected, "what is missing before this file was never synced: it is dropped");
            discarded.extend_from_slice(&paths[at..]);
            break;
        }
        begun = true;
        let (next, torn) = file.read_batches(&mut recovered.operations);
        expected = next;
        if next == first {
            // Nothing is in it, and the next file will begin with the same operation.
            discarded.push(path.clone());
        } else {
            recovered.files.push((path.clone(), next - 1));
        }
        if let Some((offset, number)) = torn
            && !begins_with(paths.get(at + 1), next)?
        {
            // What a commit has need not be here.
            let missing = next.max(committed + 1);
            let rest = file.says_synced(offset + 1, Some(number), missing);
            if rest || say_synced(&paths[at + 1..], store, missing).await? {
                return Err(WalError::Damaged { path: path.clone(), offset });
            }
            discarded.extend_from_slice(&paths[at + 1..]);
            torn_at = (next > first).then(|| (path.clone(), offset));
            break;
        }
    }
    discard(folder, &discarded)?;
    if let Some((path, offset)) = torn_at {
        cut_tail(&path, offset)?;
    }
    let (before, behind): (Vec<_>, _) =
        recovered.operations.into_iter().partition(|(sequence, _)| *sequence <= committed);
    recovered.committed = before.into_iter().map(|(_, record)| record).collect();
    recovered.operations = behind;
    Ok(recovered)
}

/// Does this file begin with operation `first`? Then nothing is missing before it: what is behind the last batch of the one before is what
/// that file was before it was taken over.
fn begins_with(path: Option<&PathBuf>, first: u64) -> Result<bool, WalError> {
    let header = path.map(|path| read_header(path)).transpose()?;
    Ok(header.flatten().is_some_and(|header| header.first == first))
}

/// Files that end before operation `committed` or with it, and the others: a crash may bring one back that was removed, and not all of it.
fn divide(mut paths: Vec<PathBuf>, committed: u64) -> Result<(Vec<PathBuf>, Vec<PathBuf>), WalError> {
    let mut first = 0;
    for (at, path) in paths.iter().enumerate() {
        if read_header(path)?.is_some_and(|header| header.first <= committed + 1) {
            first = at;
        }
    }
    let rest = paths.split_off(first);
    Ok((paths, rest))
}

/// Removes files that a log does not go on from: the last one first, so that what a crash leaves of them is still a log's end. None comes back
/// beside what is written from here on. One with more in it than a crash leaves of what was never synced is kept under another name.
fn discard(folder: &Path, paths: &[PathBuf]) -> Result<(), WalError> {
    for path in paths.iter().rev() {
        let header = any_header(path)?;
        if header.is_some_and(|header| !is_of(&header, path)) {
            tracing::warn!(path = %path.display(), "a file of the log that was being taken over is removed");
        }
        if header.is_none() && has_content(path)? {
            tracing::warn!(path = %path.display(), "a file of the log without a sound header is kept as .unsound");
            fs::rename(path, path.with_extension("unsound")).map_err(failed("rename", path))?;
        } else {
            fs::remove_file(path).map_err(failed("remove", path))?;
        }
    }
    if paths.is_empty() {
        return Ok(());
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("sync", folder))
}

/// Is there more than zeros where batches would be?
fn has_content(path: &Path) -> Result<bool, WalError> {
    let bytes = fs::read(path).map_err(failed("read", path))?;
    Ok(bytes.iter().skip(HEADER_FRAME_BYTES).any(|byte| *byte != 0))
}

/// Does a sound batch of one of these files say that operation `sequence` was on disk?
async fn say_synced(paths: &[PathBuf], store: &Store, sequence: u64) -> Result<bool, WalError> {
    for path in paths {
        if LogFile::read(path, store).await?.is_some_and(|file| file.says_synced(0, None, sequence)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A file of the log.
struct LogFile {
    header: Header,
    key: SegmentKey,
    bytes: Bytes,
}

impl LogFile {
    /// `None` without a sound header of its own.
    async fn read(path: &Path, store: &Store) -> Result<Option<Self>, WalError> {
        let bytes = Bytes::from(fs::read(path).map_err(failed("read", path))?);
        let Some(header) = decode_header(&bytes).filter(|header| is_of(header, path)) else { return Ok(None) };
        let key = store.keys().get(header.key).await;
        let key = key.map_err(|source| WalError::Key { path: path.to_owned(), source: source.into() })?;
        let key = SegmentKey::derive(&key, store.realm(), header.file);
        Ok(Some(Self { header, key, bytes }))
    }

    /// Adds the operations up to the first unsound batch. Gives the number of the one behind the last, and where the unsound batch is and
    /// its number.
    fn read_batches(&self, operations: &mut Vec<(u64, Bytes)>) -> (u64, Option<(usize, u32)>) {
        let (mut at, mut number, mut sequence) = (HEADER_FRAME_BYTES, 0, self.header.first);
        while at < self.bytes.len() {
            let Some(batch) = self.batch_at(at, number) else {
                // Zeros were filled ahead. If there was something, its operations are missing before those of the next file.
                let filled = self.bytes[at..].iter().all(|byte| *byte == 0);
                return (sequence, (!filled).then_some((at, number)));
            };
            for record in batch.records {
                operations.push((sequence, batch.plain.slice(record)));
                sequence += 1;
            }
            (at, number) = (batch.end, number + 1);
        }
        (sequence, None)
    }

    /// Does a sound batch at `from` or behind it, with a number above `number`, say that operation `sequence` was on disk?
    fn says_synced(&self, from: usize, number: Option<u32>, sequence: u64) -> bool {
        let end = self.bytes.len().saturating_sub(frame::HEADER_BYTES);
        (from..end).filter(|start| self.bytes[*start..].starts_with(b"PNDO")).any(|start| {
            let found = self.batch_number(start).filter(|found| number.is_none_or(|number| *found > number));
            found.and_then(|found| self.batch_at(start, found)).is_some_and(|batch| batch.synced >= sequence)
        })
    }

    fn batch_number(&self, start: usize) -> Option<u32> {
        let at = start + frame::HEADER_BYTES;
        Some(u32::from_le_bytes(self.bytes.get(at..at + 4)?.try_into().ok()?))
    }

    /// The batch at `start`, if it is batch `number` and sound to the last bit.
    fn batch_at(&self, start: usize, number: u32) -> Option<Batch> {
        let header = self.bytes.get(start..start + frame::HEADER_BYTES)?;
        let length = u32::from_le_bytes(header.get(8..12)?.try_into().ok()?) as usize;
        if length > WAL_BATCH_BYTES_MAX {
            return None;
        }
        let end = start + frame::HEADER_BYTES + length;
        let (_, payload) = frame::decode(self.bytes.get(start..end)?, BATCH_KIND, VERSION).ok()?;
        let (found, sealed) = payload.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*found) != number {
            return None;
        }
        let plain = self.key.open(number, sealed).ok()?;
        let synced = u64::from_le_bytes(*plain.first_chunk()?);
        let records = record_ranges(&plain)?;
        Some(Batch { synced, plain, records, end })
    }
}

fn cut_tail(path: &Path, length: usize) -> Result<(), WalError> {
    tracing::info!(path = %path.display(), length, "the log ends here: what follows was never synced, or is of before");
    // Durable with the next sync, which syncs this file, too; until then the disk may have what it had.
    let cut = File::options().write(true).open(path).and_then(|file| file.set_len(length as u64));
    cut.map_err(failed("cut the tail of", path))
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
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
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
