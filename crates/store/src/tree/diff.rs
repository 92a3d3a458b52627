//! What two states differ in.

use std::cmp::Ordering;

use bytes::Bytes;

use super::{Child, Entry, NodeRead, Tree, TreeError, load_many, node::Node};

/// A key whose value differs between two states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Bytes,
    /// Its value in the first state, if it has one there.
    pub before: Option<Bytes>,
    /// Its value in the second state, if it has one there.
    pub after: Option<Bytes>,
}

/// The changes from one state to another, in ascending order of keys. Subtrees that both have are not read, wherever they hang: states
/// that came from one another by batches cost what the batches changed.
pub struct Diff<'a, S> {
    store: &'a S,
    before: Side,
    after: Side,
}

/// What is left of a state; the next item is the last.
type Side = Vec<Item>;

enum Item {
    Subtree(Child),
    Entry(Entry),
}

/// What to do with the first items of the two sides.
enum Step {
    SkipBoth,
    Open { before: bool, after: bool },
    TakeBefore,
    TakeAfter,
    TakeBoth,
    End,
}

impl<'a, S: NodeRead> Diff<'a, S> {
    /// The changes that make `after` out of `before`.
    pub fn new(store: &'a S, before: &Tree, after: &Tree) -> Self {
        let side = |tree: &Tree| tree.child().map(Item::Subtree).into_iter().collect();
        Self { store, before: side(before), after: side(after) }
    }

    /// The next change.
    pub async fn next(&mut self) -> Result<Option<Change>, TreeError> {
        loop {
            let (before, after) = match step(self.before.last(), self.after.last()) {
                Step::End => return Ok(None),
                Step::Open { before, after } => {
                    self.open(before, after).await?;
                    continue;
                }
                Step::SkipBoth => {
                    self.before.pop();
                    self.after.pop();
                    continue;
                }
                Step::TakeBefore => (take(&mut self.before), None),
                Step::TakeAfter => (None, take(&mut self.after)),
                Step::TakeBoth => (take(&mut self.before), take(&mut self.after)),
            };
            let Some(key) = before.as_ref().or(after.as_ref()).map(|entry| entry.key.clone()) else { return Ok(None) };
            let (before, after) = (before.map(|entry| entry.value), after.map(|entry| entry.value));
            if before != after {
                return Ok(Some(Change { key, before, after }));
            }
        }
    }

    /// Reads the first subtree of one side or both, and puts what it holds in its place.
    async fn open(&mut self, before: bool, after: bool) -> Result<(), TreeError> {
        let mut sides = Vec::new();
        let mut children = Vec::new();
        for side in [before.then_some(&mut self.before), after.then_some(&mut self.after)].into_iter().flatten() {
            if let Some(Item::Subtree(child)) = side.pop_if(|item| matches!(item, Item::Subtree(_))) {
                children.push(child);
                sides.push(side);
            }
        }
        for (side, node) in sides.into_iter().zip(load_many(self.store, &children).await?) {
            side.extend(items(&node));
        }
        Ok(())
    }
}

/// Items of a node, the first one last.
fn items(node: &Node) -> Vec<Item> {
    let item = |entry: &Entry| match node.child(entry) {
        Some(child) => Item::Subtree(child),
        None => Item::Entry(entry.clone()),
    };
    node.entries.iter().rev().map(item).collect()
}

fn take(side: &mut Side) -> Option<Entry> {
    match side.pop() {
        Some(Item::Entry(entry)) => Some(entry),
        Some(Item::Subtree(_)) | None => None,
    }
}

/// A subtree is opened only when the other side has reached its smallest key. Then equal subtrees meet with nothing of theirs opened,
/// even when they hang at different places.
fn step(before: Option<&Item>, after: Option<&Item>) -> Step {
    match (before, after) {
        (None, None) => Step::End,
        (Some(Item::Entry(_)), None) => Step::TakeBefore,
        (None, Some(Item::Entry(_))) => Step::TakeAfter,
        (Some(Item::Subtree(_)), None) => Step::Open { before: true, after: false },
        (None, Some(Item::Subtree(_))) => Step::Open { before: false, after: true },
        (Some(Item::Entry(a)), Some(Item::Entry(b))) => match a.key.cmp(&b.key) {
            Ordering::Less => Step::TakeBefore,
            Ordering::Equal => Step::TakeBoth,
            Ordering::Greater => Step::TakeAfter,
        },
        (Some(Item::Entry(a)), Some(Item::Subtree(b))) if Some(&a.key) < b.low.as_ref() => Step::TakeBefore,
        (Some(Item::Entry(_)), Some(Item::Subtree(_))) => Step::Open { before: false, after: true },
        (Some(Item::Subtree(a)), Some(Item::Entry(b))) if Some(&b.key) < a.low.as_ref() => Step::TakeAfter,
        (Some(Item::Subtree(_)), Some(Item::Entry(_))) => Step::Open { before: true, after: false },
        (Some(Item::Subtree(a)), Some(Item::Subtree(b))) if a.node.hash == b.node.hash => Step::SkipBoth,
        (Some(Item::Subtree(a)), Some(Item::Subtree(b))) => match a.low.cmp(&b.low).then(b.height.cmp(&a.height)) {
            Ordering::Less => Step::Open { before: true, after: false },
            Ordering::Equal => Step::Open { before: true, after: true },
            Ordering::Greater => Step::Open { before: false, after: true },
        },
    }
}
