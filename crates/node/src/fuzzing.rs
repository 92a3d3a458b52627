//! Parsers that are private, for the fuzz targets in `fuzz/`. A failed assertion is a finding.

use crate::records::{NodeRecord, SandboxRecord, TemplateRecord};

/// Records of a node's state.
pub fn records(bytes: &[u8]) {
    drop(serde_json::from_slice::<NodeRecord>(bytes));
    drop(serde_json::from_slice::<TemplateRecord>(bytes));
    drop(serde_json::from_slice::<SandboxRecord>(bytes));
}
