//! Clearing away what a killed keeper left.

use std::{collections::HashSet, fs, io, path::Path};

use base::id::SandboxId;

use crate::{
    cgroup::{self, Cgroups},
    error::{Context, Error},
    tree,
};

/// Kills the processes and removes the groups and directories of all sandboxes that are not in `keep`, however far their
/// creation or removal had come. Returns their ids.
///
/// Every process of a sandbox is born in its group and every mount lives in its processes, so these two places hold all
/// that there can be. `sandboxes_dir` holds one directory per sandbox; other names in it are left alone.
pub fn sweep(cgroups: &Cgroups, sandboxes_dir: &Path, keep: &HashSet<SandboxId>) -> Result<Vec<SandboxId>, Error> {
    let mut ids = cgroups.list()?;
    match fs::read_dir(sandboxes_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        entries => {
            for entry in entries.at("list", sandboxes_dir)? {
                let name = entry.at("list", sandboxes_dir)?.file_name();
                ids.extend(name.to_str().and_then(|name| name.parse::<SandboxId>().ok()));
            }
        }
    }
    ids.sort_unstable();
    ids.dedup();
    ids.retain(|id| !keep.contains(id));
    for id in &ids {
        cgroup::sweep(cgroups, id)?;
        tree::remove(&sandboxes_dir.join(id.as_str()))?;
    }
    Ok(ids)
}
