//! The log on the node's disk: what was done since the last commit, in order.
//!
//! ```text
//!   append ─ into memory, under the state's lock ─► write: sealed batch, no sync ─► sync: fdatasync, shared by all who wait
//! ```
//!
//! A file has a header and batches of records; another one is begun with each commit, and files that a commit has overtaken are removed, or used
//! again: what nobody wants synced need not come to the disk at all.
//! The layout and what a reader makes of damage are in docs/formats/volume-log.md.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use base::frame;
use store::{
    id::{KeyId, Realm, SegmentId},
    keys::DataKey,
};

use crate::{
    crash,
    error::WalError,
    limits::{WAL_BUFFER_BYTES, WAL_UNSYNCED_MAX},
    op::Record,
};

mod batch;
mod open;

#[cfg(test)]
pub(crate) use self::batch::encode_record;
use self::{
    batch::Batch,
    open::{Open, Spare},
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
    /// How large a file has to be that is used again.
    spare_bytes: u64,
}

/// Records that are in no file yet.
struct Buffer {
    batch: Batch,
    /// Number of the last operation that was appended.
    last: u64,
}

struct Log {
    open: Open,
    /// Files before the open one.
    older: Vec<Older>,
    /// What the next file is made of.
    spare: Option<Spare>,
    /// Memory of a batch that was written, for the next one.
    memory: Vec<u8>,
    /// The folder was synced since the open file is in it.
    named: bool,
    /// A write or a sync has failed: what the kernel made of the rest is not known.
    failed: bool,
}

struct Older {
    path: PathBuf,
    /// The last operation in it.
    last: u64,
    bytes: u64,
    /// As long as it is not known to be on disk.
    unsynced: Option<Arc<File>>,
}

impl From<Older> for Spare {
    fn from(Older { path, bytes, .. }: Older) -> Self {
        Self { path, bytes }
    }
}

impl Header {
    /// Sorts by the first operation.
    pub(crate) fn file_name(&self) -> String {
        format!("{:016x}-{}.wal", self.first, self.file)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let payload = [&self.file.0[..], &self.key.0, &self.epoch, &self.first.to_le_bytes()].concat();
        frame::encode(HEADER_KIND, VERSION, &payload).expect("a header has 48 bytes")
    }
}

impl Wal {
    /// Begins a log in `folder` for operations after `last`. `read` are the files that were read, each with its last
    /// one: whoever wrote them may have synced nothing.
    pub(crate) fn begin(
        folder: &Path,
        realm: &Realm,
        key: Arc<DataKey>,
        epoch: [u8; 16],
        (committed, last): (u64, u64),
        read: Vec<(PathBuf, u64)>,
    ) -> Result<Self, WalError> {
        fs::create_dir_all(folder).map_err(failed("make the folder of", folder))?;
        let few = read.iter().filter(|(_, last)| *last > committed).count() < WAL_UNSYNCED_MAX;
        let older = |(path, last): (PathBuf, u64)| {
            let file = File::open(&path).map_err(failed("open", &path))?;
            let is_needed = last > committed;
            if is_needed && !few {
                file.sync_data().map_err(failed("sync", &path))?;
            }
            let bytes = file.metadata().map_err(failed("look at", &path))?.len();
            Ok(Older { path, last, bytes, unsynced: (is_needed && few).then(|| Arc::new(file)) })
        };
        let older = read.into_iter().map(older).collect::<Result<_, _>>()?;
        let open = Open::create(folder, realm, &key, (epoch, last), None)?;
        Ok(Self {
            folder: folder.to_owned(),
            realm: realm.clone(),
            key,
            buffer: Mutex::new(Buffer { batch: Batch::default(), last }),
            log: Mutex::new(Log { open, older, spare: None, memory: Vec::new(), named: false, failed: false }),
            syncing: Mutex::new(()),
            synced: AtomicU64::new(committed),
            spare_bytes: crash::spare_bytes(),
        })
    }

    /// Has files used again from another size on.
    #[cfg(test)]
    pub(crate) fn use_again_from(&mut self, bytes: u64) {
        self.spare_bytes = bytes;
    }

    /// Appends operation `sequence`; the caller's lock keeps the order. True if it is time to [`Wal::write`].
    pub(crate) fn append(&self, sequence: u64, record: &Record<'_>) -> bool {
        let mut buffer = lock(&self.buffer);
        buffer.last = sequence;
        buffer.batch.add(record);
        buffer.batch.bytes() >= WAL_BUFFER_BYTES
    }

    /// Gives what was appended to the kernel: it survives this process from here on.
    pub(crate) fn write(&self) -> Result<(), WalError> {
        self.write_out(&mut lock(&self.log), false)
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
        let synced_older = self.sync_older()?;
        let (file, path, last) = {
            let mut log = lock(&self.log);
            // A reader that finds an older file damaged learns from this one that it was whole.
            self.write_out(&mut log, synced_older)?;
            log.open.fill_ahead();
            (log.open.file.clone(), log.open.path.clone(), log.open.last)
        };
        self.sync_file(&file, &path)?;
        if !lock(&self.log).named {
            self.sync_names()?;
        }
        self.synced.fetch_max(last, Ordering::AcqRel);
        crash::point("log synced");
        Ok(())
    }

