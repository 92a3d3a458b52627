//! Reads of a volume's tree and data, for threads that wait.

use std::{
    collections::HashMap,
    num::NonZeroUsize,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use lru::LruCache;
use store::{
    Store,
    segment::ChunkRef,
    tree::{NodeRead, NodeStoreError, Scan, Tree},
};
use tokio::runtime::Handle;

use crate::{
    VolumeError, chunk,
    key::Key,
    limits::{CHUNKS_OPEN, NODES_OPEN, PAGE_KEYS},
    state::Page,
};

type Opened = Mutex<LruCache<ChunkRef, Bytes>>;

/// The store, with what was read lately. Its functions block: they are not for threads of the runtime.
pub(crate) struct Loader {
    store: Store,
    runtime: Handle,
    nodes: Opened,
    chunks: Opened,
}

impl Loader {
    pub(crate) fn new(store: Store, runtime: Handle) -> Self {
        let opened = |count| Mutex::new(LruCache::new(NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN)));
        Self { store, runtime, nodes: opened(NODES_OPEN), chunks: opened(CHUNKS_OPEN) }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Keys of one inode from `from` on.
    pub(crate) fn page(&self, tree: &Tree, from: Key) -> Result<Page, VolumeError> {
        self.runtime.block_on(self.scan(tree, from))
    }

    async fn scan(&self, tree: &Tree, from: Key) -> Result<Page, VolumeError> {
        let (first, end) = (Bytes::copy_from_slice(&from.encode()), Bytes::copy_from_slice(&from.end()));
        let mut scan = Scan::new(self, tree, first, Some(end));
        let mut page = Page::default();
        while page.entries.len() < PAGE_KEYS {
            let next = scan.next().await.map_err(VolumeError::store("read the volume's tree"))?;
            let Some(entry) = next else {
                page.whole = true;
                break;
            };
            let key = Key::decode(&entry.key).ok_or(VolumeError::Damaged { what: "a key" })?;
            page.entries.push((key, entry.value));
        }
        Ok(page)
    }

    /// The data of these chunks.
    pub(crate) async fn data(&self, chunks: &[ChunkRef]) -> Result<HashMap<ChunkRef, Bytes>, VolumeError> {
        let mut data = HashMap::with_capacity(chunks.len());
        let mut missing = Vec::new();
        {
            let mut opened = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
            for chunk in chunks {
                match opened.get(chunk) {
                    Some(bytes) => drop(data.insert(*chunk, bytes.clone())),
                    None => missing.push(*chunk),
                }
            }
        }
        missing.sort_unstable();
        missing.dedup();
        let read = self.store.read_many(&missing).await.map_err(VolumeError::store("read a file's data"))?;
        let mut opened = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        for (chunk, bytes) in missing.into_iter().zip(read) {
            let bytes = chunk::decode(&bytes).ok_or(VolumeError::Damaged { what: "a chunk of data" })?;
            opened.put(chunk, bytes.clone());
            data.insert(chunk, bytes);
        }
        Ok(data)
    }
}

impl NodeRead for Loader {
    async fn read_many(&self, chunks: &[ChunkRef]) -> Result<Vec<Bytes>, NodeStoreError> {
        let mut found: Vec<Option<Bytes>> = {
            let mut opened = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            chunks.iter().map(|chunk| opened.get(chunk).cloned()).collect()
        };
        let absent = |(chunk, found): (&ChunkRef, &Option<Bytes>)| found.is_none().then_some(*chunk);
        let missing: Vec<ChunkRef> = chunks.iter().zip(&found).filter_map(absent).collect();
        if !missing.is_empty() {
            let mut read = self.store.read_many(&missing).await?.into_iter();
            let mut opened = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            for (chunk, slot) in chunks.iter().zip(&mut found).filter(|(_, slot)| slot.is_none()) {
                *slot = read.next();
                if let Some(bytes) = slot {
                    opened.put(*chunk, bytes.clone());
                }
            }
        }
        found.into_iter().collect::<Option<_>>().ok_or_else(|| "the store left a node out".into())
    }
}
