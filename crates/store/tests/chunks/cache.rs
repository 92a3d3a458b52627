//! The local cache: bounded, checked, shared between processes, one fetch however many ask.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use store::{
    Store,
    cache::Cache,
    chunks::Peer,
    keys::RealmKeys,
    object::{FaultInjector, FaultPlan, Objects},
    segment::ChunkRef,
};

use crate::common::{directory, keys, noise, open, quick, store};

const CHUNK: usize = 10_000;

struct Fixture {
    /// Removed with the fixture.
    _folder: tempfile::TempDir,
    cache: PathBuf,
    objects: Objects,
    chunks: Vec<ChunkRef>,
}

impl Fixture {
    async fn new(count: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let objects = open(&directory(&folder.path().join("objects")));
        let mut writer = store(&objects, None).write().await.unwrap();
        let mut chunks = Vec::new();
        for number in 0..count {
            chunks.push(writer.append(&noise(number, CHUNK)).await.unwrap());
        }
        writer.finish().await.unwrap();
        Self { cache: folder.path().join("cache"), _folder: folder, objects, chunks }
    }

    fn store(&self, bytes_max: u64) -> Store {
        store(&self.objects, Some(Cache::open(&self.cache, bytes_max).unwrap()))
    }

    async fn read(&self, store: &Store, number: usize) {
        assert_eq!(store.read(&self.chunks[number]).await.unwrap(), noise(number as u64, CHUNK));
        store.cache().unwrap().settle().await;
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files
}

fn bytes_in(folder: &Path) -> u64 {
    files(folder).iter().map(|file| file.metadata().unwrap().len()).sum()
}

#[tokio::test]
async fn a_chunk_is_fetched_once_and_survives_a_restart() {
    let fixture = Fixture::new(3).await;
    let first = fixture.store(1 << 20);
    fixture.read(&first, 1).await;
    fixture.read(&first, 1).await;
    assert_eq!((first.counters().fetched, first.counters().cached), (1, 1));
    let second = fixture.store(1 << 20);
    fixture.read(&second, 1).await;
    assert_eq!((second.counters().fetched, second.counters().cached), (0, 1));
}

#[tokio::test]
async fn a_chunk_that_is_not_written_yet_is_not_fetched_again() {
    let fixture = Fixture::new(1).await;
    let store = fixture.store(1 << 20);
    for _ in 0..10 {
        store.read(&fixture.chunks[0]).await.unwrap();
    }
    assert_eq!((store.counters().fetched, store.counters().cached), (1, 9));
}

#[tokio::test]
async fn many_readers_of_one_chunk_cause_one_request() {
    let fixture = Fixture::new(1).await;
    let plan = FaultPlan { latency: Duration::from_millis(20), ..FaultPlan::default() };
    let slow =
        Objects::open_faulty(fixture.objects.location(), quick(), Arc::new(FaultInjector::new(1, plan))).unwrap();
    let store = store(&slow, Some(Cache::open(&fixture.cache, 1 << 20).unwrap()));
    store.keys().current().await.unwrap();
    let before = slow.counters().requests;
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let (store, chunk) = (store.clone(), fixture.chunks[0]);
            tokio::spawn(async move { store.read(&chunk).await.unwrap() })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), noise(0, CHUNK));
    }
    assert_eq!(slow.counters().requests - before, 1);
}

#[tokio::test]
async fn chunks_that_are_cached_are_not_in_a_common_fetch() {
    let fixture = Fixture::new(10).await;
    let store = fixture.store(1 << 20);
    fixture.read(&store, 4).await;
    let before = fixture.objects.counters();
    let read = store.read_many(&fixture.chunks).await.unwrap();
    assert!(read.iter().enumerate().all(|(number, plain)| *plain == noise(number as u64, CHUNK)));
    assert_eq!(fixture.objects.counters().requests - before.requests, 1, "the gap of one chunk is read over");
    assert_eq!((store.counters().fetched, store.counters().cached), (10, 1));
    store.read_many(&fixture.chunks).await.unwrap();
    assert_eq!(store.counters().cached, 11);
}

#[tokio::test]
async fn the_least_recently_used_go_first_and_the_bound_holds() {
    let fixture = Fixture::new(40).await;
    let bytes_max = 20 * 10_024;
    let store = fixture.store(bytes_max);
    for number in 0..20 {
        fixture.read(&store, number).await;
    }
    assert_eq!(files(&fixture.cache).len(), 20);
    let old = SystemTime::now() - Duration::from_secs(3600);
    for file in files(&fixture.cache) {
        fs::File::open(file).unwrap().set_modified(old).unwrap();
    }
    for number in [3, 5, 8] {
        fixture.read(&store, number).await;
    }
    for number in 20..32 {
        fixture.read(&store, number).await;
        assert!(bytes_in(&fixture.cache) <= bytes_max);
    }
    let before = store.counters().fetched;
    for number in [3, 5, 8] {
        fixture.read(&store, number).await;
    }
    assert_eq!(store.counters().fetched, before, "what was used lately is still there");
}

