//! Chunks on local disk, sealed as they are in the store, so that a lost disk betrays nothing and a damaged file is noticed.
//!
//! One file for each chunk, `REALM/SEGMENT-OFFSET-LENGTH-NUMBER`; what is there is the state, so it survives a restart, and several
//! processes may use one directory. A file appears whole (written without a name, then linked) and is never changed. The least
//! recently used go first; that order is the files' modification times, renewed on use at most once a minute.
//!
//! Writing is behind reading: whoever fetched a chunk does not wait for this disk, and a disk that cannot keep up makes the cache miss a
//! chunk, not the reader wait. What is to be written is bounded, and is found in memory meanwhile.
//!
//! Each process counts what it has added since it last looked. It looks again, and evicts down to nine tenths, when the bound could be
//! passed or it has added a sixteenth of it, so that n processes together stay within the bound and n sixteenths.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::{id::Realm, limits::CACHE_PENDING_BYTES_MAX, segment::ChunkRef, unnamed};

/// A file's time of use is renewed when it is older than this: exact enough for an order of hours, and most hits write nothing.
const USE_GRAIN: Duration = Duration::from_secs(60);

/// A directory of sealed chunks.
pub struct Cache {
    root: PathBuf,
    bytes_max: u64,
    /// Bytes in the directory when it was last looked at.
    found: AtomicU64,
    /// Bytes that this process has added since.
    added: AtomicU64,
    evicting: Mutex<()>,
    pending: Mutex<Pending>,
    settled: Notify,
}

/// Chunks that are still to be written.
#[derive(Default)]
struct Pending {
    chunks: BTreeMap<PathBuf, Bytes>,
    bytes: usize,
    /// Is someone writing them?
    writing: bool,
}

/// Why a cache could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("could not open the cache {path}")]
pub struct CacheError {
    path: PathBuf,
    source: io::Error,
}

struct Entry {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl Cache {
    /// Opens the cache in the directory `root`, which is made if it is missing, and evicts what is over `bytes_max`. The directory must
    /// be on a filesystem that knows `O_TMPFILE`.
    pub fn open(root: &Path, bytes_max: u64) -> Result<Arc<Self>, CacheError> {
        let failed = |source| CacheError { path: root.to_owned(), source };
        fs::create_dir_all(root).map_err(failed)?;
        unnamed::create(root).map_err(failed)?;
        let cache = Self {
            root: root.to_owned(),
            bytes_max,
            found: AtomicU64::new(0),
            added: AtomicU64::new(0),
            evicting: Mutex::new(()),
            pending: Mutex::new(Pending::default()),
            settled: Notify::new(),
        };
        cache.make_room().map_err(failed)?;
        Ok(Arc::new(cache))
    }

    /// Bytes in the cache, by looking: other processes add to it, too.
    pub async fn count(self: &Arc<Self>) -> io::Result<u64> {
        let cache = self.clone();
        blocking(move || Ok(entries(&cache.root)?.iter().map(|entry| entry.bytes).sum())).await.unwrap_or(Ok(0))
    }

    /// Removes all that is in it; how many bytes that were. What processes are about to add stays, and so does what they have in memory.
    pub async fn empty(self: &Arc<Self>) -> io::Result<u64> {
        let cache = self.clone();
        blocking(move || cache.remove_all()).await.unwrap_or(Ok(0))
    }

    fn remove_all(&self) -> io::Result<u64> {
        let _only = self.evicting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut removed = 0;
        for entry in entries(&self.root)? {
            remove(&entry.path)?;
            removed += entry.bytes;
        }
        self.added.store(0, Relaxed);
        self.found.store(0, Relaxed);
        Ok(removed)
    }

    /// The sealed bytes of `chunk`, unchecked but for their length.
    pub async fn get(self: &Arc<Self>, realm: &Realm, chunk: &ChunkRef) -> Option<Bytes> {
        let (path, length) = (self.path(realm, chunk), chunk.length);
        if let Some(bytes) = self.pending().chunks.get(&path) {
            return Some(bytes.clone());
        }
        blocking(move || match read(&path) {
            Ok(bytes) if bytes.len() == length as usize => Some(bytes.into()),
            // Torn by a crash of the machine.
            Ok(_) => fs::remove_file(&path).ok().and(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a cached chunk cannot be read");
                None
            }
        })
        .await
        .flatten()
    }

