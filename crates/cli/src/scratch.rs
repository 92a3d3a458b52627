//! Directories for the files of one run.

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// Where they are: /tmp may be memory, and sandboxes need a disk.
const PLACE: &str = "/var/tmp";

/// Makes the directory `pando-NAME-RANDOM`. Every user can write to its parent: a name that can be guessed, or an existing directory, could be
/// full of symbolic links that lead root's writes elsewhere. The caller removes it.
pub(crate) fn make(name: &str) -> Result<PathBuf> {
    make_in(Path::new(PLACE), name)
}

fn make_in(place: &Path, name: &str) -> Result<PathBuf> {
    let made = tempfile::Builder::new()
        .prefix(&format!("pando-{name}-"))
        .rand_bytes(12)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(place);
    Ok(made.with_context(|| format!("cannot make a directory in {}", place.display()))?.keep())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directory_is_new_and_closed_to_others() {
        let place = tempfile::tempdir().unwrap();
        let [one, other] = [(); 2].map(|()| make_in(place.path(), "name").unwrap());
        assert_ne!(one, other);
        assert_eq!(one.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    }
}
