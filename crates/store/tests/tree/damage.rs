//! Whatever happens to a node: it is refused, never believed.

use bytes::Bytes;
use store::tree::{NodeError, Tree, TreeError};

use crate::{build, entries, key, memory::Memory, numbered};

async fn refused(memory: &Memory, tree: &Tree, number: usize, damaged: Bytes) -> bool {
    let sound = memory.replace(number, damaged);
    let outcome = tree.get(memory, &key(0)).await;
    memory.replace(number, sound);
    matches!(outcome, Err(TreeError::Damaged { .. }))
}

#[tokio::test]
async fn every_truncation_and_every_bit_flip_is_refused() {
    let memory = Memory::default();
    let leaf = build(&memory, &numbered(5, 10)).await;
    let sound = memory.replace(0, Bytes::new());
    memory.replace(0, sound.clone());
    for length in 0..sound.len() {
        assert!(refused(&memory, &leaf, 0, sound.slice(..length)).await, "cut to {length}");
    }
    for bit in 0..sound.len() * 8 {
        let mut damaged = sound.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(refused(&memory, &leaf, 0, damaged.into()).await, "bit {bit}");
    }
    let longer = [&sound[..], b"\0"].concat();
    assert!(refused(&memory, &leaf, 0, longer.into()).await);
}

#[tokio::test]
async fn a_node_in_the_place_of_another_is_refused() {
    let memory = Memory::default();
    let tree = build(&memory, &numbered(2_000, 30)).await;
    let root = memory.written() - 1;
    let leaf = memory.replace(1, Bytes::new());
    memory.replace(1, leaf.clone());
    assert!(refused(&memory, &tree, 0, leaf.clone()).await, "a leaf for another leaf");
    assert!(refused(&memory, &tree, root, leaf).await, "a leaf for the root");
    assert_eq!(entries(&memory, &tree, &Bytes::new(), None).await.len(), 2_000);
}

#[tokio::test]
async fn a_reference_says_what_it_refers_to_or_is_refused() {
    let memory = Memory::default();
    let tree = build(&memory, &numbered(2_000, 30)).await;
    let encoded = tree.encode();
    assert_eq!((encoded.len(), Tree::decode(&encoded).unwrap()), (Tree::ENCODED_BYTES, tree));
    for length in 1..encoded.len() {
        assert!(Tree::decode(&encoded[..length]).is_err(), "cut to {length}");
    }
    assert!(Tree::decode(&[&encoded[..], b"\0"].concat()).is_err());
    let mut higher = encoded.clone();
    higher[0] += 1;
    let outcome = Tree::decode(&higher).unwrap().get(&memory, &key(0)).await;
    let expected = |source: &NodeError| matches!(source, NodeError::Height { found: 1, expected: 2 });
    assert!(matches!(&outcome, Err(TreeError::Damaged { source, .. }) if expected(source)), "{outcome:?}");
    higher[0] = u8::MAX;
    assert!(Tree::decode(&higher).is_err());
}
