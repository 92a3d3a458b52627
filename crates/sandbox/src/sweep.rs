//! Clearing away what a killed keeper left.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use base::id::SandboxId;

use crate::{
    cgroup::{self, Cgroups},
    error::{Context, Error},
};

/// Kills the processes and removes the groups and directories of all sandboxes that `is_kept` does not claim, however far
/// their creation or removal had come. Returns their ids.
///
/// Every process of a sandbox is born in its group and every mount lives in its processes, so these two places hold all
/// that there can be. `is_kept` is asked about each one only after it was found: who claims a sandbox before making it is
/// never swept, also by a sweep that began earlier. Several sweeps at once do not disturb each other. A failure is the
/// first of those met; what could be removed is removed all the same. Each of `places` holds one directory per sandbox;
/// other names in them are left alone.
pub fn sweep(
    cgroups: &Cgroups,
    places: &[PathBuf],
    is_kept: &dyn Fn(&SandboxId) -> bool,
) -> Result<Vec<SandboxId>, Error> {
    let mut ids = cgroups.list()?;
    for place in places {
        match fs::read_dir(place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            entries => {
                for entry in entries.at("list", place)? {
                    let name = entry.at("list", place)?.file_name();
                    ids.extend(name.to_str().and_then(|name| name.parse::<SandboxId>().ok()));
                }
            }
        }
    }
    ids.sort_unstable();
    ids.dedup();
    let mut failed = None;
    ids.retain(|id| {
        let swept = !is_kept(id);
        if swept {
            // One that cannot be removed must not keep the others.
            failed = failed.take().or(remove_remains(cgroups, places, id).err());
        }
        swept
    });
    crate::ids::forget_dead();
    failed.map_or(Ok(ids), Err)
}

/// Kills the processes and removes the groups and the directories of one sandbox, in whatever state it is.
pub fn remove_remains(cgroups: &Cgroups, places: &[PathBuf], id: &SandboxId) -> Result<(), Error> {
    cgroup::sweep(cgroups, id)?;
    remove_files(places, id)
}

/// Removes the directories of one sandbox whose processes are gone.
pub fn remove_files(places: &[PathBuf], id: &SandboxId) -> Result<(), Error> {
    places.iter().try_for_each(|place| remove_directory(&place.join(id.as_str())))
}

/// Removes `path` and everything below it; nothing there is fine. See [`sys::tree::remove`].
pub fn remove_directory(path: &Path) -> Result<(), Error> {
    sys::tree::remove(path).at("remove", path)
}
