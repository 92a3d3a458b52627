//! One node: its bytes, and how entries are dealt out to nodes.

use base::frame::{self, FrameError};
use bytes::Bytes;
use ring::digest;

use super::{Child, Entry, NodeWrite, TreeError};
use crate::{kind, limits, segment::ChunkRef};

const VERSION: u16 = 1;

/// Bytes of a node before its entries, and of an entry before its key.
const NODE_HEADER_BYTES: usize = 3;
const ENTRY_HEADER_BYTES: usize = 4;

/// Why the bytes of a chunk are not the node that its parent refers to.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum NodeError {
    #[error("{0} bytes are too many for a node")]
    TooLong(usize),
    #[error("its hash is not the one its parent names")]
    Hash,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("its payload is malformed: {0}")]
    Malformed(&'static str),
    #[error("it has height {found}, its parent says {expected}")]
    Height { found: u8, expected: u8 },
    #[error("its smallest key is not the one its parent names")]
    Low,
}

/// Where a node is, and the SHA-256 of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeRef {
    /// The chunk that holds it.
    pub chunk: ChunkRef,
    /// Of the node as it is before sealing.
    pub hash: [u8; 32],
}

impl NodeRef {
    /// Length of `encode`'s answer.
    pub const ENCODED_BYTES: usize = ChunkRef::BYTES + 32;

    pub(super) fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut encoded = [0; Self::ENCODED_BYTES];
        encoded[..ChunkRef::BYTES].copy_from_slice(&self.chunk.encode());
        encoded[ChunkRef::BYTES..].copy_from_slice(&self.hash);
        encoded
    }

    pub(super) fn decode(encoded: &[u8]) -> Option<Self> {
        let (chunk, hash) = encoded.split_at_checked(ChunkRef::BYTES)?;
        Some(Self { chunk: ChunkRef::decode(chunk).ok()?, hash: hash.try_into().ok()? })
    }
}

/// Entries in ascending order of keys. Those of a branch (height above zero) have a child's smallest key, and its reference as value.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) height: u8,
    pub(super) entries: Vec<Entry>,
}

impl Node {
    /// The subtree that an entry of this node stands for, if this is a branch.
    pub(super) fn child(&self, entry: &Entry) -> Option<Child> {
        let height = self.height.checked_sub(1)?;
        let node = NodeRef::decode(&entry.value).expect("a branch was parsed, and its references with it");
        Some(Child { node, height, low: Some(entry.key.clone()) })
    }

    /// Checks that `framed` is the node `expected`, then parses it.
    pub(super) fn decode(framed: Bytes, expected: &Child) -> Result<Self, NodeError> {
        if framed.len() > limits::TREE_NODE_BYTES_MAX {
            return Err(NodeError::TooLong(framed.len()));
        }
        if sha256(&framed) != expected.node.hash {
            return Err(NodeError::Hash);
        }
        let (_, payload) = frame::decode(&framed, kind::TREE_NODE, VERSION)?;
        let node = parse(framed.slice_ref(payload))?;
        if node.height != expected.height {
            return Err(NodeError::Height { found: node.height, expected: expected.height });
        }
        if expected.low.as_ref().is_some_and(|low| node.entries[0].key != low) {
            return Err(NodeError::Low);
        }
        Ok(node)
    }
}

fn parse(payload: Bytes) -> Result<Node, NodeError> {
    let truncated = NodeError::Malformed("truncated");
    let Some((header, _)) = payload.split_first_chunk::<NODE_HEADER_BYTES>() else { return Err(truncated) };
    let (height, count) = (header[0], u16::from_le_bytes([header[1], header[2]]));
    let mut rest = payload.slice(NODE_HEADER_BYTES..);
    let mut entries: Vec<Entry> = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let entry = parse_entry(&mut rest, height)?;
        if entries.last().is_some_and(|last| last.key >= entry.key) {
            return Err(NodeError::Malformed("keys do not ascend"));
        }
        entries.push(entry);
    }
    if !rest.is_empty() || entries.is_empty() {
        return Err(NodeError::Malformed("count does not fit the length"));
    }
    Ok(Node { height, entries })
}

