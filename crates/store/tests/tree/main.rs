//! Trees against a reference model, and what they cost.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cost;
mod damage;
mod memory;
mod model;
mod stored;

use std::collections::BTreeMap;

use bytes::Bytes;
use store::tree::{Batch, Builder, Change, Diff, NodeRead, Scan, Tree, apply};

use memory::{Memory, Writer};

pub(crate) type Model = BTreeMap<Bytes, Bytes>;

pub(crate) async fn build(memory: &Memory, model: &Model) -> Tree {
    let mut writer = Writer(memory);
    let mut builder = Builder::new(&mut writer);
    for (key, value) in model {
        builder.push(key.clone(), value.clone()).await.unwrap();
    }
    builder.finish().await.unwrap()
}

pub(crate) async fn applied(memory: &Memory, tree: &Tree, batch: &Batch) -> Tree {
    apply(memory, &mut Writer(memory), tree, batch).await.unwrap()
}

pub(crate) async fn entries(
    store: &impl NodeRead,
    tree: &Tree,
    from: &Bytes,
    to: Option<&Bytes>,
) -> Vec<(Bytes, Bytes)> {
    let mut scan = Scan::new(store, tree, from.clone(), to.cloned());
    let mut entries = Vec::new();
    while let Some(entry) = scan.next().await.unwrap() {
        entries.push((entry.key, entry.value));
    }
    assert_eq!(scan.next().await.unwrap(), None);
    entries
}

pub(crate) async fn changes(store: &impl NodeRead, before: &Tree, after: &Tree) -> Vec<Change> {
    let mut diff = Diff::new(store, before, after);
    let mut changes = Vec::new();
    while let Some(change) = diff.next().await.unwrap() {
        changes.push(change);
    }
    changes
}

/// `count` entries with keys of equal length and values of `value_bytes`.
pub(crate) fn numbered(count: u32, value_bytes: usize) -> Model {
    (0..count).map(|number| (key(number), Bytes::from(vec![number as u8; value_bytes]))).collect()
}

pub(crate) fn key(number: u32) -> Bytes {
    Bytes::from(format!("key-{number:012}"))
}
