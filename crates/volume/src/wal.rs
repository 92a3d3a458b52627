//! The log on the node's disk: what was done since the last commit, in order.
//!
//! ```text
//!   append ─ into memory, under the state's lock ─► write: sealed batch, no sync ─► sync: fdatasync, shared by all who wait
//! ```
//!
//! A file has a header and batches of records; a new one is begun with each commit, and files that a commit has overtaken are removed.
//! The layout and what a reader makes of damage are in docs/formats/volume-log.md.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use base::frame;
use bytes::BytesMut;
use store::{
    id::{KeyId, Realm, SegmentId},
    keys::DataKey,
    seal::SegmentKey,
};

use crate::{
    crash,
    error::WalError,
    limits::{WAL_BUFFER_BYTES, WAL_FILL_BYTES, WAL_SYNCS_MIN},
    op::Record,
};

/// Kinds of frames in a log.
pub(crate) const HEADER_KIND: u16 = 0x5601;
pub(crate) const BATCH_KIND: u16 = 0x5602;
pub(crate) const VERSION: u16 = 1;

/// Bytes of a header's payload: id of the file, id of the data key, epoch, first operation.
pub(crate) const HEADER_BYTES: usize = 16 + 8 + 16 + 8;

/// What the header of a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Random and fresh: it decides the key that batches are sealed with, as a segment's id does.
    pub(crate) file: SegmentId,
    pub(crate) key: KeyId,
    pub(crate) epoch: [u8; 16],
    /// Number of the first operation.
    pub(crate) first: u64,
}

/// The log of one open volume.
pub(crate) struct Wal {
    folder: PathBuf,
    realm: Realm,
    key: Arc<DataKey>,
    buffer: Mutex<Buffer>,
    log: Mutex<Log>,
    /// Held by the one who syncs: others write on meanwhile, and whoever wants a sync waits here and shares the next.
    syncing: Mutex<()>,
    /// The last operation that is known to be on disk.
    synced: AtomicU64,
}

/// Records that are in no file yet.
struct Buffer {
    records: Vec<u8>,
    /// Number of the last operation that was appended.
    last: u64,
}

struct Log {
    open: Open,
    /// Files before the open one, with the number of the last operation in them.
    older: Vec<(PathBuf, u64)>,
    /// A write or a sync has failed: what the kernel made of the rest is not known.
    failed: bool,
}

struct Open {
    file: Arc<File>,
    /// Where the next batch goes.
    end: u64,
    /// Up to here the file has bytes: zeros from `end` on.
    filled: u64,
    syncs: u32,
    path: PathBuf,
    key: SegmentKey,
    header: Header,
    /// Number of the next batch.
    number: u32,
    /// The last operation in the file.
    last: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let payload = [&self.file.0[..], &self.key.0, &self.epoch, &self.first.to_le_bytes()].concat();
        frame::encode(HEADER_KIND, VERSION, &payload).expect("a header has 48 bytes")
    }
}

impl Wal {
    /// Begins a log in `folder` for operations after `last`. `older` are files that were replayed, whose operations are in no commit yet.
    pub(crate) fn begin(
        folder: &Path,
        realm: &Realm,
        key: Arc<DataKey>,
        epoch: [u8; 16],
        last: u64,
        older: Vec<(PathBuf, u64)>,
    ) -> Result<Self, WalError> {
        fs::create_dir_all(folder).map_err(failed("make the folder of", folder))?;
        let open = Open::create(folder, realm, &key, epoch, last)?;
        Ok(Self {
            folder: folder.to_owned(),
            realm: realm.clone(),
            key,
            buffer: Mutex::new(Buffer { records: Vec::new(), last }),
            log: Mutex::new(Log { open, older, failed: false }),
            syncing: Mutex::new(()),
            synced: AtomicU64::new(last),
        })
    }

    /// Appends operation `sequence`; the caller's lock keeps the order. True if it is time to [`Wal::write`].
    pub(crate) fn append(&self, sequence: u64, record: &Record<'_>) -> bool {
        let mut buffer = lock(&self.buffer);
        buffer.last = sequence;
        encode_record(record, &mut buffer.records);
        buffer.records.len() >= WAL_BUFFER_BYTES
    }

    /// Gives what was appended to the kernel: it survives this process from here on.
    pub(crate) fn write(&self) -> Result<(), WalError> {
        self.write_out(&mut lock(&self.log))
    }

    /// Makes all that was appended durable. Whoever waits meanwhile shares the next sync.
    pub(crate) fn sync(&self) -> Result<(), WalError> {
        let wanted = lock(&self.buffer).last;
        if self.synced.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        let _turn = lock(&self.syncing);
        if self.synced.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        let (file, last) = {
            let mut log = lock(&self.log);
            self.write_out(&mut log)?;
            log.open.fill_ahead();
            (log.open.file.clone(), log.open.last)
        };
        if let Err(source) = file.sync_data() {
            let mut log = lock(&self.log);
            log.failed = true;
            return Err(failed("sync", &log.open.path)(source));
        }
        self.synced.fetch_max(last, Ordering::AcqRel);
        crash::point("log synced");
        Ok(())
    }

    /// Goes on in a new file. All before is durable then.
    pub(crate) fn rotate(&self) -> Result<(), WalError> {
        // What there is goes to the disk while others write on; with the log locked there is little left.
        self.sync()?;
        let _turn = lock(&self.syncing);
        let mut log = lock(&self.log);
        self.sync_out(&mut log)?;
        if log.open.last >= log.open.header.first {
            let (epoch, last) = (log.open.header.epoch, log.open.last);
            self.begin_file(&mut log, epoch, last)?;
        }
        Ok(())
    }

