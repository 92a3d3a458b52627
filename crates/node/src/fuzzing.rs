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
        let lies_in = |other: &str| std::path::Path::new(path).starts_with(other);
        let own = ["/proc", "/sys", "/dev", "/run/pando", "/etc/hostname", "/etc/hosts", "/etc/machine-id"];
        assert!(!own.into_iter().any(lies_in) && path != "/" && path != "/etc" && path != "/run", "{path:?}");
        assert!(!paths[..at].iter().any(|other| lies_in(other)), "{path:?} lies in an earlier one");
    }
}

/// Records of a node's state.
pub fn records(bytes: &[u8]) {
    drop(serde_json::from_slice::<NodeRecord>(bytes));
    drop(serde_json::from_slice::<TemplateRecord>(bytes));
    drop(serde_json::from_slice::<SandboxRecord>(bytes));
}
