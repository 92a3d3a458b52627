//! Generated batches, judged by a `BTreeMap`.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::{collection, prelude::*};
use store::tree::{Batch, Change, Tree};

use crate::{Model, applied, build, changes, entries, memory::Memory};

const KEYS: u32 = 400;

/// Few different keys, so that batches meet; long ones among them, so that few entries make a tree of several levels.
fn key() -> impl Strategy<Value = Bytes> {
    let long = |number: u32| if number.is_multiple_of(3) { 3 } else { 900 };
    (0..KEYS).prop_map(move |number| Bytes::from(format!("{number:0width$}", width = long(number))))
}

fn value() -> impl Strategy<Value = Bytes> {
    let length = prop_oneof![4 => 0..40usize, 2 => 200..900usize, 1 => 20_000..32_000usize];
    (length, any::<u8>()).prop_map(|(length, fill)| Bytes::from(vec![fill; length]))
}

fn batch() -> impl Strategy<Value = Batch> {
    let puts = collection::btree_map(key(), prop_oneof![4 => value().prop_map(Some), 1 => Just(None)], 0..120);
    let mixed = collection::btree_map(key(), prop_oneof![1 => value().prop_map(Some), 2 => Just(None)], 0..200);
    let few = collection::btree_map(key(), proptest::option::of(value()), 0..3);
    // Everything in a stretch of keys goes: nodes run empty, and levels with them.
    let cleared = (0..KEYS, 0..KEYS).prop_map(|(from, count)| {
        let all = (0..KEYS)
            .map(|number| if number.is_multiple_of(3) { format!("{number:03}") } else { format!("{number:0900}") });
        let mut keys: Vec<_> = all.collect();
        keys.sort_unstable();
        keys.into_iter().skip(from as usize).take(count as usize).map(|key| (key.into(), None)).collect()
    });
    prop_oneof![3 => puts, 2 => mixed, 2 => few, 1 => cleared]
}

fn change(model: &mut Model, batch: &Batch) {
    for (key, value) in batch {
        match value {
            Some(value) => model.insert(key.clone(), value.clone()),
            None => model.remove(key),
        };
    }
}

fn difference(before: &Model, after: &Model) -> Vec<Change> {
    let keys: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let change =
        |key: &Bytes| Change { key: key.clone(), before: before.get(key).cloned(), after: after.get(key).cloned() };
    keys.into_iter().map(change).filter(|change| change.before != change.after).collect()
}

async fn check(memory: &Memory, tree: &Tree, model: &Model, probes: &[Bytes]) {
    let all: Vec<_> = model.clone().into_iter().collect();
    assert_eq!(entries(memory, tree, &Bytes::new(), None).await, all);
    assert_eq!(*tree == Tree::EMPTY, model.is_empty());
    for probe in probes {
        assert_eq!(tree.get(memory, probe).await.unwrap().as_ref(), model.get(probe));
    }
    for pair in probes.chunks_exact(2) {
        let part: Vec<_> = all.iter().filter(|(key, _)| (&pair[0]..&pair[1]).contains(&key)).cloned().collect();
        assert_eq!(entries(memory, tree, &pair[0], Some(&pair[1])).await, part);
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_is_the_map_that_its_batches_make(
        batches in collection::vec(batch(), 1..10),
        probes in collection::vec(key(), 8),
    ) {
        run(async {
            let memory = Memory::default();
            let mut states = vec![(Tree::EMPTY, BTreeMap::new())];
            for batch in &batches {
                let (tree, mut model) = states.last().unwrap().clone();
                let tree = applied(&memory, &tree, batch).await;
                change(&mut model, batch);
                check(&memory, &tree, &model, &probes).await;
                states.push((tree, model));
            }
            // Earlier states are still what they were, and all of them differ in what their models differ in.
            let (last, last_model) = states.last().unwrap();
            for (tree, model) in &states {
                check(&memory, tree, model, &probes[..2]).await;
                assert_eq!(changes(&memory, tree, last).await, difference(model, last_model));
                assert_eq!(changes(&memory, last, tree).await, difference(last_model, model));
            }
        });
    }

    #[test]
    fn a_bulk_load_is_the_map_that_was_loaded(batches in collection::vec(batch(), 1..6), probes in collection::vec(key(), 8)) {
        run(async {
            let memory = Memory::default();
            let mut model = BTreeMap::new();
            let mut tree = Tree::EMPTY;
            for batch in &batches {
                change(&mut model, batch);
                tree = applied(&memory, &tree, batch).await;
            }
            let loaded = build(&memory, &model).await;
            check(&memory, &loaded, &model, &probes).await;
            // The same map, but dealt out to nodes in another way.
            assert_eq!(changes(&memory, &tree, &loaded).await, []);
        });
    }

    #[test]
    fn a_batch_that_changes_nothing_writes_nothing(batch in batch()) {
        run(async {
            let memory = Memory::default();
            let tree = applied(&memory, &Tree::EMPTY, &batch).await;
            let written = memory.written();
            assert_eq!(applied(&memory, &tree, &batch).await, tree);
            assert_eq!(memory.written(), written);
        });
    }
}
