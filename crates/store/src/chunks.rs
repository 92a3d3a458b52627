//! Reading chunks: each from the nearest place that has it, asked for once however many wait.
//!
//! ```text
//!   read(chunk) ─ one flight per chunk ─ cache ─ peer ─ object store ─ open ─ into the cache
//! ```
//!
//! What comes from anywhere is opened before it is believed. A cached or a peer's chunk that does not open counts as absent; the object
//! store is asked twice before a chunk is called damaged, because a bit may also flip on the way.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::{BoxFuture, join_all};

use crate::{
    cache::Cache,
    id::{Realm, SegmentId},
    keys::{KeyError, RealmKeys},
    object::{ObjectError, Objects},
    seal::{self, SegmentKey},
    segment::{ChunkRef, SegmentError, SegmentReader, SegmentWriter, object_key},
};

mod flights;
mod ranges;

use flights::Flights;
use ranges::{Range, SharedRange};

/// Another node, asked before the object store.
#[async_trait]
pub trait Peer: Send + Sync {
    /// The sealed bytes of `chunk`, if a peer has them, in bounded time. The realm's keys show that the asker may ask. What is answered is
    /// checked here.
    async fn fetch(&self, keys: &RealmKeys, chunk: &ChunkRef) -> Option<Bytes>;

    /// What was answered for `chunk` did not open.
    fn was_broken(&self, chunk: &ChunkRef);
}

/// Why a chunk could not be read. Cheap to clone: all that waited for the chunk get it.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum ChunkError {
    #[error("the reference of chunk {chunk} is not one that a writer makes")]
    Impossible { chunk: ChunkRef },
    #[error("chunk {chunk} could not be fetched")]
    Object { chunk: ChunkRef, source: Arc<ObjectError> },
    #[error("the key of chunk {chunk} is not to be had")]
    Key { chunk: ChunkRef, source: Arc<KeyError> },
    #[error("chunk {chunk} does not open: it is damaged, or of another place or realm than its reference says")]
    Damaged { chunk: ChunkRef },
}

/// Where chunks came from since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadCounters {
    /// From the local cache.
    pub cached: u64,
    /// From a peer.
    pub from_peers: u64,
    /// Sealed bytes of these.
    pub peer_bytes: u64,
    /// From the object store.
    pub fetched: u64,
    /// Answers, from anywhere, that did not open and were thrown away.
    pub broken: u64,
}

/// The chunks of one realm; clones share everything.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    objects: Objects,
    keys: Arc<RealmKeys>,
    cache: Option<Arc<Cache>>,
    peer: Option<Arc<dyn Peer>>,
    flights: Flights,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    cached: AtomicU64,
    from_peers: AtomicU64,
    peer_bytes: AtomicU64,
    fetched: AtomicU64,
    broken: AtomicU64,
}

impl Store {
    /// The chunks of the realm whose keys these are.
    pub fn new(objects: Objects, keys: RealmKeys, cache: Option<Arc<Cache>>, peer: Option<Arc<dyn Peer>>) -> Self {
        let keys = Arc::new(keys);
        let inner = Inner { objects, keys, cache, peer, flights: Flights::default(), counts: Counts::default() };
        Self { inner: Arc::new(inner) }
    }

    /// The object store behind it.
    pub fn objects(&self) -> &Objects {
        &self.inner.objects
    }

    /// The same store without cache and peers: what is read by it is what is stored.
    pub fn uncached(&self) -> Self {
        let Inner { objects, keys, .. } = &*self.inner;
        let (objects, keys, flights, counts) = (objects.clone(), keys.clone(), Flights::default(), Counts::default());
        Self { inner: Arc::new(Inner { objects, keys, cache: None, peer: None, flights, counts }) }
    }

    /// The realm's keys.
    pub fn keys(&self) -> &RealmKeys {
        &self.inner.keys
    }

    /// The cache before it.
    pub fn cache(&self) -> Option<&Arc<Cache>> {
        self.inner.cache.as_ref()
    }

    /// The realm.
    pub fn realm(&self) -> &Realm {
        self.inner.keys.realm()
    }

    /// Where chunks came from.
    pub fn counters(&self) -> ReadCounters {
        let counts = &self.inner.counts;
        ReadCounters {
            cached: counts.cached.load(Relaxed),
            from_peers: counts.from_peers.load(Relaxed),
            peer_bytes: counts.peer_bytes.load(Relaxed),
            fetched: counts.fetched.load(Relaxed),
            broken: counts.broken.load(Relaxed),
        }
    }

    /// Begins a segment.
    pub async fn write(&self) -> Result<SegmentWriter, KeyError> {
        let key = self.inner.keys.current().await?;
        Ok(SegmentWriter::new(&self.inner.objects, self.realm(), &key))
    }