    /// A commit has all up to `sequence`: files with nothing else go.
    pub(crate) fn remove_through(&self, sequence: u64) -> Result<(), WalError> {
        let mut log = lock(&self.log);
        let (done, rest) = log.older.drain(..).partition(|(_, last)| *last <= sequence);
        log.older = rest;
        remove_files(done)
    }

    /// Another state begins after operation `last`, under another epoch: what was logged is of no use.
    pub(crate) fn restart(&self, epoch: [u8; 16], last: u64) -> Result<(), WalError> {
        let _turn = lock(&self.syncing);
        let mut log = lock(&self.log);
        let mut buffer = lock(&self.buffer);
        buffer.records.clear();
        buffer.last = last;
        self.begin_file(&mut log, epoch, last)?;
        self.synced.store(last, Ordering::Release);
        remove_files(std::mem::take(&mut log.older))
    }

    fn begin_file(&self, log: &mut Log, epoch: [u8; 16], last: u64) -> Result<(), WalError> {
        let next = Open::create(&self.folder, &self.realm, &self.key, epoch, last)?;
        let before = std::mem::replace(&mut log.open, next);
        log.older.push((before.path, before.last));
        Ok(())
    }

    fn sync_out(&self, log: &mut Log) -> Result<(), WalError> {
        self.write_out(log)?;
        if self.synced.load(Ordering::Acquire) >= log.open.last {
            return Ok(());
        }
        if let Err(source) = log.open.file.sync_data() {
            log.failed = true;
            return Err(failed("sync", &log.open.path)(source));
        }
        self.synced.store(log.open.last, Ordering::Release);
        Ok(())
    }

    fn write_out(&self, log: &mut Log) -> Result<(), WalError> {
        if log.failed {
            return Err(WalError::Failed);
        }
        let (records, last) = {
            let mut buffer = lock(&self.buffer);
            (std::mem::take(&mut buffer.records), buffer.last)
        };
        if records.is_empty() {
            return Ok(());
        }
        let batch = encode_batch(&log.open.key, log.open.number, self.synced.load(Ordering::Acquire), &records);
        log.open.number += 1;
        if let Err(source) = log.open.append(&batch) {
            log.failed = true;
            return Err(failed("write", &log.open.path)(source));
        }
        log.open.last = last;
        crash::point("log written");
        Ok(())
    }
}

impl Open {
    /// The file and its name are durable when this returns.
    fn create(folder: &Path, realm: &Realm, key: &DataKey, epoch: [u8; 16], last: u64) -> Result<Self, WalError> {
        let header = Header { file: SegmentId::random(), key: key.id(), epoch, first: last + 1 };
        let path = folder.join(format!("{:016x}-{}.wal", header.first, header.file));
        let bytes = header.encode();
        let make = || -> io::Result<File> {
            let file = File::options().write(true).create_new(true).open(&path)?;
            file.write_all_at(&bytes, 0)?;
            file.sync_all()?;
            File::open(folder)?.sync_all()?;
            Ok(file)
        };
        let file = Arc::new(make().map_err(failed("begin", &path))?);
        let end = bytes.len() as u64;
        crash::point("log begun");
        let key = SegmentKey::derive(key, realm, header.file);
        Ok(Self { file, end, filled: end, syncs: 0, path, key, header, number: 0, last })
    }

    fn append(&mut self, batch: &[u8]) -> io::Result<()> {
        self.file.write_all_at(batch, self.end)?;
        self.end += batch.len() as u64;
        self.filled = self.filled.max(self.end);
        Ok(())
    }

    /// Writes zeros before they are reached, where syncs are frequent: a sync of bytes that are there already needs no commit of the
    /// disk's filesystem, and takes half as long. If it fails, the next batch will say so.
    fn fill_ahead(&mut self) {
        self.syncs = self.syncs.saturating_add(1);
        let wanted = self.syncs > WAL_SYNCS_MIN && self.filled - self.end < WAL_FILL_BYTES / 4;
        if wanted && self.file.write_all_at(&[0; WAL_FILL_BYTES as usize], self.filled).is_ok() {
            self.filled += WAL_FILL_BYTES;
        }
    }
}

/// Appends a record, behind its length.
pub(crate) fn encode_record(record: &Record<'_>, records: &mut Vec<u8>) {
    let start = records.len();
    records.extend_from_slice(&[0; 4]);
    let bytes = std::mem::take(records);
    *records = postcard::to_extend(record, bytes).expect("a record is made of numbers and bytes");
    let length = (records.len() - start - 4) as u32;
    records[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// A batch as the file has it: its number, then sealed: the last operation that was on disk before, and the records.
pub(crate) fn encode_batch(key: &SegmentKey, number: u32, synced: u64, records: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(8 + records.len());
    plain.extend_from_slice(&synced.to_le_bytes());
    plain.extend_from_slice(records);
    let mut payload = BytesMut::with_capacity(plain.len() + 64);
    payload.extend_from_slice(&number.to_le_bytes());
    key.seal(number, &plain, &mut payload);
    frame::encode(BATCH_KIND, VERSION, &payload).expect("a batch is shorter than 4 GiB")
}

pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WalError {
    move |source| WalError::Io { action, path: path.to_owned(), source }
}

fn remove_files(files: Vec<(PathBuf, u64)>) -> Result<(), WalError> {
    for (path, _) in files {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &path)(error)),
            _ => crash::point("log removed"),
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