#[tokio::test]
async fn two_processes_keep_one_directory_within_its_bound() {
    let fixture = Fixture::new(40).await;
    let bytes_max = 16 * 10_024;
    let (one, other) = (fixture.store(bytes_max), fixture.store(bytes_max));
    for number in 0..40 {
        fixture.read(if number % 2 == 0 { &one } else { &other }, number).await;
        assert!(bytes_in(&fixture.cache) <= bytes_max + bytes_max / 8, "{}", bytes_in(&fixture.cache));
    }
    fixture.read(&one, 39).await;
    assert_eq!(one.counters().cached, 1, "what the other one fetched");
}

#[tokio::test]
async fn a_smaller_bound_takes_effect_at_the_next_start() {
    let fixture = Fixture::new(10).await;
    let store = fixture.store(1 << 20);
    store.read_many(&fixture.chunks).await.unwrap();
    store.cache().unwrap().settle().await;
    let bytes_max = 3 * 10_024;
    assert!(Cache::open(&fixture.cache, bytes_max).unwrap().count().await.unwrap() <= bytes_max);
    assert!(bytes_in(&fixture.cache) <= bytes_max);
}

#[tokio::test]
async fn what_another_process_has_added_is_counted_and_removed() {
    let fixture = Fixture::new(10).await;
    let (reader, other) = (fixture.store(1 << 20), fixture.store(1 << 20));
    let cache = other.cache().unwrap();
    assert_eq!(cache.count().await.unwrap(), 0);
    reader.read_many(&fixture.chunks).await.unwrap();
    reader.cache().unwrap().settle().await;
    let bytes = bytes_in(&fixture.cache);
    assert!(bytes > 0 && cache.count().await.unwrap() == bytes);
    assert_eq!(cache.empty().await.unwrap(), bytes);
    assert_eq!((bytes_in(&fixture.cache), cache.count().await.unwrap()), (0, 0));
    // It goes on.
    reader.read_many(&fixture.chunks).await.unwrap();
    reader.cache().unwrap().settle().await;
    assert_eq!(cache.count().await.unwrap(), bytes);
}

#[tokio::test]
async fn a_damaged_entry_is_dropped_and_fetched_again() {
    let fixture = Fixture::new(2).await;
    let store = fixture.store(1 << 20);
    fixture.read(&store, 0).await;
    let file = &files(&fixture.cache)[0];
    let sound = fs::read(file).unwrap();
    let mut flipped = sound.clone();
    flipped[5_000] ^= 1;
    for damaged in [&flipped[..], &sound[..100], &[], &[&sound[..], b"x"].concat()] {
        fs::write(file, damaged).unwrap();
        fixture.read(&store, 0).await;
        assert_eq!(fs::read(file).unwrap(), sound, "the sound bytes are back");
    }
    assert_eq!((store.counters().fetched, store.counters().cached), (5, 0));
    // Another chunk's bytes of the same length.
    fixture.read(&store, 1).await;
    let other = files(&fixture.cache).into_iter().find(|path| path != file).unwrap();
    fs::copy(other, file).unwrap();
    fixture.read(&store, 0).await;
    assert_eq!(fs::read(file).unwrap(), sound);
}

#[tokio::test]
async fn a_cache_that_cannot_write_does_not_stop_reading() {
    let fixture = Fixture::new(2).await;
    let store = fixture.store(1 << 20);
    fs::remove_dir_all(&fixture.cache).unwrap();
    fs::write(&fixture.cache, "not a directory").unwrap();
    fixture.read(&store, 0).await;
    fixture.read(&store, 0).await;
    assert_eq!(store.counters().fetched, 2);
}

#[derive(Default)]
struct FakePeer {
    answer: Option<Bytes>,
    asked: AtomicU64,
    broken: AtomicU64,
}

#[async_trait]
impl Peer for FakePeer {
    async fn fetch(&self, _: &RealmKeys, _: &ChunkRef) -> Option<Bytes> {
        self.asked.fetch_add(1, Relaxed);
        self.answer.clone()
    }

    fn was_broken(&self, _: &ChunkRef) {
        self.broken.fetch_add(1, Relaxed);
    }
}

#[tokio::test]
async fn a_peer_is_asked_before_the_object_store_and_not_believed() {
    let fixture = Fixture::new(1).await;
    let holder = fixture.store(1 << 20);
    fixture.read(&holder, 0).await;
    let sealed = holder.sealed(&fixture.chunks[0]).await.unwrap();
    let mut wrong = sealed.to_vec();
    wrong[9] ^= 1;
    let answers = [(Some(sealed.clone()), 1, 0, 0), (Some(wrong.into()), 0, 1, 1), (None, 0, 1, 0)];
    for (answer, from_peers, fetched, broken) in answers {
        let peer = Arc::new(FakePeer { answer, ..FakePeer::default() });
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), 1 << 20).unwrap();
        let store =
            Store::new(fixture.objects.clone(), keys(&fixture.objects, "test"), Some(cache), Some(peer.clone()));
        fixture.read(&store, 0).await;
        fixture.read(&store, 0).await;
        let counters = store.counters();
        assert_eq!((counters.from_peers, counters.fetched, counters.cached), (from_peers, fetched, 1));
        assert_eq!((peer.asked.load(Relaxed), peer.broken.load(Relaxed)), (1, broken));
        assert_eq!(counters.peer_bytes, from_peers * sealed.len() as u64);
        assert_eq!(store.sealed(&fixture.chunks[0]).await.unwrap(), sealed);
    }
}
