//! A store that is slow, wrong or absent.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use store::{
    chunks::ChunkError,
    limits::PART_BYTES,
    object::{FaultInjector, FaultPlan, ObjectError, Objects, RequestOptions},
};

use crate::common::{directory, noise, open, quick, store};

fn faulty(folder: &std::path::Path, options: RequestOptions, plan: FaultPlan) -> (Objects, Arc<FaultInjector>) {
    let faults = Arc::new(FaultInjector::new(1, plan));
    (Objects::open_faulty(&directory(folder), options, faults.clone()).unwrap(), faults)
}

#[tokio::test]
async fn transient_failures_and_throttling_are_ridden_out() {
    let folder = tempfile::tempdir().unwrap();
    let plan = FaultPlan {
        error_rate: 0.2,
        throttle_rate: 0.1,
        truncate_rate: 0.1,
        corrupt_rate: 0.02,
        ..FaultPlan::default()
    };
    let (objects, faults) = faulty(folder.path(), RequestOptions { attempts: 20, ..quick() }, plan);
    let store = store(&objects, None);
    let mut writer = store.write().await.unwrap();
    let plain = noise(1, 100_000);
    let mut chunks = Vec::new();
    for _ in 0..200 {
        chunks.push(writer.append(&plain).await.unwrap());
    }
    let segment = writer.finish().await.unwrap();
    for chunk in &chunks {
        assert_eq!(store.read(chunk).await.unwrap(), plain);
    }
    let counters = objects.counters();
    assert!(faults.injected() > 50 && counters.retries > 50, "{} {counters:?}", faults.injected());
    assert!(counters.errors >= counters.retries && counters.requests > counters.errors, "{counters:?}");
    assert!(counters.bytes_out >= segment.bytes && counters.bytes_in >= 200 * 100_000, "{counters:?}");
}

#[tokio::test]
async fn an_outage_ends_in_a_clear_error_and_passes() {
    let folder = tempfile::tempdir().unwrap();
    let (objects, faults) = faulty(folder.path(), quick(), FaultPlan::default());
    let store = store(&objects, None);
    let mut writer = store.write().await.unwrap();
    let chunk = writer.append(b"plain").await.unwrap();
    writer.finish().await.unwrap();

    faults.follow(FaultPlan { outage: true, ..FaultPlan::default() });
    let error = objects.put("new", "x".into()).await.unwrap_err();
    let said = error.to_string();
    assert!(said.starts_with("the object store did not write new in 8 attempts over "), "{said}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("connection refused"), "{cause}");
    // Everyone who waits for the chunk hears it, once.
    let before = objects.counters().requests;
    let (first, second) = tokio::join!(store.read(&chunk), store.read(&chunk));
    for outcome in [first, second] {
        let Err(ChunkError::Object { source, .. }) = outcome else { panic!("{outcome:?}") };
        assert!(matches!(*source, ObjectError::Unavailable { attempts: 8, .. }), "{source:?}");
    }
    assert_eq!(objects.counters().requests - before, 8);

    faults.follow(FaultPlan::default());
    assert_eq!(store.read(&chunk).await.unwrap(), "plain");
}

#[tokio::test]
async fn an_outage_in_the_middle_of_an_upload_leaves_nothing_to_read() {
    let folder = tempfile::tempdir().unwrap();
    let (objects, faults) = faulty(folder.path(), quick(), FaultPlan::default());
    let mut upload = objects.upload("large");
    upload.write(&noise(1, PART_BYTES)).await.unwrap();
    faults.follow(FaultPlan { outage: true, ..FaultPlan::default() });
    upload.write(&noise(2, PART_BYTES)).await.unwrap();
    let failed = upload.finish().await;
    assert!(matches!(failed, Err(ObjectError::Unavailable { .. })), "{failed:?}");
    assert_eq!(open(&directory(folder.path())).list("").await.unwrap(), []);
}

#[tokio::test]
async fn an_upload_that_lost_a_part_cannot_be_finished() {
    let folder = tempfile::tempdir().unwrap();
    let (objects, faults) = faulty(folder.path(), quick(), FaultPlan::default());
    let mut upload = objects.upload("large");
    upload.write(&noise(1, PART_BYTES)).await.unwrap();
    faults.follow(FaultPlan { outage: true, ..FaultPlan::default() });
    assert!(upload.write(&noise(1, 9 * PART_BYTES)).await.is_err());
    faults.follow(FaultPlan::default());
    assert!(upload.finish().await.is_err());
    assert_eq!(open(&directory(folder.path())).list("").await.unwrap(), []);
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let options = RequestOptions { attempts: 2, timeout: Duration::from_millis(30), ..quick() };
    let (objects, _) =
        faulty(folder.path(), options, FaultPlan { latency: Duration::from_secs(60), ..FaultPlan::default() });
    let began = Instant::now();
    let error = objects.get("a", 1).await.unwrap_err();
    assert!(matches!(error, ObjectError::Unavailable { attempts: 2, .. }), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn no_more_requests_are_under_way_than_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let latency = Duration::from_millis(20);
    let (objects, _) =
        faulty(folder.path(), RequestOptions { parallel: 2, ..quick() }, FaultPlan { latency, ..FaultPlan::default() });
    let began = Instant::now();
    futures::future::join_all((0..10).map(|_| objects.head("absent"))).await;
    assert!(began.elapsed() >= 5 * latency, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_local_failure_is_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let objects = open(&directory(folder.path()));
    // A file where a folder is wanted.
    std::fs::write(folder.path().join("file"), "x").unwrap();
    let error = objects.put("file/below", "x".into()).await.unwrap_err();
    assert!(matches!(error, ObjectError::Failed { .. }), "{error:?}");
    assert_eq!(objects.counters().requests, 1);
}

/// Not a test by itself: the process that [`a_process_killed_in_the_middle_of_an_upload_leaves_nothing`] starts and kills.
#[tokio::test]
#[ignore = "the helper of another test"]
async fn upload_until_killed() {
    let Ok(folder) = std::env::var("PANDO_TEST_UPLOAD_TO") else { return };
    let objects = open(&directory(folder.as_ref()));
    let mut upload = objects.upload("large");
    upload.write(&noise(1, 3 * PART_BYTES)).await.unwrap();
    objects.put("begun", "x".into()).await.unwrap();
    loop {
        upload.write(&noise(2, 1000)).await.unwrap();
    }
}

#[tokio::test]
async fn a_process_killed_in_the_middle_of_an_upload_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::upload_until_killed", "--ignored"])
        .env("PANDO_TEST_UPLOAD_TO", folder.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let objects = open(&directory(folder.path()));
    let began = Instant::now();
    while objects.head("begun").await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["begun"]);
}
