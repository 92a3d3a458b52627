//! Reading all of a tree that may be damaged: what cannot be read is told by its place, and the rest goes on.

use bytes::Bytes;

use super::{Child, Entry, NodeRead, Tree, TreeError, load_many};
use crate::limits;

/// A stretch of a tree.
#[derive(Debug)]
pub enum Stretch {
    /// Entries, in ascending order.
    Sound(Vec<Entry>),
    /// Nothing can be told of the keys from `from` on and below `to`; without a bound there is none.
    Lost {
        /// Inclusive.
        from: Option<Bytes>,
        /// Exclusive.
        to: Option<Bytes>,
        /// Why.
        error: TreeError,
    },
}

/// Goes through a tree once.
pub struct Walk<'a, S> {
    store: &'a S,
    /// What is left, the next one last.
    pending: Vec<Child>,
    /// What was read ahead, the next one last.
    ready: Vec<Stretch>,
}

impl<'a, S: NodeRead> Walk<'a, S> {
    /// All of `tree`.
    pub fn new(store: &'a S, tree: &Tree) -> Self {
        Self { store, pending: tree.child().into_iter().collect(), ready: Vec::new() }
    }

    /// The next stretch, in ascending order.
    pub async fn next(&mut self) -> Option<Stretch> {
        loop {
            if let Some(stretch) = self.ready.pop() {
                return Some(stretch);
            }
            let child = self.pending.pop()?;
            match child.height {
                0 => self.read_leaves(child).await,
                _ => self.open(child).await,
            }
        }
    }

    async fn open(&mut self, branch: Child) {
        match load_many(self.store, std::slice::from_ref(&branch)).await {
            Ok(nodes) => {
                for node in nodes {
                    self.pending.extend(node.entries.iter().rev().filter_map(|entry| node.child(entry)));
                }
            }
            Err(error) => {
                let to = self.next_low();
                self.ready.push(Stretch::Lost { from: branch.low, to, error });
            }
        }
    }

    /// Reads a leaf and its neighbours to the right together; one by one if that fails.
    async fn read_leaves(&mut self, first: Child) {
        let mut leaves = vec![first];
        while leaves.len() < limits::TREE_READ_AHEAD
            && let Some(next) = self.pending.pop_if(|next| next.height == 0)
        {
            leaves.push(next);
        }
        if let Ok(nodes) = load_many(self.store, &leaves).await {
            self.ready.extend(nodes.into_iter().rev().map(|node| Stretch::Sound(node.entries)));
            return;
        }
        let ends: Vec<_> = leaves.iter().skip(1).map(|leaf| leaf.low.clone()).chain([self.next_low()]).collect();
        for (leaf, to) in leaves.into_iter().zip(ends).rev() {
            self.ready.push(match load_many(self.store, std::slice::from_ref(&leaf)).await {
                Ok(mut nodes) => Stretch::Sound(nodes.pop().map(|node| node.entries).unwrap_or_default()),
                Err(error) => Stretch::Lost { from: leaf.low, to, error },
            });
        }
    }

    fn next_low(&self) -> Option<Bytes> {
        self.pending.last().and_then(|next| next.low.clone())
    }
}
