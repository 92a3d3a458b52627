//! The layer with files that the operator gives to all sandboxes.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use super::{
    base_layer::{found, place_of},
    layer::{Access, Layer},
};
use crate::error::{Context, Error};

/// A file for sandboxes: where it is inside, absolute, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenFile {
    /// Where it is inside.
    pub inside: PathBuf,
    /// What is in it.
    pub content: Vec<u8>,
}

/// How the names of these layers begin.
const PREFIX: &str = "given-";

/// Whether a layer is one of these, by its name.
pub fn is_given_layer(layer: &Path) -> bool {
    layer.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX))
}

/// Makes a layer with files of root's, readable by all, for an image with these layers, topmost first, in the directory `layers`. Gives its path.
/// Repeating it is harmless.
///
/// Directories that the image has keep their owners and modes, and links of it are followed, inside its root. Where it has something else in the
/// place of a directory, the file is left out.
pub fn prepare_given_layer(layers: &Path, image: &[PathBuf], files: &[GivenFile]) -> Result<PathBuf, Error> {
    let (mut directories, mut placed) = (BTreeMap::new(), BTreeMap::new());
    for file in files {
        let (Some(directory), Some(name)) = (file.inside.parent().and_then(Path::to_str), file.inside.file_name())
        else {
            continue;
        };
        let place = place_of(image, directory);
        let above: Vec<&str> = place.ancestors().filter_map(Path::to_str).filter(|above| !above.is_empty()).collect();
        if above.iter().any(|above| found(image, above).is_some_and(|found| !found.is_dir())) {
            continue;
        }
        for above in above {
            let access = found(image, above).map_or(Access::root(0o755), |found| Access::from(&found));
            directories.insert(above.to_owned(), access);
        }
        if let Some(path) = place.join(name).to_str() {
            placed.insert(path.to_owned(), &file.content);
        }
    }
    let mut hash = DefaultHasher::new();
    directories.iter().for_each(|(path, Access { mode, uid, gid })| (path, mode, uid, gid).hash(&mut hash));
    placed.hash(&mut hash);
    let path = layers.join(format!("{PREFIX}{:016x}", hash.finish()));
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if path.is_dir() {
        return Ok(path);
    }
    // Whole or not there: sandboxes stand on it, and it never changes.
    let partial = sys::tree::Partial::create(&path).at("create", &path)?;
    let layer = Layer::open(partial.path())?;
    // In this order each is behind the one that it lies in.
    directories.iter().try_for_each(|(directory, access)| layer.directory(directory, *access))?;
    placed.iter().try_for_each(|(file, content)| layer.file(file, content))?;
    partial.complete_durably().at("complete", &path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;

    #[test]
    fn files_land_where_an_image_has_their_directories() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: owners need root");
            return;
        }
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let image = [dir.path().join("image")];
        fs::create_dir_all(image[0].join("conf/deep")).unwrap();
        fs::set_permissions(image[0].join("conf/deep"), PermissionsExt::from_mode(0o700)).unwrap();
        symlink("/conf", image[0].join("etc")).unwrap();
        fs::write(image[0].join("file"), "").unwrap();
        let file = |inside: &str, content: &str| GivenFile { inside: inside.into(), content: content.into() };
        let files = [file("/etc/deep/a", "1"), file("/new/b", "2"), file("/file/c", "3"), file("/d", "4")];
        let layer = prepare_given_layer(dir.path(), &image, &files).unwrap();
        let read = |path: &str| fs::read_to_string(layer.join(path)).ok();
        let all = ["conf/deep/a", "new/b", "file/c", "d"].map(read);
        assert_eq!(all, [Some("1".into()), Some("2".into()), None, Some("4".into())]);
        assert!(layer.join("etc").symlink_metadata().is_err() && layer.join("file").symlink_metadata().is_err());
        let mode = |path: &str| fs::metadata(layer.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("conf/deep"), mode("new"), mode("d")), (0o700, 0o755, 0o644));
        assert_eq!(prepare_given_layer(dir.path(), &image, &files).unwrap(), layer);
        assert_ne!(prepare_given_layer(dir.path(), &image, &[file("/d", "5")]).unwrap(), layer);
    }
}
