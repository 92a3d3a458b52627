//! The directories of downloads: one for each manifest, so that an interrupted pull goes on where it ended.
//!
//! One pull at a time works in a directory. Those that none works in wait for the next pull of that manifest. They are bounded in number and age.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use images::Digest;
use tokio::sync::OwnedMutexGuard;

use crate::{
    error::{Context, Result},
    limits::{WAITING_BYTES_MAX, WAITING_MAX, WAITING_TIME_MAX},
};

/// Held by who works in a directory.
pub(crate) type Turn = OwnedMutexGuard<()>;

/// Ends the name of a directory that is about to be removed.
const GONE: &str = ".gone";

/// All of a node.
#[derive(Debug)]
pub(crate) struct Downloads {
    root: PathBuf,
    /// By the names of the directories.
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Downloads {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root, turns: Mutex::default() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where an image with this manifest is downloaded.
    pub(crate) fn place(&self, manifest: &Digest) -> PathBuf {
        self.root.join(manifest.hex())
    }

    /// Waits until nothing else works there.
    pub(crate) async fn turn(&self, manifest: &Digest) -> Turn {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(manifest.hex().to_owned()).or_default())
        };
        turn.lock_owned().await
    }

    /// Removes downloads that nothing works on: all, or those that wait too long and the oldest of too many. Gives how many.
    pub(crate) fn sweep(&self, which: Sweep) -> Result<usize> {
        let Ok(found) = fs::read_dir(&self.root) else { return Ok(0) };
        let mut waiting: Vec<(SystemTime, String)> = Vec::new();
        for entry in found {
            let name = entry.at("list", &self.root)?.file_name().to_string_lossy().into_owned();
            if name.ends_with(GONE) {
                remove(&self.root.join(&name))?;
                continue;
            }
            // Written when a pull begins to work there.
            let began = fs::metadata(self.root.join(&name).join("index.json")).and_then(|found| found.modified());
            waiting.push((began.unwrap_or(SystemTime::UNIX_EPOCH), name));
        }
        // The newest first: what they leave of the bounds is for the older ones.
        waiting.sort_by(|one, other| other.cmp(one));
        let (mut removed, mut bytes) = (0, 0);
        for (number, (began, name)) in waiting.iter().enumerate() {
            bytes += bytes_in(&self.root.join(name).join("blobs/sha256"));
            let is_old = began.elapsed().unwrap_or(Duration::ZERO) > WAITING_TIME_MAX;
            let stays = number < WAITING_MAX && bytes <= WAITING_BYTES_MAX && !is_old;
            if which == Sweep::Stale && stays {
                continue;
            }
            if let Some(gone) = self.set_aside(name)? {
                remove(&gone)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Gives a directory another name, unless something works there. No pull begins to in between.
    fn set_aside(&self, name: &str) -> Result<Option<PathBuf>> {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.get(name).is_some_and(|turn| Arc::strong_count(turn) > 1) {
            return Ok(None);
        }
        let path = self.root.join(name);
        let gone = self.root.join(format!("{name}-{}{GONE}", base::id::random_uuid()));
        match fs::rename(&path, &gone) {
            Ok(()) => Ok(Some(gone)),
            // Another sweep was faster.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at("remove", &path),
        }
    }
}

/// Of all files in a directory. One that cannot be read has none.
fn bytes_in(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

/// What [`Downloads::sweep`] removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sweep {
    All,
    Stale,
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    sys::tree::remove(path).at("remove", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(downloads: &Downloads, name: &str, age: Duration) -> Digest {
        let digest = Digest::of(name.as_bytes());
        let place = downloads.place(&digest);
        fs::create_dir_all(&place).unwrap();
        let index = fs::File::create(place.join("index.json")).unwrap();
        index.set_modified(SystemTime::now() - age).unwrap();
        digest
    }

    #[tokio::test]
    async fn old_downloads_and_too_many_go_unless_they_are_worked_on() {
        let place = tempfile::tempdir().unwrap();
        let downloads = Downloads::new(place.path().join("pulls"));
        assert_eq!(downloads.sweep(Sweep::All).unwrap(), 0);
        let day = Duration::from_secs(25 * 60 * 60);
        let worked_on = make(&downloads, "worked on", day);
        let turn = downloads.turn(&worked_on).await;
        let old = make(&downloads, "old", day);
        let all: Vec<Digest> = (0..WAITING_MAX as u64)
            .map(|number| make(&downloads, &number.to_string(), Duration::from_secs(number)))
            .collect();
        // Too many and too old are two, and one of these is worked on.
        assert_eq!(downloads.sweep(Sweep::Stale).unwrap(), 1);
        assert!(!downloads.place(&old).exists() && downloads.place(&worked_on).exists());
        assert!(all.iter().all(|digest| downloads.place(digest).exists()));
        assert_eq!(downloads.sweep(Sweep::All).unwrap(), WAITING_MAX);
        drop(turn);
        assert_eq!(downloads.sweep(Sweep::All).unwrap(), 1);
        assert_eq!(fs::read_dir(downloads.root()).unwrap().count(), 0);
    }

    #[test]
    fn downloads_that_wait_are_bounded_in_bytes() {
        let place = tempfile::tempdir().unwrap();
        let downloads = Downloads::new(place.path().join("pulls"));
        let all: Vec<Digest> = (0..3).map(|age| make(&downloads, &age.to_string(), Duration::from_secs(age))).collect();
        for digest in &all {
            let blobs = downloads.place(digest).join("blobs/sha256");
            fs::create_dir_all(&blobs).unwrap();
            fs::File::create(blobs.join("x")).unwrap().set_len(WAITING_BYTES_MAX / 2).unwrap();
        }
        assert_eq!(downloads.sweep(Sweep::Stale).unwrap(), 1);
        assert!(downloads.place(&all[0]).exists() && downloads.place(&all[1]).exists());
    }
}
