//! Moving nodes out of segments: the same tree in another place, so that segments of which little is in use can go.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use futures::future::BoxFuture;

use super::{
    Child, Entry, NodeRead, NodeWrite, Root, Tree, TreeError, load, load_many,
    node::{Node, write_node},
};
use crate::{id::SegmentId, limits};

/// How many bytes of nodes of some trees lie in each segment. Reads branches only.
pub async fn census(store: &impl NodeRead, trees: &[Tree]) -> Result<HashMap<SegmentId, u64>, TreeError> {
    let mut bytes: HashMap<SegmentId, u64> = HashMap::new();
    let mut pending: Vec<Child> = trees.iter().filter_map(Tree::child).collect();
    while !pending.is_empty() {
        let some = pending.split_off(pending.len().saturating_sub(limits::TREE_READ_AHEAD));
        for child in &some {
            *bytes.entry(child.node.chunk.segment).or_default() += u64::from(child.node.chunk.length);
        }
        let branches: Vec<Child> = some.into_iter().filter(|child| child.height > 0).collect();
        for node in load_many(store, &branches).await? {
            pending.extend(node.entries.iter().filter_map(|entry| node.child(entry)));
        }
    }
    Ok(bytes)
}

/// `tree` with every node that lies in one of `segments` written anew. Entries are the same, and so are the hashes of leaves: a
/// comparison with the tree before skips them.
pub async fn move_out<R: NodeRead, W: NodeWrite>(
    reader: &R,
    writer: &mut W,
    tree: &Tree,
    segments: &BTreeSet<SegmentId>,
) -> Result<Tree, TreeError> {
    let Some(root) = tree.child() else { return Ok(*tree) };
    let height = root.height;
    let moved = (Mover { reader, writer, segments }).moved(root).await?;
    Ok(moved.map_or(*tree, |root| Tree { root: Some(Root { node: root.node, height }) }))
}

struct Mover<'a, R, W> {
    reader: &'a R,
    writer: &'a mut W,
    segments: &'a BTreeSet<SegmentId>,
}

impl<R: NodeRead, W: NodeWrite> Mover<'_, R, W> {
    /// Where the subtree is now; `None` if all of it stays.
    fn moved(&mut self, child: Child) -> BoxFuture<'_, Result<Option<Child>, TreeError>> {
        Box::pin(async move {
            let moves = self.segments.contains(&child.node.chunk.segment);
            if child.height == 0 && !moves {
                return Ok(None);
            }
            let node = load(self.reader, &child).await?;
            let (mut entries, mut changed) = (Vec::with_capacity(node.entries.len()), moves);
            for entry in &node.entries {
                let moved = match node.child(entry) {
                    Some(below) => self.moved(below).await?,
                    None => None,
                };
                changed |= moved.is_some();
                entries.push(match moved {
                    Some(below) => {
                        Entry { key: entry.key.clone(), value: Bytes::copy_from_slice(&below.node.encode()) }
                    }
                    None => entry.clone(),
                });
            }
            if !changed {
                return Ok(None);
            }
            self.write(child, entries).await.map(Some)
        })
    }

    async fn write(&mut self, child: Child, entries: Vec<Entry>) -> Result<Child, TreeError> {
        let Node { height, entries } = Node { height: child.height, entries };
        let written = write_node(self.writer, height, &entries).await?;
        let node = super::NodeRef::decode(&written.value).ok_or(TreeError::Root)?;
        Ok(Child { node, ..child })
    }
}
