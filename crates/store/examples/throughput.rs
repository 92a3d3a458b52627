//! Measures sealing, opening and whole reads and writes of segments:
//! `cargo run --release -p pando-store --example throughput -- [LOCATION]` (a directory, or a bucket: see `scripts/s3.sh`).

use std::{sync::Arc, time::Instant};

use store::{
    Store,
    cache::Cache,
    keys::{MasterKeys, RealmKeys},
    object::{Location, Objects, RequestOptions},
    segment::ChunkRef,
};

const CHUNK: usize = 256 << 10;
const CHUNKS: usize = 2048;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir_in("target")?;
    let text = std::env::args().nth(1).or_else(|| std::env::var("PANDO_TEST_S3").ok());
    let location = match text {
        Some(text) => text.parse()?,
        None => Location::Directory(folder.path().join("objects")),
    };
    let objects = Objects::open(&location, RequestOptions::default())?;
    let masters = Arc::new(MasterKeys::parse(&format!("bench:{}", "ab".repeat(32)), "the benchmark")?);
    let open = |cache: Option<Arc<Cache>>| {
        let keys = RealmKeys::new(objects.clone(), masters.clone(), "bench".parse().expect("a good name"));
        Store::new(objects.clone(), keys, cache, None)
    };
    println!("{location}: {CHUNKS} chunks of {} KiB", CHUNK >> 10);
    let mut plain = vec![0; CHUNK];
    fastrand::fill(&mut plain);

    let store = open(None);
    let mut writer = store.write().await?;
    let began = Instant::now();
    let mut chunks = Vec::new();
    for _ in 0..CHUNKS {
        chunks.push(writer.append(&plain).await?);
    }
    let segment = writer.finish().await?;
    report("seal and write, durable", began, CHUNKS);

    let began = Instant::now();
    store.segment(segment.id).await?.verify().await?;
    report("verify the segment", began, CHUNKS);
    one_by_one("read one by one, no cache", &store, &chunks).await?;
    let began = Instant::now();
    for group in chunks.chunks(128) {
        store.read_many(group).await?;
    }
    report("read 128 together, no cache", began, CHUNKS);

    let cached = open(Some(Cache::open(&folder.path().join("cache"), 4 << 30)?));
    one_by_one("read one by one into the cache", &cached, &chunks).await?;
    // The disk may have been too slow to keep them all; what it kept is measured.
    cached.cache().ok_or("it has a cache")?.settle().await;
    let before = cached.counters().cached;
    one_by_one("read one by one from the cache", &cached, &chunks).await?;
    println!("{} of them were cached; {:?}", cached.counters().cached - before, objects.counters());
    Ok(())
}

async fn one_by_one(what: &str, store: &Store, chunks: &[ChunkRef]) -> Result<(), Box<dyn std::error::Error>> {
    let began = Instant::now();
    for chunk in chunks {
        store.read(chunk).await?;
    }
    report(what, began, chunks.len());
    Ok(())
}

fn report(what: &str, began: Instant, count: usize) {
    let seconds = began.elapsed().as_secs_f64();
    let megabytes = (count * CHUNK) as f64 / 1e6;
    println!("{what:32} {:7.0} MB/s {:7.0} us/chunk", megabytes / seconds, seconds * 1e6 / count as f64);
}
