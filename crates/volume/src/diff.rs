//! What two states of a volume differ in, by path, without reading data of files.
//!
//! The trees are compared key by key, and what both have in common is skipped unread. Keys are those of inodes, people want paths: an
//! inode knows its newest name (directory and cookie), so its path is found by one read for each level, and a rename is told from a
//! removal by asking either state where the inode is named. What is in memory does not grow with the difference.

use std::ops::ControlFlow;

use store::tree::{self, Diff};

use crate::{
    VolumeError,
    directory::Dirent,
    inode::{Ino, Inode, Kind},
    key::{Key, Part},
    names::{Names, decoded},
};

/// What became of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// It is there now and was not.
    Added,
    /// It was there and is not any more.
    Removed,
    /// Data or size are others, or another file has the name. Told once for a file with several names.
    Modified,
    /// Mode, owner, extended attributes or, of all but directories, the time of modification are others.
    Metadata,
    /// It was `from`. What is in a directory that was renamed is told only as far as it has changed itself.
    Renamed {
        /// The path in the first state.
        from: Vec<u8>,
    },
}

/// A path that differs between two states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Without a slash at the beginning.
    pub path: Vec<u8>,
    /// What it is, or was.
    pub kind: Kind,
    /// What became of it.
    pub change: Change,
}

/// Takes each change as it is found; `Break` ends the search.
pub type Tell<'a> = dyn FnMut(Changed) -> ControlFlow<()> + Send + 'a;

/// Changes of one inode itself, until all of its keys have been seen.
struct Pending {
    ino: Ino,
    before: Option<Inode>,
    after: Option<Inode>,
    xattrs: bool,
    data: bool,
}

struct Differ<'a, 'n> {
    before: Names<'n>,
    after: Names<'n>,
    tell: &'a mut Tell<'a>,
    /// Inodes whose newest name is gone: hard links. Their other names have to be looked for.
    unnamed: Vec<(Ino, Kind, Change)>,
}

/// Where an inode is named.
type Place = (Ino, u64);

type Told = Result<ControlFlow<()>, VolumeError>;

/// Tells all differences, in an order of its own.
pub(crate) async fn diff<'a>(before: Names<'_>, after: Names<'_>, tell: &'a mut Tell<'a>) -> Result<(), VolumeError> {
    let loader = before.loader();
    let mut changes = Diff::new(loader, &before.tree(), &after.tree());
    let mut differ = Differ { before, after, tell, unnamed: Vec::new() };
    let mut pending: Option<Pending> = None;
    loop {
        let change = changes.next().await.map_err(VolumeError::store("compare two states"))?;
        let key = match &change {
            Some(change) => Some(Key::decode(&change.key).ok_or(VolumeError::Damaged { what: "a key" })?),
            None => None,
        };
        if pending.as_ref().is_some_and(|pending| key.is_none_or(|key| key.ino != pending.ino))
            && let Some(done) = pending.take()
            && differ.inode_changed(done).await?.is_break()
        {
            return Ok(());
        }
        let (Some(change), Some(key)) = (change, key) else { return differ.find_names().await };
        match key.part {
            Part::Orphan(_) => {}
            Part::Entry(cookie) => {
                if differ.entry_changed((key.ino, cookie), change).await?.is_break() {
                    return Ok(());
                }
            }
            Part::Inode => {
                let (before, after) = (decoded(change.before)?, decoded(change.after)?);
                pending = Some(Pending { ino: key.ino, before, after, xattrs: false, data: false });
            }
            // Each change of data or attributes changes the inode. If that is the same, its data only lies elsewhere now.
            Part::Xattrs => pending.iter_mut().for_each(|pending| pending.xattrs = true),
            Part::Window(_) => pending.iter_mut().for_each(|pending| pending.data = true),
        }
    }
}

