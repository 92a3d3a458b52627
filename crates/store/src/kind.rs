//! Kinds of framed records (`base::frame`) that the store writes. A number is never given away again.

/// A wrapped data key.
pub(crate) const WRAPPED_KEY: u16 = 16;
/// Header of a segment.
pub(crate) const SEGMENT: u16 = 17;
/// Index of a segment.
pub(crate) const SEGMENT_INDEX: u16 = 18;
/// Footer of a segment.
pub(crate) const SEGMENT_FOOTER: u16 = 19;
/// A node of a tree.
pub(crate) const TREE_NODE: u16 = 24;
/// A sealed manifest.
pub(crate) const MANIFEST: u16 = 25;
/// What is sealed in a manifest.
pub(crate) const MANIFEST_BODY: u16 = 26;
/// Which database holds a store's heads.
pub(crate) const STORE_ID: u16 = 27;
