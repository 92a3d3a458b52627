//! Objects as files: written without a name, made durable, then linked to their name.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    path::{Path as FilePath, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use object_store::{Error, ObjectStore, Result, local::LocalFileSystem, path::Path};

use super::staged::Staged;
use crate::unnamed;

pub(super) struct Directory {
    root: PathBuf,
    /// Reads, lists and deletes.
    store: LocalFileSystem,
    synced: Arc<Folders>,
}

/// Folders whose names are known to be on disk: nobody removes one.
#[derive(Default)]
struct Folders(Mutex<HashSet<PathBuf>>);

impl Directory {
    pub(super) fn open(root: &FilePath) -> Result<Self> {
        let failed = |source| failed("make the directory", root, source);
        fs::create_dir_all(root).map_err(failed)?;
        let root = fs::canonicalize(root).map_err(failed)?;
        let store = LocalFileSystem::new_with_prefix(&root)?;
        Ok(Self { root, store, synced: Arc::default() })
    }

    pub(super) fn store(&self) -> &dyn ObjectStore {
        &self.store
    }

    pub(super) async fn stage(&self) -> Result<Staged> {
        let root = self.root.clone();
        blocking(move || {
            let file =
                unnamed::create(&root).map_err(|source| failed("make a file without a name in", &root, source))?;
            Ok(Staged::new(file))
        })
        .await
    }

    /// Makes the file durable and gives it its name, unless there is such a name.
    pub(super) async fn publish(&self, staged: Staged, path: &Path) -> Result<()> {
        let (root, synced) = (self.root.clone(), self.synced.clone());
        let target = self.store.path_to_filesystem(path)?;
        let key = path.to_string();
        blocking(move || {
            let file = staged.file();
            file.sync_all().map_err(|source| failed("sync", &target, source))?;
            match unnamed::link(&file, &target) {
                Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(Error::AlreadyExists { path: key, source: source.into() });
                }
                other => other.map_err(|source| failed("write", &target, source))?,
            }
            synced.sync(&root, &target).map_err(|source| failed("sync the folder of", &target, source))
        })
        .await
    }
}

impl Folders {
    /// Makes the name of a file durable: its folder, and once those above up to the root, any of which may be new (made by us or by a
    /// neighbour).
    fn sync(&self, root: &FilePath, target: &FilePath) -> io::Result<()> {
        let mut folders = target.ancestors().skip(1).take_while(|folder| folder.starts_with(root));
        let Some(folder) = folders.next() else { return Ok(()) };
        File::open(folder)?.sync_all()?;
        if self.known().contains(folder) {
            return Ok(());
        }
        folders.try_for_each(|above| File::open(above)?.sync_all())?;
        self.known().insert(folder.to_owned());
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

#[derive(Debug, thiserror::Error)]
#[error("could not {action} {path}")]
struct FileError {
    action: &'static str,
    path: String,
    source: io::Error,
}

pub(super) fn failed(action: &'static str, path: &FilePath, source: io::Error) -> Error {
    Error::Generic {
        store: "directory",
        source: Box::new(FileError { action, path: path.display().to_string(), source }),
    }
}
