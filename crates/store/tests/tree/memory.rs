//! Nodes in memory, counted.

use std::sync::Mutex;

use bytes::Bytes;
use store::{
    id::SegmentId,
    limits, seal,
    segment::ChunkRef,
    tree::{NodeRead, NodeStoreError, NodeWrite},
};

const SEGMENT: SegmentId = SegmentId([7; 16]);

/// Reads what was written to it. Its writer borrows nothing, so that both can be used at once.
#[derive(Default)]
pub(crate) struct Memory {
    nodes: Mutex<Vec<Bytes>>,
    reads: Mutex<Reads>,
}

#[derive(Default, Clone, Copy)]
pub(crate) struct Reads {
    pub(crate) requests: usize,
    pub(crate) nodes: usize,
}

/// Writes to a `Memory`.
pub(crate) struct Writer<'a>(pub(crate) &'a Memory);

impl Memory {
    pub(crate) fn written(&self) -> usize {
        self.nodes.lock().unwrap().len()
    }

    pub(crate) fn sizes_from(&self, first: usize) -> Vec<usize> {
        self.nodes.lock().unwrap()[first..].iter().map(Bytes::len).collect()
    }

    /// What was read since the last time.
    pub(crate) fn take_reads(&self) -> Reads {
        std::mem::take(&mut self.reads.lock().unwrap())
    }

    /// Replaces a node, as a bad disk or somebody else might.
    pub(crate) fn replace(&self, number: usize, with: Bytes) -> Bytes {
        std::mem::replace(&mut self.nodes.lock().unwrap()[number], with)
    }
}

impl NodeRead for Memory {
    async fn read_many(&self, chunks: &[ChunkRef]) -> Result<Vec<Bytes>, NodeStoreError> {
        let mut reads = self.reads.lock().unwrap();
        reads.requests += 1;
        reads.nodes += chunks.len();
        let nodes = self.nodes.lock().unwrap();
        let read = |chunk: &ChunkRef| {
            assert_eq!(chunk.segment, SEGMENT);
            nodes.get(chunk.number as usize).cloned().ok_or_else(|| "no such node".into())
        };
        chunks.iter().map(read).collect()
    }
}

impl NodeWrite for Writer<'_> {
    async fn append(&mut self, node: Bytes) -> Result<ChunkRef, NodeStoreError> {
        assert!(node.len() <= limits::TREE_NODE_BYTES_MAX);
        let mut nodes = self.0.nodes.lock().unwrap();
        let (number, length) = (nodes.len() as u32, (node.len() + seal::OVERHEAD) as u32);
        nodes.push(node);
        Ok(ChunkRef { segment: SEGMENT, offset: u64::from(number) * 100_000, length, number })
    }
}
