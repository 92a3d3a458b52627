//! Bulk load: a tree from entries in ascending order, in memory for two nodes of each level.

use bytes::Bytes;

use super::{
    Entry, NodeWrite, Tree, TreeError, check_size,
    node::{NodeRef, entries_bytes, entry_bytes, write_level, write_node},
};
use crate::limits;

/// Takes entries in ascending order of keys and writes full nodes, leaves in their order, so that a scan reads on in one place.
pub struct Builder<'a, W> {
    writer: &'a mut W,
    levels: Vec<Level>,
    last: Option<Bytes>,
}

/// Entries of one level that are in no node yet.
#[derive(Default)]
struct Level {
    entries: Vec<Entry>,
    bytes: usize,
}

impl<'a, W: NodeWrite> Builder<'a, W> {
    /// A builder that has seen no entries.
    pub fn new(writer: &'a mut W) -> Self {
        Self { writer, levels: vec![Level::default()], last: None }
    }

    /// Adds an entry. Its key must be above that of the one before.
    pub async fn push(&mut self, key: Bytes, value: Bytes) -> Result<(), TreeError> {
        check_size(&key, &value)?;
        if self.last.as_ref().is_some_and(|last| *last >= key) {
            return Err(TreeError::Order);
        }
        self.last = Some(key.clone());
        self.levels[0].add(Entry { key, value });
        let mut height = 0;
        while let Some(full) = self.levels[height].take_full() {
            let reference = write_node(self.writer, height as u8, &full).await?;
            height += 1;
            if height == self.levels.len() {
                self.levels.push(Level::default());
            }
            self.levels[height].add(reference);
        }
        Ok(())
    }

    /// Writes what is left and gives back the tree.
    pub async fn finish(self) -> Result<Tree, TreeError> {
        let mut carried = Vec::new();
        let top = self.levels.len() - 1;
        for (height, level) in self.levels.into_iter().enumerate() {
            let mut entries = level.entries;
            entries.append(&mut carried);
            if height == top {
                return crown(self.writer, height as u8, entries).await;
            }
            carried = write_level(self.writer, height as u8, &entries).await?;
        }
        Ok(Tree::EMPTY)
    }
}

impl Level {
    fn add(&mut self, entry: Entry) {
        self.bytes += entry_bytes(&entry);
        self.entries.push(entry);
    }

    /// The entries of one full node, if a full node's worth is left: so the last nodes are never nearly empty.
    fn take_full(&mut self) -> Option<Vec<Entry>> {
        if self.bytes < 2 * limits::TREE_NODE_BYTES {
            return None;
        }
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry_bytes(entry);
            bytes <= limits::TREE_NODE_BYTES
        };
        let count = self.entries.iter().take_while(fits).count().max(1);
        let rest = self.entries.split_off(count);
        let full = std::mem::replace(&mut self.entries, rest);
        self.bytes = entries_bytes(&self.entries);
        Some(full)
    }
}

/// Writes levels upon `entries` until one node is left: the root.
pub(super) async fn crown(
    writer: &mut impl NodeWrite,
    mut height: u8,
    mut entries: Vec<Entry>,
) -> Result<Tree, TreeError> {
    loop {
        match entries.as_slice() {
            [] => return Ok(Tree::EMPTY),
            // A branch with one child is not needed: the child is the root.
            [only] if height > 0 => {
                let node = NodeRef::decode(&only.value).ok_or(TreeError::Root)?;
                return Ok(Tree::new(node, height - 1));
            }
            _ => entries = write_level(writer, height, &entries).await?,
        }
        height += 1;
    }
}
