//! Reading all of a tree, to see whether it can be read.

use std::collections::HashSet;

use super::{Child, NodeRead, Tree, TreeError, load_many};
use crate::limits;

/// Reads trees whole, nodes that several have in common once.
#[derive(Debug, Default)]
pub struct Checker {
    sound: HashSet<[u8; 32]>,
}

impl Checker {
    /// Reads and checks every node of `tree` that was not read before. After an error some are left out.
    pub async fn check(&mut self, store: &impl NodeRead, tree: &Tree) -> Result<(), TreeError> {
        let mut pending: Vec<Child> = tree.child().into_iter().collect();
        while !pending.is_empty() {
            let some = pending.split_off(pending.len().saturating_sub(limits::TREE_READ_AHEAD));
            let some: Vec<Child> = some.into_iter().filter(|child| !self.sound.contains(&child.node.hash)).collect();
            for (child, node) in some.iter().zip(load_many(store, &some).await?) {
                self.sound.insert(child.node.hash);
                pending.extend(node.entries.iter().filter_map(|entry| node.child(entry)));
            }
        }
        Ok(())
    }

    /// How many different nodes were sound.
    pub fn nodes(&self) -> usize {
        self.sound.len()
    }
}
