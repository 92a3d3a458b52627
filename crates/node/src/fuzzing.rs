//! Parsers that are private, for the fuzz targets in `fuzz/`. A failed assertion is a finding.

use crate::records::{NodeRecord, SandboxRecord, TemplateRecord};

/// Mount points that a client asks for, one on each line.
pub fn mount_points(text: &str) {
    let paths: Vec<String> = text.lines().map(str::to_owned).collect();
    if crate::node::volumes::check_mount_points(&paths).is_err() {
        return;
    }
    for (at, path) in paths.iter().enumerate() {
        let normal = path.starts_with('/') && path[1..].split('/').all(|name| !matches!(name, "" | "." | ".."));
        assert!(normal, "{path:?}");
        let reserved = ["/proc", "/sys", "/dev"].iter().any(|own| std::path::Path::new(path).starts_with(own));
        assert!(!reserved, "{path:?}");
        assert!(paths[..at].iter().all(|other| other != path), "{path:?} twice");
    }
}

/// Records of a node's state.
pub fn records(bytes: &[u8]) {
    drop(serde_json::from_slice::<NodeRecord>(bytes));
    drop(serde_json::from_slice::<TemplateRecord>(bytes));
    drop(serde_json::from_slice::<SandboxRecord>(bytes));
}