    /// Makes durable what files before the open one have; true if there was something.
    fn sync_older(&self) -> Result<bool, WalError> {
        let unsynced = |older: &Older| Some((older.unsynced.clone()?, older.path.clone(), older.last));
        let files: Vec<(Arc<File>, PathBuf, u64)> = {
            let log = lock(&self.log);
            if log.failed {
                // The kernel tells of an error once: a second sync of the same file would succeed.
                return Err(WalError::Failed);
            }
            log.older.iter().filter_map(unsynced).collect()
        };
        let Some((_, _, through)) = files.last() else { return Ok(false) };
        files.iter().try_for_each(|(file, path, _)| self.sync_file(file, path))?;
        // Before any file says that these are on disk.
        self.sync_names()?;
        // No file becomes an older one meanwhile.
        lock(&self.log).older.iter_mut().for_each(|older| older.unsynced = None);
        self.synced.fetch_max(*through, Ordering::AcqRel);
        Ok(true)
    }

    fn sync_file(&self, file: &File, path: &Path) -> Result<(), WalError> {
        let synced = file.sync_data();
        lock(&self.log).failed |= synced.is_err();
        synced.map_err(failed("sync", path))
    }

    /// Makes durable which files there are.
    fn sync_names(&self) -> Result<(), WalError> {
        let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
        let mut log = lock(&self.log);
        log.named = synced.is_ok();
        log.failed |= synced.is_err();
        synced.map_err(failed("sync", &self.folder))
    }

    /// Goes on in a new file. Syncs nothing, unless very many files wait for it: commits fail while the store is away.
    pub(crate) fn rotate(&self) -> Result<(), WalError> {
        let _turn = lock(&self.syncing);
        if lock(&self.log).older.iter().filter(|older| older.unsynced.is_some()).count() >= WAL_UNSYNCED_MAX {
            self.sync_older()?;
        }
        let mut log = lock(&self.log);
        self.write_out(&mut log, false)?;
        if log.open.last >= log.open.header.first {
            let (epoch, last) = (log.open.header.epoch, log.open.last);
            self.begin_file(&mut log, epoch, last)?;
        }
        Ok(())
    }

    /// A commit has all up to `sequence`: files with nothing else go. As long as much is written, the largest of them becomes the next one.
    pub(crate) fn remove_through(&self, sequence: u64) -> Result<(), WalError> {
        let mut log = lock(&self.log);
        let (done, rest): (Vec<Older>, _) = log.older.drain(..).partition(|older| older.last <= sequence);
        log.older = rest;
        let mut done: Vec<Spare> = log.spare.take().into_iter().chain(done.into_iter().map(Spare::from)).collect();
        let busy = log.open.written() >= self.spare_bytes;
        if busy {
            done.sort_by_key(|spare| spare.bytes);
            log.spare = done.pop_if(|spare| spare.bytes >= self.spare_bytes);
        }
        remove_files(done.into_iter().map(|spare| spare.path))?;
        if busy { Ok(()) } else { log.open.trim() }
    }

    /// Another state begins after operation `last`, under another epoch: what was logged is of no use.
    pub(crate) fn restart(&self, epoch: [u8; 16], last: u64) -> Result<(), WalError> {
        let _turn = lock(&self.syncing);
        let mut log = lock(&self.log);
        let mut buffer = lock(&self.buffer);
        buffer.batch = Batch::default();
        buffer.last = last;
        if let Err(error) = self.begin_file(&mut log, epoch, last) {
            // What the open file promised from here on would be set aside with it.
            log.failed = true;
            return Err(error);
        }
        self.synced.store(last, Ordering::Release);
        // They go with the next commit. Until then they tell whoever comes after this process that the kernel may know what was before.
        log.older.iter_mut().for_each(|older| (older.last, older.unsynced) = (last, None));
        Ok(())
    }

    fn begin_file(&self, log: &mut Log, epoch: [u8; 16], last: u64) -> Result<(), WalError> {
        let next = Open::create(&self.folder, &self.realm, &self.key, (epoch, last), log.spare.take())?;
        let before = std::mem::replace(&mut log.open, next);
        log.named = false;
        let bytes = before.bytes();
        let unsynced = (self.synced.load(Ordering::Acquire) < before.last).then_some(before.file);
        log.older.push(Older { path: before.path, last: before.last, bytes, unsynced });
        Ok(())
    }

    /// Writes what was appended as a batch; also if it is nothing, where the batch itself is `wanted`.
    fn write_out(&self, log: &mut Log, wanted: bool) -> Result<(), WalError> {
        if log.failed {
            return Err(WalError::Failed);
        }
        let (batch, last) = {
            let mut buffer = lock(&self.buffer);
            let next = Batch::within(std::mem::take(&mut log.memory));
            (std::mem::replace(&mut buffer.batch, next), buffer.last)
        };
        if batch.bytes() == 0 && !wanted {
            return Ok(());
        }
        let sealed = batch.seal(&log.open.key, log.open.number, self.synced.load(Ordering::Acquire));
        log.open.number += 1;
        if let Err(source) = log.open.append(&sealed) {
            log.failed = true;
            return Err(failed("write", &log.open.path)(source));
        }
        log.open.last = last;
        if sealed.capacity() <= 2 * WAL_BUFFER_BYTES {
            log.memory = sealed;
        }
        crash::point("log written");
        Ok(())
    }
}

pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WalError {
    move |source| WalError::Io { action, path: path.to_owned(), source }
}

fn remove_files(files: impl IntoIterator<Item = PathBuf>) -> Result<(), WalError> {
    for path in files {
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
