//! Reading all of a state, and saying by path what is wrong with it.
//!
//! Every node of the tree and every chunk of data is read from the store, past caches, and opened. Then the tree's own rules are checked: what is
//! named exists and is where it is looked for, all counts are right, and so is the account of segments that the collector goes by. Whatever is damaged is told, and the rest goes on. Memory: some bytes for each inode and chunk.

mod rules;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use store::{
    id::SegmentId,
    segment::ChunkRef,
    tree::{Entry, Stretch, Walk},
    verify::is_out_of_reach,
};

use self::rules::{Seen, Slot, circles, misaccounted, miscount};
use crate::{
    chunk,
    directory::Dirent,
    extents::Window,
    inode::{Ino, Inode},
    key::{Key, Part},
    limits::VERIFY_CHUNKS,
    loader::Loader,
    materialise::Layout,
    names::Names,
    pack::chunk_of,
    state::decode_xattrs,
};

/// Something that is wrong with a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is wrong with, without a slash at the beginning; `None` if that cannot be told, or is the volume as a whole.
    pub path: Option<Vec<u8>>,
    /// What is wrong.
    pub what: String,
    /// It may be sound: the store did not answer, or the key is not to be had.
    pub out_of_reach: bool,
}

/// What was looked at, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)] // the words say it
pub struct Verified {
    pub inodes: u64,
    pub bytes: u64,
    pub chunks: u64,
    pub findings: Vec<Finding>,
}

/// The inode that goes by.
struct Current {
    ino: Ino,
    inode: Inode,
    entries: u64,
    bytes: u64,
}

struct Verifier<'a> {
    loader: &'a Loader,
    layout: &'a Layout,
    names: Names<'a>,
    seen: HashMap<Ino, Seen>,
    current: Option<Current>,
    slot: Slot,
    chunks: BTreeSet<ChunkRef>,
    /// Bytes that windows refer to.
    used: BTreeMap<SegmentId, i64>,
    /// Parts of the tree are lost: what is counted is not all there is.
    partial: bool,
    verified: Verified,
}

/// Looks at all of a state. `loader` has nothing in memory.
pub(crate) async fn verify(loader: &Loader, layout: &Layout) -> Verified {
    let mut verifier = Verifier {
        loader,
        layout,
        names: Names::new(loader, layout),
        seen: HashMap::new(),
        current: None,
        slot: Slot::default(),
        chunks: BTreeSet::new(),
        used: BTreeMap::new(),
        partial: false,
        verified: Verified::default(),
    };
    verifier.read_tree().await;
    if !verifier.partial {
        verifier.check_counts().await;
    }
    verifier.read_chunks().await;
    verifier.verified
}

