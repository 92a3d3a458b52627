//! Writers, readers and collectors at the same time, without any grace, and with a clock that makes all objects old: only leases and
//! fencing keep them apart.

use std::{
    collections::BTreeSet,
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use store::{
    Store,
    gc::{GcError, Mode, collect},
    heads::{HeadName, Heads, HeadsError, Protected},
    id::ManifestId,
    manifest::{Manifest, ManifestError},
    object::{FaultPlan, Location},
    verify::verify,
};

use crate::place::{HOUR, Place, key_of, name, realm};

const COMMITS: usize = 150;
/// About what a commit takes, so that leases end in the middle of it.
const TOO_SHORT: Duration = Duration::from_millis(20);

/// Commits to a head as a volume does: each state keeps two segments of the one before. Returns how many commits were lost.
async fn write(heads: Heads, store: Store, head: HeadName, ttl: Duration) -> usize {
    let mut lost = 0;
    for _ in 0..COMMITS {
        match commit(&heads, &store, &head, ttl).await {
            Ok(()) => {}
            // Only one whose lease is too short may lose.
            Err(HeadsError::LeaseLost(_)) if ttl == TOO_SHORT => lost += 1,
            Err(error) => panic!("{head}: {error:?}"),
        }
    }
    lost
}

async fn commit(heads: &Heads, store: &Store, head: &HeadName, ttl: Duration) -> Result<(), HeadsError> {
    let lease = heads.lease(&realm(), "writer", ttl).await?;
    let expected = heads.open_under(&lease, head).await?;
    let before = match Manifest::read(store, expected.manifest).await {
        // Without its lease, what it has opened may go.
        Err(_) if ttl == TOO_SHORT => return Err(HeadsError::LeaseLost(lease.id)),
        read => read.unwrap(),
    };
    let mut segment = store.write().await.unwrap();
    let next = ManifestId::random();
    heads.protect(&lease, &[Protected::Manifest(next), Protected::Segment(segment.id())]).await?;
    let chunk = segment.append(b"a chunk").await.unwrap();
    segment.finish().await.unwrap();
    grow_old(store, Protected::Segment(chunk.segment));
    let mut segments: BTreeSet<_> = before.segments.into_iter().take(2).collect();
    segments.insert(chunk.segment);
    let manifest = Manifest { segments, client: before.client, ..Manifest::default() };
    manifest.write(store, next).await.unwrap();
    grow_old(store, Protected::Manifest(next));
    heads.commit(&expected, next, &lease).await.map(|_| ())
}

/// The clock of the store has jumped: what was just written seems old.
fn grow_old(store: &Store, item: Protected) {
    let Location::Directory(directory) = store.objects().location() else { panic!("not a directory") };
    // It may be gone already when its writer's lease was too short.
    if let Ok(file) = File::options().write(true).open(directory.join(key_of(item))) {
        file.set_modified(SystemTime::now() - HOUR).unwrap();
    }
}

/// Opens states and reads all of their segments for as long as it has them.
async fn read(heads: Heads, store: Store, head: HeadName, done: Arc<AtomicBool>) {
    while !done.load(Relaxed) {
        let lease = heads.lease(&realm(), "reader", HOUR).await.unwrap();
        let opened = heads.open_under(&lease, &head).await.unwrap();
        let manifest = Manifest::read(&store, opened.manifest).await.unwrap();
        for segment in manifest.segments {
            tokio::task::yield_now().await;
            store.segment(segment).await.unwrap().verify().await.unwrap();
        }
        heads.release(lease).await.unwrap();
    }
}

/// Returns how often it collected.
async fn collect_all_the_time(heads: Heads, store: Store, done: Arc<AtomicBool>, removed: Arc<AtomicU64>) -> u64 {
    let mut times = 0;
    while !done.load(Relaxed) {
        match collect(&heads, &store, Mode::Remove, Duration::ZERO).await {
            Ok(report) => {
                removed.fetch_add(report.garbage.objects, Relaxed);
                times += 1;
            }
            // Heads moved on and the other collector was quicker, time and again: without any grace that may be.
            Err(GcError::Manifest { source: ManifestError::NotFound { .. }, .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    times
}

async fn race(place: &Place, collectors: Vec<Store>) {
    let (done, removed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    for head in ["steady", "hasty"] {
        place.head(head, place.manifest(None, &[]).await).await;
    }
    let (mut collecting, mut reading) = (Vec::new(), Vec::new());
    for store in collectors {
        let heads = place.more_heads().await;
        reading.push(tokio::spawn(read(heads.clone(), place.store.clone(), name("steady"), done.clone())));
        collecting.push(tokio::spawn(collect_all_the_time(heads, store, done.clone(), removed.clone())));
    }
    let steady = write(place.more_heads().await, place.store.clone(), name("steady"), HOUR);
    let hasty = write(place.more_heads().await, place.store.clone(), name("hasty"), TOO_SHORT);
    let (steady, hasty) = (tokio::spawn(steady), tokio::spawn(hasty));
    assert_eq!(steady.await.unwrap(), 0);
    let lost = hasty.await.unwrap();
    done.store(true, Relaxed);
    for reader in reading {
        reader.await.unwrap();
    }
    let mut times = Vec::new();
    for collector in collecting {
        times.push(collector.await.unwrap());
    }
    let report = verify(&place.heads, &place.store).await.unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let removed = removed.load(Relaxed);
    println!("{lost} of {COMMITS} hasty commits were lost, {removed} objects removed in {times:?} collections");
    assert!(removed > COMMITS as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_collectors_take_nothing_that_anybody_needs() {
    let place = Place::new().await;
    race(&place, vec![place.store.clone(), place.store.clone()]).await;
}

/// The commit falls into another moment of the collection each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_committed_while_a_collector_looks_is_not_garbage() {
    let place = Place::new().await;
    place.head("a", place.manifest(None, &[]).await).await;
    let latency = Duration::from_millis(15);
    let plan = FaultPlan { latency, error_rate: 0.02, lost_answer_rate: 0.02, ..FaultPlan::default() };
    let slow = place.faulty_store(plan);
    let mut during = 0;
    for delay in (0..250).step_by(10) {
        let (heads, store) = (place.heads.clone(), slow.clone());
        let collector = tokio::spawn(async move { collect(&heads, &store, Mode::Remove, Duration::ZERO).await });
        tokio::time::sleep(Duration::from_millis(delay)).await;
        commit(&place.heads, &place.store, &name("a"), HOUR).await.unwrap();
        during += usize::from(!collector.is_finished());
        collector.await.unwrap().unwrap();
        let report = verify(&place.heads, &place.store).await.unwrap();
        assert!(report.findings.is_empty(), "after {delay} ms: {:?}", report.findings);
    }
    println!("{during} commits during a collection");
    assert!(during > 5);
}
