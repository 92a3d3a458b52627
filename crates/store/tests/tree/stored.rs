//! A tree in sealed segments in a directory.

use std::sync::Arc;

use store::{
    Store,
    keys::{MasterKeys, RealmKeys},
    object::Objects,
    tree::{Batch, Builder, apply},
};

use crate::{changes, entries, key, numbered};

#[tokio::test]
async fn a_tree_is_read_and_changed_in_segments() {
    let directory = tempfile::tempdir().unwrap();
    let objects = Objects::open(&directory.path().to_str().unwrap().parse().unwrap(), Default::default()).unwrap();
    let master = MasterKeys::parse(&format!("test:{}", "5a".repeat(32)), "the test").unwrap();
    let keys = RealmKeys::new(objects.clone(), Arc::new(master), "default".parse().unwrap());
    let store = Store::new(objects, keys, None, None);

    let model = numbered(20_000, 30);
    let mut segment = store.write().await.unwrap();
    let mut builder = Builder::new(&mut segment);
    for (key, value) in &model {
        builder.push(key.clone(), value.clone()).await.unwrap();
    }
    let first = builder.finish().await.unwrap();
    segment.finish().await.unwrap();
    let all: Vec<_> = model.clone().into_iter().collect();
    let before = store.objects().counters().requests;
    assert_eq!(entries(&store, &first, &key(0), None).await, all);
    // 70 nodes, in the order of a scan.
    let requests = store.objects().counters().requests - before;
    assert!(requests < 20, "{requests} requests");

    let mut segment = store.write().await.unwrap();
    let batch = Batch::from([(key(7), None), (key(9), Some("nine".into()))]);
    let second = apply(&store, &mut segment, &first, &batch).await.unwrap();
    assert_eq!(segment.finish().await.unwrap().chunks, 2);
    let changed = changes(&store, &first, &second).await;
    assert_eq!(changed.iter().map(|change| change.key.clone()).collect::<Vec<_>>(), [key(7), key(9)]);
    assert_eq!(changed[1].after, Some("nine".into()));
}