    /// Keeps the sealed bytes of `chunk`, soon. A cache that cannot (its disk is full or slow) is of less use, not wrong: this never fails.
    pub fn put(self: &Arc<Self>, realm: &Realm, chunk: &ChunkRef, sealed: Bytes) {
        let mut pending = self.pending();
        let bytes = pending.bytes + sealed.len();
        if sealed.len() as u64 > self.bytes_max || bytes > CACHE_PENDING_BYTES_MAX {
            return;
        }
        let path = self.path(realm, chunk);
        if pending.chunks.contains_key(&path) {
            return;
        }
        pending.chunks.insert(path, sealed);
        pending.bytes = bytes;
        if !pending.writing {
            pending.writing = true;
            let cache = self.clone();
            tokio::task::spawn_blocking(move || cache.write_pending());
        }
    }

    /// Returns when all that was put is written.
    pub async fn settle(&self) {
        loop {
            let settled = self.settled.notified();
            if !self.pending().writing {
                return;
            }
            settled.await;
        }
    }

    /// Forgets `chunk`: what the cache has of it did not open.
    pub async fn forget(self: &Arc<Self>, realm: &Realm, chunk: &ChunkRef) {
        let path = self.path(realm, chunk);
        blocking(move || fs::remove_file(path).ok()).await;
    }

    /// Which of `chunks` are probably there.
    pub(crate) async fn present(self: &Arc<Self>, realm: &Realm, chunks: &[ChunkRef]) -> Vec<bool> {
        let paths: Vec<PathBuf> = chunks.iter().map(|chunk| self.path(realm, chunk)).collect();
        let cache = self.clone();
        let there = move |path: &PathBuf| cache.pending().chunks.contains_key(path) || path.exists();
        let looked = blocking(move || paths.iter().map(there).collect()).await;
        looked.unwrap_or_else(|| vec![false; chunks.len()])
    }

    fn path(&self, realm: &Realm, chunk: &ChunkRef) -> PathBuf {
        let ChunkRef { segment, offset, length, number } = chunk;
        self.root.join(realm.as_str()).join(format!("{segment}-{offset}-{length}-{number}"))
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_pending(&self) -> Option<(PathBuf, Bytes)> {
        let mut pending = self.pending();
        let next = pending.chunks.first_key_value().map(|(path, bytes)| (path.clone(), bytes.clone()));
        pending.writing = next.is_some();
        next
    }

    fn write_pending(&self) {
        while let Some((path, sealed)) = self.next_pending() {
            if let Err(error) = self.keep(&path, &sealed) {
                tracing::warn!(root = %self.root.display(), %error, "a chunk is not cached");
            }
            let mut pending = self.pending();
            pending.chunks.remove(&path);
            pending.bytes -= sealed.len();
        }
        self.settled.notify_waiters();
    }

    fn keep(&self, path: &Path, sealed: &[u8]) -> io::Result<()> {
        let file = unnamed::create(&self.root)?;
        io::Write::write_all(&mut &file, sealed)?;
        match unnamed::link(&file, path) {
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            other => other?,
        }
        let added = self.added.fetch_add(sealed.len() as u64, Relaxed) + sealed.len() as u64;
        if self.found.load(Relaxed) + added > self.bytes_max || added > self.bytes_max / 16 {
            self.make_room()?;
        }
        Ok(())
    }

    /// Counts what is there and evicts the least recently used if it is too much.
    fn make_room(&self) -> io::Result<()> {
        let Ok(_only) = self.evicting.try_lock() else { return Ok(()) };
        self.added.store(0, Relaxed);
        let mut entries = entries(&self.root)?;
        let mut bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
        if bytes > self.bytes_max {
            entries.sort_unstable_by_key(|entry| entry.used);
            for entry in entries {
                if bytes <= self.bytes_max / 10 * 9 {
                    break;
                }
                remove(&entry.path)?;
                bytes -= entry.bytes;
            }
        }
        self.found.store(bytes, Relaxed);
        Ok(())
    }
}

/// Another process may have been faster.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The file's bytes; renews its time of use.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    let about = file.metadata()?;
    if about.modified()?.elapsed().is_ok_and(|age| age > USE_GRAIN) {
        file.set_modified(SystemTime::now())?;
    }
    let mut bytes = Vec::with_capacity(about.len() as usize);
    io::Read::read_to_end(&mut file, &mut bytes)?;
    Ok(bytes)
}

fn entries(root: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for realm in fs::read_dir(root)? {
        let realm = realm?;
        if !realm.file_type()?.is_dir() {
            continue;
        }
        for file in fs::read_dir(realm.path())? {
            let file = file?;
            // Another process may evict it meanwhile.
            let Ok(about) = file.metadata() else { continue };
            entries.push(Entry { path: file.path(), bytes: about.len(), used: about.modified()? });
        }
    }
    Ok(entries)
}

/// None if the work panicked or the runtime is going down.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