impl Differ<'_, '_> {
    async fn inode_changed(&mut self, pending: Pending) -> Told {
        let Pending { ino, before, after, xattrs, data } = pending;
        // What was made or is gone is told by its entries.
        let (Some(before), Some(after)) = (before, after) else { return Ok(ControlFlow::Continue(())) };
        let (directory, kind) = (after.is_directory(), after.kind);
        let other = (before.born, before.kind) != (after.born, after.kind);
        let place = |inode: &Inode| (inode.parent, inode.cookie);
        if other && place(&before) != place(&after) {
            // Two forks gave one number to two files, which their entries tell.
            return Ok(ControlFlow::Continue(()));
        }
        let about = |inode: &Inode| (inode.mode, inode.uid, inode.gid, inode.device);
        let touched = !directory && before.modified != after.modified;
        let change = match (data || before.size != after.size && !directory || other, xattrs || touched) {
            (true, _) => Change::Modified,
            (false, changed) if changed || about(&before) != about(&after) => Change::Metadata,
            (false, _) => return Ok(ControlFlow::Continue(())),
        };
        if after.links == 0 {
            return Ok(ControlFlow::Continue(()));
        }
        match self.after.path_of(ino, &after).await? {
            Some(path) => Ok((self.tell)(Changed { path, kind, change })),
            None => {
                self.unnamed.push((ino, kind, change));
                Ok(ControlFlow::Continue(()))
            }
        }
    }

    async fn entry_changed(&mut self, place: Place, change: tree::Change) -> Told {
        let (before, after): (Option<Dirent>, Option<Dirent>) = (decoded(change.before)?, decoded(change.after)?);
        let moved_away = match &before {
            Some(entry) => self.moved(entry.ino).await?.filter(|(from, _)| *from == place),
            None => None,
        };
        let moved_here = match &after {
            Some(entry) => self.moved(entry.ino).await?.filter(|(_, to)| *to == place),
            None => None,
        };
        if let (Some(old), Some(new)) = (&before, &after)
            && (&old.name, old.kind, moved_away, moved_here) == (&new.name, new.kind, None, None)
        {
            return self.told(place.0, new, Change::Modified, true).await;
        }
        if let Some(old) = &before {
            let told = match moved_away {
                Some((_, (directory, cookie))) => self.renamed(place.0, old, directory, cookie).await?,
                None => self.told(place.0, old, Change::Removed, false).await?,
            };
            if told.is_break() {
                return Ok(told);
            }
        }
        match &after {
            // The name that it had tells it.
            Some(new) if moved_here.is_none() => self.told(place.0, new, Change::Added, true).await,
            _ => Ok(ControlFlow::Continue(())),
        }
    }

    /// The one name that an inode had, and the one it has, if they are two.
    async fn moved(&mut self, ino: Ino) -> Result<Option<(Place, Place)>, VolumeError> {
        if ino.0 >= self.before.next_ino() || ino.0 >= self.after.next_ino() {
            return Ok(None);
        }
        let (Some(before), Some(after)) = (self.before.inode(ino).await?, self.after.inode(ino).await?) else {
            return Ok(None);
        };
        let (from, to) = ((before.parent, before.cookie), (after.parent, after.cookie));
        let same = (before.born, before.kind) == (after.born, after.kind);
        let moved = same
            && self.before.names(from, ino).await?
            && !self.after.names(from, ino).await?
            && self.after.names(to, ino).await?
            && !self.before.names(to, ino).await?;
        Ok(moved.then_some((from, to)))
    }

    async fn renamed(&mut self, from: Ino, old: &Dirent, to: Ino, cookie: u64) -> Told {
        let Some(new) = self.after.entry(to, cookie).await? else { return Ok(ControlFlow::Continue(())) };
        let from = self.before.path_in(from, &old.name).await?;
        self.told(to, &new, Change::Renamed { from }, true).await
    }

    async fn told(&mut self, directory: Ino, entry: &Dirent, change: Change, now: bool) -> Told {
        let names = if now { &mut self.after } else { &mut self.before };
        let path = names.path_in(directory, &entry.name).await?;
        Ok((self.tell)(Changed { path, kind: entry.kind, change }))
    }

    /// Looks through all entries for files whose newest name is gone.
    async fn find_names(mut self) -> Result<(), VolumeError> {
        self.unnamed.sort_unstable_by_key(|(ino, ..)| *ino);
        let wanted: Vec<Ino> = self.unnamed.iter().map(|(ino, ..)| *ino).collect();
        for (directory, entry) in self.after.first_names(&wanted).await? {
            let Ok(at) = wanted.binary_search(&entry.ino) else { continue };
            let change = self.unnamed[at].2.clone();
            if self.told(directory, &entry, change, true).await?.is_break() {
                break;
            }
        }
        Ok(())
    }
}