fn parse_entry(rest: &mut Bytes, height: u8) -> Result<Entry, NodeError> {
    let Some((header, body)) = rest.split_first_chunk::<ENTRY_HEADER_BYTES>() else {
        return Err(NodeError::Malformed("truncated"));
    };
    let key = usize::from(u16::from_le_bytes([header[0], header[1]]));
    let value = usize::from(u16::from_le_bytes([header[2], header[3]]));
    if key > limits::TREE_KEY_BYTES_MAX || value > limits::TREE_VALUE_BYTES_MAX || body.len() < key + value {
        return Err(NodeError::Malformed("an entry is too long"));
    }
    let mut entry = rest.split_to(ENTRY_HEADER_BYTES + key + value);
    let value = entry.split_off(ENTRY_HEADER_BYTES + key);
    if height > 0 && NodeRef::decode(&value).is_none() {
        return Err(NodeError::Malformed("a branch refers to no node"));
    }
    Ok(Entry { key: entry.split_off(ENTRY_HEADER_BYTES), value })
}

/// Bytes that an entry takes in a node.
pub(super) fn entry_bytes(entry: &Entry) -> usize {
    ENTRY_HEADER_BYTES + entry.key.len() + entry.value.len()
}

/// Bytes that entries take in nodes.
pub(super) fn entries_bytes(entries: &[Entry]) -> usize {
    entries.iter().map(entry_bytes).sum()
}

/// Deals `entries` out to nodes of about equal size, each at most one entry above [`limits::TREE_NODE_BYTES`], writes them, and gives
/// back the entries that refer to them.
pub(super) async fn write_level(
    writer: &mut impl NodeWrite,
    height: u8,
    entries: &[Entry],
) -> Result<Vec<Entry>, TreeError> {
    let total = entries_bytes(entries);
    let nodes = total.div_ceil(limits::TREE_NODE_BYTES).max(1);
    let mut references = Vec::with_capacity(nodes);
    let (mut first, mut seen) = (0, 0);
    for (at, entry) in entries.iter().enumerate() {
        seen += entry_bytes(entry);
        if at + 1 == entries.len() || seen * nodes >= total * (references.len() + 1) {
            references.push(write_node(writer, height, &entries[first..=at]).await?);
            first = at + 1;
        }
    }
    Ok(references)
}

/// Writes one node and gives back the entry that refers to it.
pub(super) async fn write_node(writer: &mut impl NodeWrite, height: u8, entries: &[Entry]) -> Result<Entry, TreeError> {
    let encoded = Bytes::from(encode(height, entries)?);
    let hash = sha256(&encoded);
    let chunk = writer.append(encoded).await.map_err(|source| TreeError::Write { source })?;
    let low = entries.first().map(|entry| entry.key.clone()).unwrap_or_default();
    Ok(Entry { key: low, value: Bytes::copy_from_slice(&NodeRef { chunk, hash }.encode()) })
}

fn encode(height: u8, entries: &[Entry]) -> Result<Vec<u8>, TreeError> {
    let unfit = |source: FrameError| TreeError::Write { source: source.into() };
    let half = |length: usize| u16::try_from(length).map_err(|_| unfit(FrameError::TooLong(length)));
    let mut payload = Vec::with_capacity(NODE_HEADER_BYTES + entries_bytes(entries));
    payload.push(height);
    payload.extend_from_slice(&half(entries.len())?.to_le_bytes());
    for Entry { key, value } in entries {
        payload.extend_from_slice(&half(key.len())?.to_le_bytes());
        payload.extend_from_slice(&half(value.len())?.to_le_bytes());
        payload.extend_from_slice(key);
        payload.extend_from_slice(value);
    }
    frame::encode(kind::TREE_NODE, VERSION, &payload).map_err(unfit)
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
}

