//! A store in a directory, with heads in SQLite beside it.

use std::{
    fs::{self, File},
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use store::{
    Store, gc,
    heads::{Head, HeadName, Heads, Lease, Protected},
    id::{ManifestId, Realm, SegmentId},
    keys::{MasterKeys, RealmKeys},
    manifest::{self, Manifest},
    object::{FaultInjector, FaultPlan, Objects},
    segment,
    tree::{Batch, Tree, apply},
};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) struct Place {
    directory: tempfile::TempDir,
    pub(crate) heads: Heads,
    pub(crate) store: Store,
}

impl Place {
    pub(crate) async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let heads = Heads::open_file(&directory.path().join("heads.db")).await.unwrap();
        let objects = directory.path().join("objects").to_str().unwrap().parse().unwrap();
        let objects = Objects::open(&objects, Default::default()).unwrap();
        gc::bind(&heads, &objects).await.unwrap();
        Self { directory, heads, store: store_of(objects) }
    }

    /// The same store, reached by a bad road.
    pub(crate) fn faulty_store(&self, plan: FaultPlan) -> Store {
        let faults = Arc::new(FaultInjector::new(1, plan));
        let location = self.store.objects().location();
        store_of(Objects::open_faulty(location, Default::default(), faults).unwrap())
    }

    /// Connections of their own, as another node has them.
    pub(crate) async fn more_heads(&self) -> Heads {
        Heads::open_file(&self.directory.path().join("heads.db")).await.unwrap()
    }

    pub(crate) async fn lease(&self) -> Lease {
        self.heads.lease(&realm(), "test", HOUR).await.unwrap()
    }

    /// A segment with one chunk, kept by nothing.
    pub(crate) async fn segment(&self, text: &str) -> SegmentId {
        let mut segment = self.store.write().await.unwrap();
        segment.append(text.as_bytes()).await.unwrap();
        segment.finish().await.unwrap().id
    }

    /// A manifest with these segments, kept by nothing.
    pub(crate) async fn manifest(&self, parent: Option<ManifestId>, segments: &[SegmentId]) -> ManifestId {
        let manifest = Manifest { parent, segments: segments.iter().copied().collect(), ..Manifest::default() };
        let id = ManifestId::random();
        manifest.write(&self.store, id).await.unwrap();
        id
    }

    /// A manifest that includes these, kept by nothing.
    pub(crate) async fn manifest_including(&self, includes: &[ManifestId]) -> ManifestId {
        let manifest = Manifest { includes: includes.iter().copied().collect(), ..Manifest::default() };
        let id = ManifestId::random();
        manifest.write(&self.store, id).await.unwrap();
        id
    }

    /// A manifest with a tree of `batch`, in a segment of its own.
    pub(crate) async fn manifest_with_tree(&self, batch: &Batch) -> (ManifestId, SegmentId) {
        let mut segment = self.store.write().await.unwrap();
        let tree = apply(&self.store, &mut segment, &Tree::EMPTY, batch).await.unwrap();
        let segment = segment.finish().await.unwrap().id;
        let manifest = Manifest { trees: vec![tree], segments: [segment].into(), ..Manifest::default() };
        let id = ManifestId::random();
        manifest.write(&self.store, id).await.unwrap();
        (id, segment)
    }

    pub(crate) async fn head(&self, text: &str, manifest: ManifestId) -> Head {
        let lease = self.lease().await;
        self.heads.protect(&lease, &[Protected::Manifest(manifest)]).await.unwrap();
        self.heads.create(&realm(), &name(text), manifest, &lease).await.unwrap()
    }

    pub(crate) fn file(&self, key: &str) -> PathBuf {
        self.directory.path().join("objects").join(key)
    }

    pub(crate) fn has(&self, item: Protected) -> bool {
        self.file(&key_of(item)).exists()
    }

    /// Lets an object seem to be written that long ago.
    pub(crate) fn date(&self, key: &str, written: SystemTime) {
        File::options().write(true).open(self.file(key)).unwrap().set_modified(written).unwrap();
    }

    /// Flips a bit in the middle of an object.
    pub(crate) fn damage(&self, key: &str) {
        let mut bytes = fs::read(self.file(key)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(self.file(key), bytes).unwrap();
    }

    pub(crate) async fn put(&self, key: &str) {
        self.store.objects().put(key, Bytes::from_static(b"something")).await.unwrap();
    }
}

fn store_of(objects: Objects) -> Store {
    let master = MasterKeys::parse(&format!("test:{}", "5a".repeat(32)), "the test").unwrap();
    let keys = RealmKeys::new(objects.clone(), Arc::new(master), realm());
    Store::new(objects, keys, None, None)
}

pub(crate) fn key_of(item: Protected) -> String {
    match item {
        Protected::Manifest(id) => manifest::object_key(&realm(), id),
        Protected::Segment(id) => segment::object_key(&realm(), id),
    }
}

pub(crate) fn realm() -> Realm {
    "default".parse().unwrap()
}

pub(crate) fn name(text: &str) -> HeadName {
    text.parse().unwrap()
}
