//! What operations on a large tree write and read.

use bytes::Bytes;
use store::{
    limits::{TREE_NODE_BYTES, TREE_NODE_BYTES_MIN, TREE_READ_AHEAD},
    tree::{Batch, Builder, Tree, TreeError, apply},
};

use crate::{
    applied, build, changes, entries, key,
    memory::{Memory, Writer},
    numbered,
};

const ENTRIES: u32 = 100_000;

#[tokio::test]
async fn a_change_writes_one_path_and_a_diff_reads_two() {
    let memory = Memory::default();
    let tree = build(&memory, &numbered(ENTRIES, 30)).await;
    let levels = 3;
    for number in [0, ENTRIES / 2, ENTRIES - 1] {
        let before = memory.written();
        memory.take_reads();
        let changed = applied(&memory, &tree, &Batch::from([(key(number), Some("new".into()))])).await;
        assert_eq!((memory.written() - before, memory.take_reads().nodes), (levels, levels));
        let found = changes(&memory, &tree, &changed).await;
        assert_eq!((found.len(), &found[0].key), (1, &key(number)));
        assert_eq!(memory.take_reads().nodes, 2 * levels);
        assert_eq!(changed.get(&memory, &key(number)).await.unwrap(), Some("new".into()));
        assert_eq!(memory.take_reads().nodes, levels);
    }
}

#[tokio::test]
async fn a_diff_reads_what_was_inserted_and_removed_and_not_its_neighbours() {
    let memory = Memory::default();
    let tree = build(&memory, &numbered(ENTRIES, 30)).await;
    // A leaf splits into several, and a stretch of leaves goes.
    let inserted =
        (0..2_000).map(|number| (Bytes::from(format!("{}-{number:04}", "key-000000030000")), Some("x".into())));
    let removed = (70_000..74_000).map(|number| (key(number), None));
    let changed = applied(&memory, &tree, &inserted.chain(removed).collect()).await;
    memory.take_reads();
    assert_eq!(changes(&memory, &tree, &changed).await.len(), 6_000);
    let reads = memory.take_reads().nodes;
    assert!(reads < 50, "{reads} of {} nodes", memory.written());
}

#[tokio::test]
async fn nodes_are_full_after_a_bulk_load_and_never_nearly_empty_after_changes() {
    let memory = Memory::default();
    let mut tree = build(&memory, &numbered(ENTRIES, 30)).await;
    let sizes = memory.sizes_from(0);
    let full = sizes.iter().filter(|&&size| size > TREE_NODE_BYTES * 9 / 10).count();
    assert!(full * 100 >= sizes.len() * 98, "{full} of {} nodes are full", sizes.len());
    let first = memory.written();
    for round in 0..40 {
        let changed = (0..ENTRIES / 40).map(|step| (key(step * 40 + round), (round % 4 == 0).then(|| "less".into())));
        tree = applied(&memory, &tree, &changed.collect()).await;
    }
    assert_eq!(entries(&memory, &tree, &Bytes::new(), None).await.len(), ENTRIES as usize / 4);
    // The root may be small.
    let small = memory.sizes_from(first).into_iter().filter(|&size| size < TREE_NODE_BYTES_MIN).count();
    assert!(small <= 40, "{small} small nodes");
}

#[tokio::test]
async fn a_long_scan_takes_few_requests_and_a_short_one_few_nodes() {
    let memory = Memory::default();
    let tree = build(&memory, &numbered(ENTRIES, 30)).await;
    memory.take_reads();
    assert_eq!(entries(&memory, &tree, &Bytes::new(), None).await.len(), ENTRIES as usize);
    let reads = memory.take_reads();
    assert_eq!(reads.nodes, memory.written());
    assert!(reads.requests < reads.nodes / TREE_READ_AHEAD + 16, "{} requests", reads.requests);
    assert_eq!(entries(&memory, &tree, &key(50_000), Some(&key(50_010))).await.len(), 10);
    let reads = memory.take_reads();
    assert!(reads.nodes <= 6, "{} nodes", reads.nodes);
}

#[tokio::test]
async fn a_tree_that_loses_everything_is_the_empty_one_and_one_that_loses_nearly_everything_gets_low() {
    let memory = Memory::default();
    let tree = build(&memory, &numbered(ENTRIES, 30)).await;
    let none = applied(&memory, &tree, &(0..ENTRIES).map(|number| (key(number), None)).collect()).await;
    assert_eq!((none, none.encode()), (Tree::EMPTY, vec![]));
    let mut one = applied(&memory, &tree, &(1..ENTRIES).map(|number| (key(number), None)).collect()).await;
    for round in 0..3 {
        one = applied(&memory, &one, &Batch::from([(key(0), Some(format!("{round}").into()))])).await;
    }
    memory.take_reads();
    assert_eq!(one.get(&memory, &key(0)).await.unwrap(), Some("2".into()));
    assert_eq!(memory.take_reads().nodes, 1);
}

#[tokio::test]
async fn what_is_too_long_or_out_of_order_is_refused() {
    let memory = Memory::default();
    let mut writer = Writer(&memory);
    let (long_key, long_value) = (Bytes::from(vec![b'k'; 1025]), Bytes::from(vec![b'v'; 32_769]));
    for (key, value) in [(long_key, Some(Bytes::new())), ("k".into(), Some(long_value))] {
        let refused = apply(&memory, &mut writer, &Tree::EMPTY, &Batch::from([(key, value)])).await;
        assert!(matches!(refused, Err(TreeError::TooLong { .. })), "{refused:?}");
    }
    let mut builder = Builder::new(&mut writer);
    builder.push("b".into(), Bytes::new()).await.unwrap();
    for key in ["b", "a"] {
        assert!(matches!(builder.push(key.into(), Bytes::new()).await, Err(TreeError::Order)));
    }
}
