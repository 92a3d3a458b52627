//! Where inodes of a state are named: paths, for whoever walks the tree by its keys and tells people of it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    num::NonZeroUsize,
};

use bytes::Bytes;
use lru::LruCache;
use serde::de::DeserializeOwned;
use store::tree::{Scan, Tree};

use crate::{
    VolumeError,
    directory::Dirent,
    inode::{Ino, Inode, ROOT},
    key::{Key, Part},
    limits::{DEPTH_MAX, NAMES_KNOWN, PAGE_KEYS, PAGES_KNOWN},
    loader::Loader,
    materialise::Layout,
};

/// Names in one state. Remembers what it read lately.
pub(crate) struct Names<'a> {
    loader: &'a Loader,
    tree: Tree,
    next_ino: u64,
    /// Paths of directories, each with a slash at its end but for the top one's.
    paths: LruCache<Ino, Vec<u8>>,
    /// What was scanned last, each all there is from its first key to its last.
    pages: VecDeque<BTreeMap<Bytes, Bytes>>,
}

/// A value of the tree, if there is one.
pub(crate) fn decoded<T: DeserializeOwned>(value: Option<Bytes>) -> Result<Option<T>, VolumeError> {
    let decoded = value.map(|value| postcard::from_bytes(&value)).transpose();
    decoded.map_err(|_| VolumeError::Damaged { what: "an inode or an entry" })
}

impl<'a> Names<'a> {
    pub(crate) fn new(loader: &'a Loader, layout: &Layout) -> Self {
        let paths = LruCache::new(NonZeroUsize::new(NAMES_KNOWN).unwrap_or(NonZeroUsize::MIN));
        Self { loader, tree: layout.files, next_ino: layout.superblock.next_ino, paths, pages: VecDeque::new() }
    }

    pub(crate) fn loader(&self) -> &'a Loader {
        self.loader
    }

    pub(crate) fn tree(&self) -> Tree {
        self.tree
    }

    /// Above the numbers of all inodes.
    pub(crate) fn next_ino(&self) -> u64 {
        self.next_ino
    }

    pub(crate) async fn inode(&mut self, ino: Ino) -> Result<Option<Inode>, VolumeError> {
        decoded(self.get(Key::inode(ino)).await?)
    }

    pub(crate) async fn entry(&mut self, directory: Ino, cookie: u64) -> Result<Option<Dirent>, VolumeError> {
        decoded(self.get(Key::entry(directory, cookie)).await?)
    }

    /// Is the entry at `place` a name of `ino`?
    pub(crate) async fn names(&mut self, place: (Ino, u64), ino: Ino) -> Result<bool, VolumeError> {
        Ok(self.entry(place.0, place.1).await?.is_some_and(|entry| entry.ino == ino))
    }

    /// The path of the newest name of an inode; `None` if that is gone.
    pub(crate) async fn path_of(&mut self, ino: Ino, inode: &Inode) -> Result<Option<Vec<u8>>, VolumeError> {
        if ino == ROOT {
            return Ok(Some(Vec::new()));
        }
        match self.entry(inode.parent, inode.cookie).await? {
            Some(entry) if entry.ino == ino => self.path_in(inode.parent, &entry.name).await.map(Some),
            Some(_) | None => Ok(None),
        }
    }

    /// The path of `name` in `directory`.
    pub(crate) async fn path_in(&mut self, directory: Ino, name: &[u8]) -> Result<Vec<u8>, VolumeError> {
        let mut path = self.directory_path(directory).await?;
        path.extend_from_slice(name);
        Ok(path)
    }

    async fn directory_path(&mut self, directory: Ino) -> Result<Vec<u8>, VolumeError> {
        let lost = VolumeError::Damaged { what: "a directory's place" };
        let (mut below, mut at) = (Vec::new(), directory);
        let mut path = loop {
            if at == ROOT {
                break Vec::new();
            }
            if let Some(path) = self.paths.get(&at) {
                break path.clone();
            }
            let Some(inode) = self.inode(at).await? else { return Err(lost) };
            let Some(entry) = self.entry(inode.parent, inode.cookie).await? else { return Err(lost) };
            if entry.ino != at || below.len() == DEPTH_MAX {
                return Err(lost);
            }
            below.push((at, entry.name));
            at = inode.parent;
        };
        for (ino, name) in below.into_iter().rev() {
            path.extend_from_slice(&name);
            path.push(b'/');
            self.paths.put(ino, path.clone());
        }
        Ok(path)
    }

    /// For each of some inodes, which ascend, one entry that names it, and its directory. Reads all entries.
    pub(crate) async fn first_names(&mut self, wanted: &[Ino]) -> Result<Vec<(Ino, Dirent)>, VolumeError> {
        let (mut found, mut missing) = (Vec::new(), wanted.iter().copied().collect::<BTreeSet<_>>());
        let mut scan = Scan::all(self.loader, &self.tree);
        while !missing.is_empty() {
            let Some(read) = scan.next().await.map_err(VolumeError::store("look for a file's names"))? else { break };
            let key = Key::decode(&read.key).ok_or(VolumeError::Damaged { what: "a key" })?;
            if let Part::Entry(_) = key.part
                && let Some(entry) = decoded::<Dirent>(Some(read.value))?
                && missing.remove(&entry.ino)
            {
                found.push((key.ino, entry));
            }
        }
        Ok(found)
    }

    /// One value. Reads those behind it, too: what is asked for next is near, more often than not.
    async fn get(&mut self, key: Key) -> Result<Option<Bytes>, VolumeError> {
        let key = key.encode();
        let within = |page: &&BTreeMap<Bytes, Bytes>| {
            let ends = page.first_key_value().zip(page.last_key_value());
            ends.is_some_and(|((first, _), (last, _))| **first <= key[..] && key[..] <= **last)
        };
        if let Some(page) = self.pages.iter().find(within) {
            return Ok(page.get(&key[..]).cloned());
        }
        let mut scan = Scan::new(self.loader, &self.tree, Bytes::copy_from_slice(&key), None);
        let mut page = BTreeMap::new();
        while page.len() < PAGE_KEYS / 2 {
            let Some(entry) = scan.next().await.map_err(VolumeError::store("read the volume's tree"))? else { break };
            page.insert(entry.key, entry.value);
        }
        let value = page.get(&key[..]).cloned();
        self.pages.push_front(page);
        self.pages.truncate(PAGES_KNOWN);
        Ok(value)
    }
}