    /// Reads the index of a segment, to verify it or to count its chunks.
    pub async fn segment(&self, id: SegmentId) -> Result<SegmentReader<'_>, SegmentError> {
        SegmentReader::open(&self.inner.objects, &self.inner.keys, id).await
    }

    /// The plain bytes of `chunk`.
    pub async fn read(&self, chunk: &ChunkRef) -> Result<Bytes, ChunkError> {
        self.read_by(chunk, None).await
    }

    /// The plain bytes of `chunks`, in their order. Neighbours that are not cached are fetched by one request. All are held in memory.
    pub async fn read_many(&self, chunks: &[ChunkRef]) -> Result<Vec<Bytes>, ChunkError> {
        if let Some(chunk) = chunks.iter().find(|chunk| !chunk.is_possible()) {
            return Err(ChunkError::Impossible { chunk: *chunk });
        }
        let absent = match &self.inner.cache {
            None => chunks.to_vec(),
            Some(cache) => {
                let present = cache.present(self.realm(), chunks).await;
                chunks.iter().zip(present).filter(|(_, present)| !present).map(|(chunk, _)| *chunk).collect()
            }
        };
        let ranges = ranges::coalesce(absent);
        let reads = chunks.iter().map(|chunk| self.read_by(chunk, ranges::find(&ranges, chunk)));
        join_all(reads).await.into_iter().collect()
    }

    /// The sealed bytes of `chunk` if they are on this node: what a peer is answered.
    pub async fn sealed(&self, chunk: &ChunkRef) -> Option<Bytes> {
        match &self.inner.cache {
            Some(cache) => cache.get(self.realm(), chunk).await,
            None => None,
        }
    }

    async fn read_by(&self, chunk: &ChunkRef, range: Option<Arc<SharedRange>>) -> Result<Bytes, ChunkError> {
        if !chunk.is_possible() {
            return Err(ChunkError::Impossible { chunk: *chunk });
        }
        self.inner.flights.join(*chunk, self.inner.obtain(*chunk, range)).await
    }
}

impl Inner {
    async fn obtain(&self, chunk: ChunkRef, range: Option<Arc<SharedRange>>) -> Result<Bytes, ChunkError> {
        if let Some(plain) = self.look_in_cache(&chunk).await? {
            return Ok(plain);
        }
        if let Some(plain) = self.ask_peer(&chunk).await? {
            return Ok(plain);
        }
        let alone: BoxFuture<_> = Box::pin(self.fetch(Range::of(&chunk)));
        let first: BoxFuture<_> = match range {
            Some(range) => Box::pin(async move { range.slice(&chunk, |range| self.fetch(range)).await }),
            None => Box::pin(self.fetch(Range::of(&chunk))),
        };
        for attempt in [first, alone] {
            let sealed = attempt.await.map_err(|source| ChunkError::Object { chunk, source })?;
            if let Some(plain) = self.open(&chunk, &sealed).await? {
                self.counts.fetched.fetch_add(1, Relaxed);
                self.keep(&chunk, sealed);
                return Ok(plain);
            }
        }
        Err(ChunkError::Damaged { chunk })
    }

    async fn look_in_cache(&self, chunk: &ChunkRef) -> Result<Option<Bytes>, ChunkError> {
        let Some(cache) = &self.cache else { return Ok(None) };
        let Some(sealed) = cache.get(self.keys.realm(), chunk).await else { return Ok(None) };
        let plain = self.open(chunk, &sealed).await?;
        if plain.is_none() {
            cache.forget(self.keys.realm(), chunk).await;
        }
        self.counts.cached.fetch_add(u64::from(plain.is_some()), Relaxed);
        Ok(plain)
    }

    async fn ask_peer(&self, chunk: &ChunkRef) -> Result<Option<Bytes>, ChunkError> {
        let Some(peer) = &self.peer else { return Ok(None) };
        let Some(sealed) = peer.fetch(&self.keys, chunk).await else { return Ok(None) };
        let plain = self.open(chunk, &sealed).await?;
        if plain.is_some() {
            self.counts.from_peers.fetch_add(1, Relaxed);
            self.counts.peer_bytes.fetch_add(sealed.len() as u64, Relaxed);
            self.keep(chunk, sealed);
        } else {
            peer.was_broken(chunk);
        }
        Ok(plain)
    }

    async fn fetch(&self, range: Range) -> Result<Bytes, Arc<ObjectError>> {
        let object = object_key(self.keys.realm(), range.segment);
        self.objects.get_range(&object, range.start..range.end).await.map_err(Arc::new)
    }

    fn keep(&self, chunk: &ChunkRef, sealed: Bytes) {
        if let Some(cache) = &self.cache {
            cache.put(self.keys.realm(), chunk, sealed);
        }
    }

    /// None if the seal is broken, or names a key that this realm does not have.
    async fn open(&self, chunk: &ChunkRef, sealed: &Bytes) -> Result<Option<Bytes>, ChunkError> {
        let plain = match seal::key_id(sealed) {
            Err(seal::BrokenSeal) => None,
            Ok(id) => match self.keys.get(id).await {
                Err(KeyError::UnknownKey { .. }) => None,
                Err(source) => return Err(ChunkError::Key { chunk: *chunk, source: Arc::new(source) }),
                Ok(key) => SegmentKey::derive(&key, self.keys.realm(), chunk.segment).open(chunk.number, sealed).ok(),
            },
        };
        self.counts.broken.fetch_add(u64::from(plain.is_none()), Relaxed);
        Ok(plain)
    }
}
