//! Parsers that are private, for the fuzz targets in `fuzz/`. What lies behind a seal, a hash or a checksum is parsed as if that were right:
//! nothing that is random would ever come so far. A failed assertion is a finding.

use crate::{keys::MasterKeys, segment, segment::ChunkRef, tree::Tree};

/// Header, index and footer of segments.
pub fn segment(bytes: &[u8]) {
    segment::fuzz(bytes);
}

/// The body of a manifest, of each version.
pub fn manifest(body: &[u8]) {
    crate::manifest::fuzz(body);
}

/// The payload of a tree's node.
pub fn tree_node(payload: &[u8]) {
    crate::tree::fuzz(payload);
}

/// References of chunks and trees, wrapped data keys, and the text of master keys.
pub fn references_and_keys(bytes: &[u8]) {
    if let Ok(chunk) = ChunkRef::decode(bytes) {
        assert_eq!(chunk.encode(), bytes);
    }
    if let Ok(tree) = Tree::decode(bytes) {
        assert_eq!(tree.encode(), bytes);
    }
    drop(crate::keys::parse_wrapped(bytes));
    if let Ok(text) = std::str::from_utf8(bytes) {
        drop(MasterKeys::parse(text, "input"));
    }
}
