//! What must hold over every kind of object store.

use std::sync::Arc;

use bytes::Bytes;
use store::{
    limits::PART_BYTES,
    object::{FaultInjector, FaultPlan, Location, ObjectError, Objects, RequestOptions},
};

use crate::common::{noise, open, quick, store};

pub(crate) async fn objects_are_created_once_and_read_back(location: &Location) {
    let objects = open(location);
    let bytes = Bytes::from(noise(1, 100_000));
    objects.put("a/one", bytes.clone()).await.unwrap();
    objects.put("a/b/two", Bytes::from_static(b"2")).await.unwrap();
    let again = objects.put("a/one", Bytes::from_static(b"other")).await;
    assert!(matches!(again, Err(ObjectError::AlreadyExists { .. })), "{again:?}");

    assert_eq!(objects.get("a/one", 100_000).await.unwrap(), bytes);
    assert_eq!(objects.get_range("a/one", 10..20).await.unwrap(), bytes[10..20]);
    assert_eq!(objects.get_tail("a/one", 7).await.unwrap(), (bytes.slice(99_993..), 100_000));
    assert_eq!(objects.get_tail("a/b/two", 7).await.unwrap(), (Bytes::from_static(b"2"), 1));
    assert_eq!(objects.head("a/one").await.unwrap().bytes, 100_000);
    let large = objects.get("a/one", 99_999).await;
    assert!(matches!(large, Err(ObjectError::TooLarge { bytes: 100_000, .. })), "{large:?}");
    let before = objects.counters().requests;
    let short = objects.get_range("a/one", 99_999..100_001).await;
    assert!(matches!(short, Err(ObjectError::TooShort { bytes: 100_000, .. })), "{short:?}");
    assert!(objects.get_range("a/one", 100_000..100_001).await.is_err());
    assert_eq!(objects.counters().requests - before, 2, "what the object does not have is not asked for again");
    objects.put("a/empty", Bytes::new()).await.unwrap();
    assert_eq!(objects.get("a/empty", 1).await.unwrap(), Bytes::new());
    objects.delete("a/empty").await.unwrap();

    let mut keys: Vec<_> = objects.list("a").await.unwrap().into_iter().map(|meta| (meta.key, meta.bytes)).collect();
    keys.sort();
    assert_eq!(keys, [("a/b/two".to_owned(), 1), ("a/one".to_owned(), 100_000)]);
    assert_eq!(objects.list("nothing").await.unwrap(), []);

    objects.delete("a/one").await.unwrap();
    objects.delete("a/one").await.unwrap();
    let gone = objects.get("a/one", 1).await;
    assert!(matches!(gone, Err(ObjectError::NotFound { .. })), "{gone:?}");
    let gone = objects.head("a/one").await;
    assert!(matches!(gone, Err(ObjectError::NotFound { .. })), "{gone:?}");
}

pub(crate) async fn a_stream_of_several_parts_is_one_object(location: &Location) {
    let objects = open(location);
    let bytes = noise(2, 2 * PART_BYTES + 12_345);
    let mut upload = objects.upload("stream");
    for piece in bytes.chunks(1_000_000) {
        upload.write(piece).await.unwrap();
        assert!(objects.head("stream").await.is_err(), "visible before it is finished");
    }
    assert_eq!(upload.finish().await.unwrap(), bytes.len() as u64);
    assert_eq!(objects.get("stream", u64::MAX).await.unwrap(), bytes);

    let mut second = objects.upload("stream");
    second.write(&bytes).await.unwrap();
    let refused = second.finish().await;
    assert!(matches!(refused, Err(ObjectError::AlreadyExists { .. })), "{refused:?}");
    assert_eq!(objects.get("stream", u64::MAX).await.unwrap(), bytes);
}

pub(crate) async fn an_interrupted_upload_leaves_nothing_to_read(location: &Location) {
    let objects = open(location);
    let mut upload = objects.upload("interrupted");
    upload.write(&noise(3, 2 * PART_BYTES + 5)).await.unwrap();
    drop(upload);
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(matches!(objects.head("interrupted").await, Err(ObjectError::NotFound { .. })));
    assert_eq!(objects.list("").await.unwrap(), []);
}

pub(crate) async fn chunks_are_read_alone_and_together(location: &Location) {
    let store = store(&open(location), None);
    let mut writer = store.write().await.unwrap();
    let plain: Vec<Vec<u8>> = (0..100).map(|number| noise(number, 1 + number as usize * 4_001)).collect();
    let mut chunks = Vec::new();
    for plain in &plain {
        chunks.push(writer.append(plain).await.unwrap());
    }
    assert!(store.read(&chunks[0]).await.is_err(), "readable before it is finished");
    let segment = writer.finish().await.unwrap();
    assert_eq!(
        store.objects().head(&store::segment::object_key(store.realm(), segment.id)).await.unwrap().bytes,
        segment.bytes
    );

    assert_eq!(store.read(&chunks[7]).await.unwrap(), plain[7]);
    let before = store.objects().counters().requests;
    let together = store.read_many(&chunks).await.unwrap();
    assert!(together.iter().zip(&plain).all(|(read, plain)| read == plain));
    assert_eq!(store.objects().counters().requests - before, 3, "20 MB in ranges of at most 8 MiB");

    let reader = store.segment(segment.id).await.unwrap();
    assert_eq!(reader.chunks(), chunks);
    reader.verify().await.unwrap();
}

pub(crate) async fn a_lost_answer_to_a_write_is_not_a_second_write(location: &Location) {
    let plan = FaultPlan { lost_answer_rate: 0.4, ..FaultPlan::default() };
    let faults = Arc::new(FaultInjector::new(4, plan));
    let objects = Objects::open_faulty(location, RequestOptions { attempts: 40, ..quick() }, faults.clone()).unwrap();
    for number in 0..20 {
        objects.put(&format!("small/{number}"), noise(number, 1000).into()).await.unwrap();
    }
    let large = noise(5, PART_BYTES + 1);
    for number in 0..3 {
        let mut upload = objects.upload(&format!("large/{number}"));
        upload.write(&large).await.unwrap();
        upload.finish().await.unwrap();
    }
    assert!(faults.injected() > 5, "{}", faults.injected());
    let refused = objects.put("small/0", Bytes::from_static(b"other")).await;
    assert!(matches!(refused, Err(ObjectError::AlreadyExists { .. })), "{refused:?}");
    assert_eq!(open(location).get("small/7", 1000).await.unwrap(), noise(7, 1000));
    assert_eq!(open(location).get("large/2", u64::MAX).await.unwrap(), large);
}
