//! Nodes that share a store in a directory, with heads in SQLite beside it.

use std::{path::Path, sync::Arc, time::Duration};

use proptest::prelude::ProptestConfig;
use store::{
    Store, gc,
    heads::{Head, Heads, Protected},
    id::ManifestId,
    keys::{MasterKeys, RealmKeys},
    manifest::Manifest,
    object::{FaultInjector, FaultPlan, Objects, RequestOptions},
};
use tokio::runtime::Runtime;
use volume::{Engine, Ino, Kind, New, Options, ROOT, Volume, Volumes};

/// Few in each run of the tests; PROPTEST_CASES for more.
pub(crate) fn few_cases() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { 50 };
    ProptestConfig { cases, ..default }
}

pub(crate) struct Place {
    pub(crate) directory: tempfile::TempDir,
    runtime: Runtime,
    /// On the way to the objects of all nodes.
    faults: Arc<FaultInjector>,
}

impl Place {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let faults = Arc::new(FaultInjector::new(1, FaultPlan::default()));
        Self { directory: tempfile::tempdir().unwrap(), runtime, faults }
    }

    /// The volumes as node `node` sees them: it has its own disk, and its own connections.
    pub(crate) fn node(&self, node: &str) -> Volumes {
        let root = self.directory.path();
        let heads = self.runtime.block_on(Heads::open_file(&root.join("heads.db"))).unwrap();
        Volumes::new(heads, self.store(), self.runtime.handle().clone(), root.join(node))
    }

    /// The object store is away, or back.
    pub(crate) fn set_outage(&self, outage: bool) {
        self.faults.follow(FaultPlan { outage, ..FaultPlan::default() });
    }

    /// Of all requests to the object store so many fail.
    pub(crate) fn set_errors(&self, error_rate: f64) {
        self.faults.follow(FaultPlan { error_rate, ..FaultPlan::default() });
    }

    pub(crate) fn log(&self, node: &str, volume: &str) -> std::path::PathBuf {
        self.directory.path().join(node).join("test").join(volume).join("log")
    }

    /// Something of another kind that includes these states, under a name.
    pub(crate) fn keep(&self, name: &str, includes: &[ManifestId]) -> Head {
        let (store, manifest) = (self.store(), ManifestId::random());
        self.runtime.block_on(async {
            let heads = Heads::open_file(&self.directory.path().join("heads.db")).await.unwrap();
            let lease = heads.lease(store.realm(), "test", Duration::from_secs(60)).await.unwrap();
            heads.protect(&lease, &[Protected::Manifest(manifest)]).await.unwrap();
            let including = Manifest { includes: includes.iter().copied().collect(), ..Manifest::default() };
            including.write(&store, manifest).await.unwrap();
            heads.create(store.realm(), &name.parse().unwrap(), manifest, &lease).await.unwrap()
        })
    }

    /// The head of this name.
    pub(crate) fn head(&self, name: &str) -> Head {
        let store = self.store();
        self.runtime.block_on(async {
            let heads = Heads::open_file(&self.directory.path().join("heads.db")).await.unwrap();
            heads.get(store.realm(), &name.parse().unwrap()).await.unwrap()
        })
    }

    /// How many leases there are.
    pub(crate) fn leases(&self) -> usize {
        let store = self.store();
        self.runtime.block_on(async {
            let heads = Heads::open_file(&self.directory.path().join("heads.db")).await.unwrap();
            heads.leases(store.realm()).await.unwrap().len()
        })
    }

    fn store(&self) -> Store {
        let objects = self.directory.path().join("objects").to_str().unwrap().parse().unwrap();
        let options = RequestOptions { attempts: 1, ..RequestOptions::default() };
        let objects = Objects::open_faulty(&objects, options, self.faults.clone()).unwrap();
        let master = MasterKeys::parse(&format!("test:{}", "42".repeat(32)), "a test").unwrap();
        let keys = RealmKeys::new(objects.clone(), Arc::new(master), "test".parse().unwrap());
        Store::new(objects, keys, None, None)
    }

    /// A new volume, open on the first node.
    pub(crate) fn volume(&self, name: &str) -> Volume {
        let node = self.node("one");
        node.create(name, &Options::default()).unwrap();
        node.open(name).unwrap()
    }
}

/// The volumes of a node whose process may die, without faults of the store.
pub(crate) fn volumes_at(root: &Path, runtime: &Runtime) -> Volumes {
    let heads = runtime.block_on(Heads::open_file(&root.join("heads.db"))).unwrap();
    let objects = root.join("objects").to_str().unwrap().parse().unwrap();
    let objects = Objects::open(&objects, RequestOptions::default()).unwrap();
    let master = MasterKeys::parse(&format!("test:{}", "42".repeat(32)), "a test").unwrap();
    let keys = RealmKeys::new(objects.clone(), Arc::new(master), "test".parse().unwrap());
    Volumes::new(heads, Store::new(objects, keys, None, None), runtime.handle().clone(), root.join("n"))
}

pub(crate) fn file() -> New<'static> {
    new(Kind::File)
}

pub(crate) fn new(kind: Kind) -> New<'static> {
    New { kind, mode: 0o755, uid: 1000, gid: 1000, device: 0, target: b"" }
}

pub(crate) fn write_file(engine: &Engine, name: &str, data: &[u8]) -> Ino {
    let ino = engine.make(ROOT, name.as_bytes(), file()).unwrap().ino;
    engine.write(ino, 0, data, false).unwrap();
    ino
}

pub(crate) fn read_file(engine: &Engine, name: &str) -> Option<Vec<u8>> {
    let found = engine.lookup(ROOT, name.as_bytes()).ok()?;
    Some(engine.read(found.ino, 0, u32::MAX).unwrap())
}

/// All bytes of all files below a folder, to search for what must not be there.
pub(crate) fn all_bytes(folder: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => bytes.extend(all_bytes(&path)),
            false => bytes.extend(std::fs::read(path).unwrap()),
        }
    }
    bytes
}

/// What lies in the store.
impl Place {
    pub(crate) fn stored_bytes(&self) -> usize {
        all_bytes(&self.directory.path().join("objects")).len()
    }

    /// Collects garbage of any age.
    pub(crate) fn collect(&self) {
        self.runtime.block_on(async {
            let store = self.store();
            let heads = Heads::open_file(&self.directory.path().join("heads.db")).await.unwrap();
            gc::bind(&heads, store.objects()).await.unwrap();
            gc::collect(&heads, &store, gc::Mode::Remove, std::time::Duration::ZERO).await.unwrap();
        });
    }
}