/// A node with a good hash is parsed; one that parses has one encoding.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(payload: &[u8]) {
    let framed = Bytes::from(frame::encode(kind::TREE_NODE, VERSION, payload).expect("short"));
    let chunk = ChunkRef { segment: crate::id::SegmentId([1; 16]), offset: 0, length: 100, number: 0 };
    let height = payload.first().copied().unwrap_or(0);
    let expected = Child { node: NodeRef { chunk, hash: sha256(&framed) }, height, low: None };
    if let Ok(node) = Node::decode(framed.clone(), &expected) {
        assert_eq!(encode(node.height, &node.entries).expect("it was read"), framed);
        node.entries.iter().for_each(|entry| drop(node.child(entry)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::SegmentId;

    fn entry(key: &str, value: &[u8]) -> Entry {
        Entry { key: Bytes::copy_from_slice(key.as_bytes()), value: Bytes::copy_from_slice(value) }
    }

    fn reference(number: u32) -> NodeRef {
        let chunk = ChunkRef { segment: SegmentId(*b"0123456789abcdef"), offset: 0x1122_3344, length: 0x5566, number };
        NodeRef { chunk, hash: [number as u8; 32] }
    }

    fn leaf() -> Vec<Entry> {
        vec![entry("", b"empty key"), entry("a", b""), entry("bc", b"value")]
    }

    fn branch() -> Vec<Entry> {
        vec![entry("", &reference(1).encode()), entry("d", &reference(2).encode())]
    }

    /// As its parent would refer to it, whatever it is.
    fn decode(framed: Vec<u8>, height: u8) -> Result<Node, NodeError> {
        let chunk = reference(0).chunk;
        let expected = Child { node: NodeRef { chunk, hash: sha256(&framed) }, height, low: None };
        Node::decode(framed.into(), &expected)
    }

    #[test]
    fn the_bytes_are_the_documented_ones() {
        assert_eq!(encode(0, &leaf()).unwrap(), include_bytes!("../../tests/golden/tree-leaf-v1.bin"));
        assert_eq!(encode(1, &branch()).unwrap(), include_bytes!("../../tests/golden/tree-branch-v1.bin"));
    }

    #[test]
    fn a_node_reads_back_as_what_it_was() {
        for (height, entries) in [(0, leaf()), (1, branch())] {
            assert_eq!(decode(encode(height, &entries).unwrap(), height).unwrap().entries, entries);
        }
    }

    #[test]
    fn entries_that_no_writer_writes_are_refused_even_under_a_good_hash() {
        let refuses = |height, entries: &[Entry]| decode(encode(height, entries).unwrap(), height).is_err();
        assert!(refuses(0, &[]), "no entries");
        assert!(refuses(0, &[entry("b", b""), entry("a", b"")]), "descending");
        assert!(refuses(0, &[entry("a", b""), entry("a", b"")]), "twice");
        assert!(refuses(1, &leaf()), "a branch without references");
        assert!(refuses(0, &[entry(&"k".repeat(limits::TREE_KEY_BYTES_MAX + 1), b"")]), "a key too long");
        let long = vec![0; limits::TREE_NODE_BYTES_MAX + 1];
        assert!(matches!(decode(long, 0), Err(NodeError::TooLong(_))));
    }

    proptest! {
        /// Somebody who can make hashes and checksums right still cannot make the parser fail, or accept two encodings of one node.
        #[test]
        fn no_payload_breaks_the_parser(
            height in 0..2u8,
            edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let entries = if height == 0 { leaf() } else { branch() };
            let mut payload = encode(height, &entries).unwrap().split_off(frame::HEADER_BYTES);
            for (at, byte) in edits {
                let at = at.index(payload.len());
                payload[at] = byte;
            }
            payload.truncate(cut.index(payload.len()) + 1);
            let framed = frame::encode(kind::TREE_NODE, VERSION, &payload).unwrap();
            if let Ok(node) = decode(framed.clone(), height) {
                prop_assert_eq!(encode(node.height, &node.entries).unwrap(), framed);
            }
        }
    }
}
