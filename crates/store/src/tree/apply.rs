//! Changing a tree: the nodes on the paths to changed keys are written anew.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::future::BoxFuture;

use super::{
    Child, Entry, NodeRead, NodeWrite, Tree, TreeError,
    build::crown,
    check_size, load, load_many,
    node::{Node, entries_bytes, write_level},
};
use crate::limits;

/// Changes by key: `Some` puts a value, `None` deletes it if it is there.
pub type Batch = BTreeMap<Bytes, Option<Bytes>>;

type Changes<'a> = [(&'a Bytes, &'a Option<Bytes>)];

/// The tree with `batch` applied. Writes only nodes that differ, and none if nothing does: then it is the same tree.
///
/// Whatever is deleted, the levels stay balanced. A tree that has lost nearly everything may be higher than it had to be; each
/// further batch takes a level off.
pub async fn apply<R: NodeRead, W: NodeWrite>(
    reader: &R,
    writer: &mut W,
    tree: &Tree,
    batch: &Batch,
) -> Result<Tree, TreeError> {
    for (key, value) in batch {
        check_size(key, value.as_deref().unwrap_or_default())?;
    }
    let changes: Vec<_> = batch.iter().collect();
    let root = match tree.child() {
        Some(root) => load(reader, &root).await?,
        None => Node { height: 0, entries: Vec::new() },
    };
    let height = root.height;
    match (Editor { reader, writer }).edit(root, &changes).await? {
        Some(entries) => crown(writer, height, entries).await,
        None => Ok(*tree),
    }
}

struct Editor<'a, R, W> {
    reader: &'a R,
    writer: &'a mut W,
}

/// A stretch of a branch's children while the branch is edited.
enum Part {
    /// One child as it was.
    Kept(Child),
    /// Entries that replace one or more children. Not written yet: neighbours may join.
    Edited(Vec<Entry>),
}

impl<R: NodeRead, W: NodeWrite> Editor<'_, R, W> {
    /// The entries that `node` has after the changes, all of which belong below it; `None` if that changes nothing.
    fn edit<'b>(
        &'b mut self,
        node: Node,
        changes: &'b Changes<'b>,
    ) -> BoxFuture<'b, Result<Option<Vec<Entry>>, TreeError>> {
        Box::pin(async move {
            let Some(height_below) = node.height.checked_sub(1) else { return Ok(merge(node.entries, changes)) };
            let mut parts = Vec::with_capacity(node.entries.len());
            let mut touched = Vec::new();
            for (child, changes) in deal(&node, changes) {
                if changes.is_empty() {
                    self.edit_children(&mut touched, &mut parts).await?;
                    parts.push(Part::Kept(child));
                    continue;
                }
                touched.push((child, changes));
                if touched.len() == limits::TREE_READ_AHEAD {
                    self.edit_children(&mut touched, &mut parts).await?;
                }
            }
            self.edit_children(&mut touched, &mut parts).await?;
            if parts.iter().all(|part| matches!(part, Part::Kept(_))) {
                return Ok(None);
            }
            self.join_small(&mut parts).await?;
            self.write(parts, height_below).await.map(Some)
        })
    }

    /// Edits neighbouring children, and adds what they become to `parts`.
    async fn edit_children(
        &mut self,
        touched: &mut Vec<(Child, &Changes<'_>)>,
        parts: &mut Vec<Part>,
    ) -> Result<(), TreeError> {
        if touched.is_empty() {
            return Ok(());
        }
        let children: Vec<Child> = touched.iter().map(|(child, _)| child.clone()).collect();
        let nodes = load_many(self.reader, &children).await?;
        for (node, (child, changes)) in nodes.into_iter().zip(touched.drain(..)) {
            match (self.edit(node, changes).await?, parts.last_mut()) {
                (Some(mut entries), Some(Part::Edited(before))) => before.append(&mut entries),
                (Some(entries), _) => parts.push(Part::Edited(entries)),
                (None, _) => parts.push(Part::Kept(child)),
            }
        }
        Ok(())
    }

    /// Drops edited parts without entries, and joins those that are too small for a node with a neighbour.
    async fn join_small(&mut self, parts: &mut Vec<Part>) -> Result<(), TreeError> {
        parts.retain(|part| !matches!(part, Part::Edited(entries) if entries.is_empty()));
        let mut at = 0;
        while at < parts.len() {
            let small =
                matches!(&parts[at], Part::Edited(entries) if entries_bytes(entries) < limits::TREE_NODE_BYTES_MIN);
            if !small || parts.len() == 1 {
                at += 1;
                continue;
            }
            let first = if at + 1 < parts.len() { at } else { at - 1 };
            let mut joined = Vec::new();
            for part in parts.drain(first..first + 2).collect::<Vec<_>>() {
                match part {
                    Part::Kept(child) => joined.append(&mut load(self.reader, &child).await?.entries),
                    Part::Edited(mut entries) => joined.append(&mut entries),
                }
            }
            parts.insert(first, Part::Edited(joined));
            at = first;
        }
        Ok(())
    }

    /// Writes the edited parts as nodes of `height`; the entries of the branch above.
    async fn write(&mut self, parts: Vec<Part>, height: u8) -> Result<Vec<Entry>, TreeError> {
        let mut above = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Part::Kept(child) => above.push(child.into_entry()),
                Part::Edited(entries) => above.append(&mut write_level(self.writer, height, &entries).await?),
            }
        }
        Ok(above)
    }
}

impl Child {
    fn into_entry(self) -> Entry {
        Entry { key: self.low.unwrap_or_default(), value: Bytes::copy_from_slice(&self.node.encode()) }
    }
}

/// Each child of a branch with the changes that belong below it.
fn deal<'c, 'k>(node: &Node, mut changes: &'c Changes<'k>) -> Vec<(Child, &'c Changes<'k>)> {
    let mut dealt = Vec::with_capacity(node.entries.len());
    for (at, entry) in node.entries.iter().enumerate() {
        // What is below the first child's smallest key goes to the first child, too.
        let count = match node.entries.get(at + 1) {
            Some(next) => changes.partition_point(|(key, _)| **key < next.key),
            None => changes.len(),
        };
        let (mine, rest) = changes.split_at(count);
        changes = rest;
        dealt.extend(node.child(entry).map(|child| (child, mine)));
    }
    dealt
}

/// A leaf's entries with the changes made; `None` if they change nothing.
fn merge(entries: Vec<Entry>, changes: &Changes<'_>) -> Option<Vec<Entry>> {
    let mut merged = Vec::with_capacity(entries.len() + changes.len());
    let mut changed = false;
    let mut old = entries.into_iter().peekable();
    for (key, value) in changes {
        while let Some(entry) = old.next_if(|entry| entry.key < **key) {
            merged.push(entry);
        }
        let before = old.next_if(|entry| entry.key == **key).map(|entry| entry.value);
        changed |= before != **value;
        if let Some(value) = value {
            merged.push(Entry { key: (*key).clone(), value: value.clone() });
        }
    }
    merged.extend(old);
    changed.then_some(merged)
}
