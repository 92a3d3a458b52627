//! What outlives this node: checkpoints, in the object store, named by heads.
//!
//! ```text
//! head "checkpoint/NAME" -> manifest -> client bytes: `Checkpoint` -> chunks in segments
//!                                                        |- state: the program apart from its memory (`process::ProgramState`)
//!                                                        |- memory: root of a page image (`memory`)
//!                                                        `- layers: file changes, topmost first (`sandbox::pack_layer`)
//!                                                        A checkpoint of files only has neither state nor memory.
//! head "paused/ID" -> manifest -> client bytes: `Paused`, a `Checkpoint` with whose it is
//! ```
//!
//! Everything here blocks: it runs on threads of its own, beside the asynchronous node.

mod blob;
pub mod check;
mod checkpoint;
mod encoded;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hot;
pub mod nouns;
mod pages;
mod paused;
pub mod transfer;
mod volumes;
mod writing;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use base::limits::RECORD_BYTES_MAX;
use futures::{StreamExt, stream};
use peers::{Directory, Peers};
use store::{
    Store,
    cache::Cache,
    chunks::Peer,
    heads::{Head, Heads},
    id::{ManifestId, Realm},
    keys::{MasterKeys, RealmKeys},
    object::{Location, Objects, RequestOptions},
};
use tokio::runtime::Handle;

use error::Storing;

pub use blob::BlobRef;
pub use checkpoint::{
    Checkpoint, Counts, Included, Program, heads_of, known_pages, name_in, name_of, pack_layer, page_reader,
    write_bytes,
};
pub use error::{Error, Result};
pub use hot::HotPages;
pub use pages::{Opener, PageImageRoots};
pub use paused::{Mounted, Paused, lost_race};
pub use volumes::StoreOpener;
pub use writing::Writing;

/// The variable that holds the master keys, if no file is named.
const MASTER_KEYS_VARIABLE: &str = "PANDO_MASTER_KEYS";

/// Most manifests of a list that are read at once: each may be a round trip to the store.
const READ_PARALLEL: usize = 16;

/// Where durable things are.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whose they are: what belongs to other realms of the same store is neither seen nor opened.
    pub realm: Realm,
    /// Objects; none: a directory of the node's state.
    pub objects: Option<Location>,
    /// Address of the database of heads; none: a file in the node's state.
    pub database: Option<String>,
    /// File of the master keys; none: the environment, else a file in the node's state.
    pub master_keys: Option<PathBuf>,
    /// Most bytes of the local cache.
    pub cache_bytes: u64,
    /// Who is asked before the object store.
    pub peers: PeerSettings,
}

/// Other nodes that are asked for chunks.
#[derive(Debug, Clone, Default)]
pub struct PeerSettings {
    /// Their addresses, `HOST:PORT`.
    pub given: Vec<String>,
    /// Whether those that the database names are asked, too.
    pub found: bool,
}

/// The durable store of one realm, opened.
#[derive(Clone)]
pub struct Durable {
    /// Objects, keys and cache.
    pub store: Store,
    /// Names.
    pub heads: Heads,
    /// None: nobody is asked.
    pub peers: Option<Arc<Peers>>,
}

impl Durable {
    /// Opens the store and makes sure that objects and heads belong together.
    ///
    /// `state_dir`: of the node, for what is not elsewhere. `node`: the id of the node, by which others know it.
    pub async fn open(settings: &Settings, state_dir: &Path, node: &str) -> Result<Self> {
        let own = state_dir.join("store");
        std::fs::create_dir_all(&own).storing("make the store's directory")?;
        let location = settings.objects.clone().unwrap_or_else(|| Location::Directory(own.join("objects")));
        let objects = Objects::open(&location, RequestOptions::default()).storing("open the object store")?;
        let heads = match &settings.database {
            Some(url) => Heads::open(url).await,
            None => Heads::open_file(&own.join("heads.db")).await,
        };
        let heads = heads.storing("open the database of heads")?;
        store::gc::bind(&heads, &objects).await.storing("use this object store with this database")?;
        let keys = match &settings.master_keys {
            Some(file) => MasterKeys::from_file(file),
            None if std::env::var_os(MASTER_KEYS_VARIABLE).is_some() => {
                MasterKeys::from_environment(MASTER_KEYS_VARIABLE)
            }
            None => MasterKeys::from_file(&own.join("master.keys")),
        };
        let keys = Arc::new(keys.storing("read the master keys")?);
        let keys = RealmKeys::new(objects.clone(), keys, settings.realm.clone());
        let cache = Cache::open(&own.join("cache"), settings.cache_bytes).storing("open the cache")?;
        let peers = open_peers(settings, &heads, node).await?;
        let asked = peers.clone().map(|peers| peers as Arc<dyn Peer>);
        let store = Store::new(objects, keys, Some(cache), asked);
        tokio::spawn(preload_keys(store.clone()));
        Ok(Self { store, heads, peers })
    }

