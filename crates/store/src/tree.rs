//! An immutable, incremental map from bytes to bytes: a copy-on-write B+tree whose nodes are chunks.
//!
//! ```text
//!   state 1 ──► root ─┬─ branch ─┬─ leaf          a batch of changes writes the nodes on its paths anew and refers to all others:
//!   state 2 ──► root'─┼─ branch'─┼─ leaf'         it costs what changed, not what exists
//!                     └──(shared)└─(shared)
//! ```
//!
//! A reference to a node carries the SHA-256 of its bytes. So whoever trusts a [`Tree`] (it lies in a sealed manifest) can trust all that
//! is read through it, a damaged node is refused and never parsed, and [`Diff`] skips whatever two states have in common. The layout is
//! in docs/formats/tree.md.
//!
//! Trees know no object store: they read and write through [`NodeRead`] and [`NodeWrite`]. A node need not be readable before the
//! writer's segment is finished: no operation reads what it wrote itself.

mod apply;
mod build;
mod check;
mod diff;
mod moved;
mod node;
mod scan;
mod walk;

use std::future::Future;

use bytes::Bytes;

use self::node::Node;
#[cfg(feature = "fuzzing")]
pub(crate) use self::node::fuzz;
pub use self::{
    apply::{Batch, apply},
    build::Builder,
    check::Checker,
    diff::{Change, Diff},
    moved::{census, move_out},
    node::{NodeError, NodeRef},
    scan::Scan,
    walk::{Stretch, Walk},
};
use crate::{
    Store,
    id::SegmentId,
    limits,
    segment::{ChunkRef, SegmentWriter},
};

/// An error of whoever stores nodes.
pub type NodeStoreError = Box<dyn std::error::Error + Send + Sync>;

/// Where nodes are read.
pub trait NodeRead: Sync {
    /// The bytes of these chunks, in this order. Neighbours may be fetched by one request.
    fn read_many(&self, chunks: &[ChunkRef]) -> impl Future<Output = Result<Vec<Bytes>, NodeStoreError>> + Send;
}

/// Where nodes are written.
pub trait NodeWrite: Send {
    /// Appends one node, at most [`limits::TREE_NODE_BYTES_MAX`] bytes.
    fn append(&mut self, node: Bytes) -> impl Future<Output = Result<ChunkRef, NodeStoreError>> + Send;
}

impl NodeRead for Store {
    async fn read_many(&self, chunks: &[ChunkRef]) -> Result<Vec<Bytes>, NodeStoreError> {
        Ok(Store::read_many(self, chunks).await?)
    }
}

impl NodeWrite for SegmentWriter {
    async fn append(&mut self, node: Bytes) -> Result<ChunkRef, NodeStoreError> {
        Ok(SegmentWriter::append(self, &node).await?)
    }
}

/// Why a tree cannot be read or changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum TreeError {
    #[error("cannot read {nodes} nodes of a tree")]
    Read { nodes: usize, source: NodeStoreError },
    #[error("cannot write a node of a tree")]
    Write { source: NodeStoreError },
    #[error("the tree's node {node} is damaged")]
    Damaged { node: ChunkRef, source: NodeError },
    #[error("the reference to a tree is damaged")]
    Root,
    #[error("a {what} of {bytes} bytes is too long for a tree, which takes {bytes_max}")]
    TooLong { what: &'static str, bytes: usize, bytes_max: usize },
    #[error("keys must ascend in a bulk load")]
    Order,
}

/// One state of a map: a reference to its root, or to nothing when it is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tree {
    root: Option<Root>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Root {
    node: NodeRef,
    height: u8,
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
}

/// A subtree that has not been read, with what its parent says of it.
#[derive(Debug, Clone)]
struct Child {
    node: NodeRef,
    height: u8,
    /// Its smallest key; `None`, which sorts before all, for a root.
    low: Option<Bytes>,
}

impl Tree {
    /// The map without entries.
    pub const EMPTY: Self = Self { root: None };

    /// The encoding of a tree that is not empty has this many bytes.
    pub const ENCODED_BYTES: usize = 1 + NodeRef::ENCODED_BYTES;

    /// As bytes: nothing when the map is empty, else height and reference of the root.
    pub fn encode(&self) -> Vec<u8> {
        let Some(root) = &self.root else { return Vec::new() };
        let mut encoded = vec![root.height];
        encoded.extend_from_slice(&root.node.encode());
        encoded
    }

    /// The reverse of `encode`.
    pub fn decode(encoded: &[u8]) -> Result<Self, TreeError> {
        let Some((&height, node)) = encoded.split_first() else { return Ok(Self::EMPTY) };
        let node = NodeRef::decode(node).ok_or(TreeError::Root)?;
        if height > limits::TREE_HEIGHT_MAX {
            return Err(TreeError::Root);
        }
        Ok(Self { root: Some(Root { node, height }) })
    }

    /// The value of `key`. Reads one node of each level.
    pub async fn get(&self, store: &impl NodeRead, key: &[u8]) -> Result<Option<Bytes>, TreeError> {
        let Some(mut child) = self.child() else { return Ok(None) };
        loop {
            let node = load(store, &child).await?;
            let at = node.entries.partition_point(|entry| &*entry.key <= key);
            let Some(entry) = at.checked_sub(1).and_then(|at| node.entries.get(at)) else { return Ok(None) };
            match node.child(entry) {
                Some(below) => child = below,
                None if entry.key == key => return Ok(Some(entry.value.clone())),
                None => return Ok(None),
            }
        }
    }

    /// The segment that the root is in, unless the map is empty. Further nodes may be in others.
    pub fn root_segment(&self) -> Option<SegmentId> {
        self.root.map(|root| root.node.chunk.segment)
    }

    fn new(node: NodeRef, height: u8) -> Self {
        Self { root: Some(Root { node, height }) }
    }

    fn child(&self) -> Option<Child> {
        self.root.map(|root| Child { node: root.node, height: root.height, low: None })
    }
}

async fn load(store: &impl NodeRead, child: &Child) -> Result<Node, TreeError> {
    let mut nodes = load_many(store, std::slice::from_ref(child)).await?;
    nodes.pop().ok_or_else(|| TreeError::Read { nodes: 1, source: "no answer".into() })
}

/// Reads and checks these subtrees' top nodes, in this order.
async fn load_many(store: &impl NodeRead, children: &[Child]) -> Result<Vec<Node>, TreeError> {
    let chunks: Vec<ChunkRef> = children.iter().map(|child| child.node.chunk).collect();
    let failed = |source| TreeError::Read { nodes: children.len(), source };
    let read = store.read_many(&chunks).await.map_err(failed)?;
    if read.len() != children.len() {
        return Err(failed(format!("{} chunks came for {}", read.len(), children.len()).into()));
    }
    let parse = |(child, bytes): (&Child, Bytes)| {
        Node::decode(bytes, child).map_err(|source| TreeError::Damaged { node: child.node.chunk, source })
    };
    children.iter().zip(read).map(parse).collect()
}

fn check_size(key: &[u8], value: &[u8]) -> Result<(), TreeError> {
    let sizes = [("key", key.len(), limits::TREE_KEY_BYTES_MAX), ("value", value.len(), limits::TREE_VALUE_BYTES_MAX)];
    for (what, bytes, bytes_max) in sizes {
        if bytes > bytes_max {
            return Err(TreeError::TooLong { what, bytes, bytes_max });
        }
    }
    Ok(())
}
