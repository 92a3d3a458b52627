//! Reading entries in order.

use bytes::Bytes;

use super::{Child, Entry, NodeRead, Tree, TreeError, load_many, node::Node};
use crate::limits;

/// The entries of a range of keys, in ascending order. Reads ahead the more the longer it goes on, so that a short scan costs little and
/// a long one few requests.
pub struct Scan<'a, S> {
    store: &'a S,
    from: Bytes,
    to: Option<Bytes>,
    /// What comes after `leaf`; the next one is the last.
    pending: Vec<Pending>,
    leaf: std::vec::IntoIter<Entry>,
    ahead: usize,
}

enum Pending {
    Unread(Child),
    Read(Node),
}

impl<'a, S: NodeRead> Scan<'a, S> {
    /// Entries with `from` <= key < `to`; without a `to`, up to the last.
    pub fn new(store: &'a S, tree: &Tree, from: Bytes, to: Option<Bytes>) -> Self {
        let pending = tree.child().map(Pending::Unread).into_iter().collect();
        Self { store, from, to, pending, leaf: Vec::new().into_iter(), ahead: 1 }
    }

    /// All entries.
    pub fn all(store: &'a S, tree: &Tree) -> Self {
        Self::new(store, tree, Bytes::new(), None)
    }

    /// The next entry.
    pub async fn next(&mut self) -> Result<Option<Entry>, TreeError> {
        loop {
            if let Some(entry) = self.leaf.next() {
                if entry.key < self.from {
                    continue;
                }
                if self.ends_before(&entry.key) {
                    self.leaf = Vec::new().into_iter();
                    self.pending.clear();
                    return Ok(None);
                }
                return Ok(Some(entry));
            }
            match self.pending.pop() {
                None => return Ok(None),
                Some(Pending::Read(node)) => self.open(node),
                Some(Pending::Unread(child)) => self.read_from(child).await?,
            }
        }
    }

    fn ends_before(&self, key: &Bytes) -> bool {
        self.to.as_ref().is_some_and(|to| key >= to)
    }

    fn open(&mut self, node: Node) {
        if node.height == 0 {
            self.leaf = node.entries.into_iter();
            return;
        }
        // The child before the first one that begins after `from` may hold it.
        let first = node.entries.partition_point(|entry| entry.key <= self.from).saturating_sub(1);
        let wanted = node.entries[first..].iter().take_while(|entry| !self.ends_before(&entry.key));
        let children: Vec<Child> = wanted.filter_map(|entry| node.child(entry)).collect();
        self.pending.extend(children.into_iter().rev().map(Pending::Unread));
    }

    /// Reads `first` and some of its neighbours to the right.
    async fn read_from(&mut self, first: Child) -> Result<(), TreeError> {
        let mut children = vec![first];
        while children.len() < self.ahead
            && let Some(Pending::Unread(next)) = self.pending.pop_if(|next| matches!(next, Pending::Unread(_)))
        {
            children.push(next);
        }
        self.ahead = (self.ahead * 2).min(limits::TREE_READ_AHEAD);
        let nodes = load_many(self.store, &children).await?;
        self.pending.extend(nodes.into_iter().rev().map(Pending::Read));
        Ok(())
    }
}