    /// Every head of the realm whose name begins so, by name, with what `read` makes of its manifest.
    pub async fn read_below<T, F: Future<Output = Result<T>>>(
        &self,
        prefix: &str,
        read: impl Fn(ManifestId) -> F,
    ) -> Result<Vec<(Head, Result<T>)>> {
        let reads = self.heads_below(prefix).await?.into_iter().map(|head| {
            let reading = read(head.manifest);
            async { (head, reading.await) }
        });
        Ok(stream::iter(reads).buffered(READ_PARALLEL).collect().await)
    }

    async fn heads_below(&self, prefix: &str) -> Result<Vec<Head>> {
        let mut found: Vec<Head> = Vec::new();
        loop {
            let after = found.last().map(|head| &head.name);
            let mut more =
                self.heads.list(self.store.realm(), prefix, after).await.storing("list what the store has")?;
            if more.is_empty() {
                return Ok(found);
            }
            found.append(&mut more);
        }
    }

    /// Where the nodes of the realm name themselves, as seen by `node`.
    pub fn directory(&self, node: &str) -> Directory {
        Directory { heads: self.heads.clone(), realm: self.store.realm().clone(), own: node.to_owned() }
    }

    /// A reader of page images, for threads that may block.
    pub fn chunks(&self, runtime: &Handle) -> Chunks {
        Chunks { store: self.store.clone(), runtime: runtime.clone() }
    }
}

/// Two requests that the first restore does not wait for.
async fn preload_keys(store: Store) {
    if let Err(error) = store.keys().preload().await {
        tracing::warn!(error = base::error::chain(&error), "the keys of the store cannot be read yet");
    }
}

async fn open_peers(settings: &Settings, heads: &Heads, node: &str) -> Result<Option<Arc<Peers>>> {
    let PeerSettings { given, found } = &settings.peers;
    if given.is_empty() && !found {
        return Ok(None);
    }
    let peers = Peers::new(given);
    if *found {
        let directory = Directory { heads: heads.clone(), realm: settings.realm.clone(), own: node.to_owned() };
        directory.follow(&peers, given.clone()).await;
    }
    Ok(Some(peers))
}

/// Chunks of page images, out of the store. Blocks: never from a thread of the runtime.
#[derive(Clone)]
pub struct Chunks {
    store: Store,
    runtime: Handle,
}

impl memory::ChunkSource for Chunks {
    fn read(&self, id: &memory::ChunkId) -> std::result::Result<Vec<u8>, memory::BoxError> {
        let chunk = store::segment::ChunkRef::decode(id.as_bytes())?;
        Ok(self.runtime.block_on(self.store.read(&chunk))?.into())
    }

    fn read_many(&self, ids: &[memory::ChunkId]) -> std::result::Result<Vec<Vec<u8>>, memory::BoxError> {
        let chunks: std::result::Result<Vec<_>, _> =
            ids.iter().map(|id| store::segment::ChunkRef::decode(id.as_bytes())).collect();
        let read = self.runtime.block_on(self.store.read_many(&chunks?))?;
        Ok(read.into_iter().map(Vec::from).collect())
    }
}

/// What a reader would refuse for its length is not written.
fn readable(framed: Vec<u8>) -> std::result::Result<Vec<u8>, String> {
    match framed.len() <= RECORD_BYTES_MAX {
        true => Ok(framed),
        false => Err(format!("its description has {} bytes, more than {RECORD_BYTES_MAX}", framed.len())),
    }
}