impl Verifier<'_> {
    async fn read_tree(&mut self) {
        let mut walk = Walk::new(self.loader, &self.layout.files);
        while let Some(stretch) = walk.next().await {
            match stretch {
                Stretch::Sound(entries) => {
                    for entry in entries {
                        self.entry(entry).await;
                    }
                }
                Stretch::Lost { from, to, error } => self.lost(from, to, &error).await,
            }
        }
        self.end_inode().await;
    }

    async fn entry(&mut self, Entry { key, value }: Entry) {
        let Some(key) = Key::decode(&key) else {
            return self.told(None, "a key of the tree is none of a volume").await;
        };
        if self.current.as_ref().is_some_and(|current| current.ino != key.ino) {
            self.end_inode().await;
        }
        let wrong =
            self.value(key, &value).unwrap_or_else(|| Some("what the tree holds for it cannot be read".to_owned()));
        if let Some(what) = wrong {
            self.told(Some(key.ino), what).await;
        }
    }

    /// What is wrong with it; `None` if the value is none of a volume.
    fn value(&mut self, key: Key, value: &Bytes) -> Option<Option<String>> {
        match key.part {
            Part::Inode => {
                let inode: Inode = postcard::from_bytes(value).ok()?;
                self.seen.entry(key.ino).or_default().says(&inode);
                self.current = Some(Current { ino: key.ino, inode, entries: 0, bytes: 0 });
                if key.ino.0 >= self.layout.superblock.next_ino {
                    return Some(Some("its number is one that will be given out".to_owned()));
                }
            }
            Part::Xattrs => drop(decode_xattrs(value)?),
            Part::Window(_) => {
                let window = Window::decode(value)?;
                self.chunks.extend(window.pieces().iter().filter_map(chunk_of));
                window.stored_bytes().for_each(|(id, bytes)| *self.used.entry(id).or_default() += bytes as i64);
                self.verified.bytes += window.bytes();
                self.current.iter_mut().for_each(|current| current.bytes += window.bytes());
            }
            Part::Entry(cookie) => {
                let entry: Dirent = postcard::from_bytes(value).ok()?;
                self.current.iter_mut().for_each(|current| current.entries += 1);
                self.seen.entry(key.ino).or_default().has_entry(entry.kind);
                self.seen.entry(entry.ino).or_default().is_named(key.ino, entry.kind);
                return Some(self.slot.misplaced(&self.layout.superblock.salt, (key.ino, cookie), &entry.name));
            }
            Part::Orphan(ino) => self.seen.entry(Ino(ino)).or_default().is_unnamed(),
        }
        Some(None)
    }

    /// What can be said of an inode when all its keys have gone by.
    async fn end_inode(&mut self) {
        let Some(Current { ino, inode, entries, bytes }) = self.current.take() else { return };
        self.verified.inodes += 1;
        if self.partial {
            return;
        }
        if bytes != inode.allocated {
            let what = format!("it has {bytes} bytes of data and says {}", inode.allocated);
            self.told(Some(ino), what).await;
        }
        if inode.is_directory() && entries != inode.size {
            self.told(Some(ino), format!("it has {entries} entries and says {}", inode.size)).await;
        }
    }

    async fn check_counts(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        for (ino, seen) in &seen {
            if let Some(what) = miscount(*ino, seen) {
                self.told(Some(*ino), what).await;
            }
        }
        for ino in circles(&seen) {
            self.told(Some(ino), "it is below itself, and so not below the top").await;
        }
        match misaccounted(self.loader, self.layout, std::mem::take(&mut self.used)).await {
            Ok(wrong) => {
                for what in wrong {
                    self.told(None, what).await;
                }
            }
            Err(error) => {
                let what = format!("the account of its segments cannot be read: {}", chain(&error));
                self.finding(None, what, is_out_of_reach(&error)).await;
            }
        }
        let about = &self.layout.superblock;
        for (what, found, said) in
            [("inodes", self.verified.inodes, about.inodes), ("bytes of data", self.verified.bytes, about.bytes)]
        {
            if found != said {
                self.told(None, format!("the volume has {found} {what} and says {said}")).await;
            }
        }
    }

    async fn read_chunks(&mut self) {
        let chunks: Vec<ChunkRef> = std::mem::take(&mut self.chunks).into_iter().collect();
        self.verified.chunks = chunks.len() as u64;
        let mut damaged: HashMap<ChunkRef, (String, bool)> = HashMap::new();
        for some in chunks.chunks(VERIFY_CHUNKS) {
            if let Ok(read) = self.loader.store().read_many(some).await
                && read.iter().all(|bytes| chunk::decode(bytes).is_some())
            {
                continue;
            }
            for chunk in some {
                let wrong = match self.loader.store().read(chunk).await {
                    Ok(bytes) if chunk::decode(&bytes).is_some() => continue,
                    Ok(_) => ("its data cannot be unpacked".to_owned(), false),
                    Err(error) => (format!("its data cannot be read: {}", chain(&error)), is_out_of_reach(&error)),
                };
                damaged.insert(*chunk, wrong);
            }
        }
        if !damaged.is_empty() {
            self.tell_damaged_chunks(&damaged).await;
        }
    }

    /// Goes through the tree once more, for whose data these chunks are.
    async fn tell_damaged_chunks(&mut self, damaged: &HashMap<ChunkRef, (String, bool)>) {
        let mut walk = Walk::new(self.loader, &self.layout.files);
        let mut told = HashSet::new();
        while let Some(stretch) = walk.next().await {
            let Stretch::Sound(entries) = stretch else { continue };
            for Entry { key, value } in entries {
                let Some(Key { ino, part: Part::Window(_) }) = Key::decode(&key) else { continue };
                let Some(window) = Window::decode(&value) else { continue };
                let wrong = window.pieces().iter().filter_map(chunk_of).find_map(|chunk| damaged.get(&chunk));
                if let Some((what, out_of_reach)) = wrong
                    && told.insert(ino)
                {
                    self.finding(Some(ino), what.clone(), *out_of_reach).await;
                }
            }
        }
    }

    /// A part of the tree that cannot be read.
    async fn lost(&mut self, from: Option<Bytes>, to: Option<Bytes>, error: &store::tree::TreeError) {
        self.partial = true;
        let ino = |key: Option<Bytes>| key.and_then(|key| Key::decode(&key)).map(|key| key.ino);
        let (first, end) = (ino(from), ino(to));
        let what = match (first, end) {
            (first, Some(end)) => {
                let first = first.map_or(1, |first| first.0);
                format!("the tree is lost for inodes {first} to {}: {}", end.0, chain(error))
            }
            (Some(first), None) => format!("the tree is lost for inodes from {} on: {}", first.0, chain(error)),
            (None, None) => format!("the whole tree is lost: {}", chain(error)),
        };
        self.finding(first, what, is_out_of_reach(error)).await;
    }

    async fn told(&mut self, ino: Option<Ino>, what: impl Into<String>) {
        self.finding(ino, what.into(), false).await;
    }

    async fn finding(&mut self, ino: Option<Ino>, what: String, out_of_reach: bool) {
        let path = match ino {
            Some(ino) => self.path(ino).await,
            None => None,
        };
        let what = match (ino, &path) {
            (Some(ino), None) => format!("inode {}: {what}", ino.0),
            _ => what,
        };
        self.verified.findings.push(Finding { path, what, out_of_reach });
    }

    /// As far as it can be told in a tree that is damaged.
    async fn path(&mut self, ino: Ino) -> Option<Vec<u8>> {
        let inode = self.names.inode(ino).await.ok()??;
        self.names.path_of(ino, &inode).await.ok()?
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
