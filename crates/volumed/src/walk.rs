//! Paths, resolved inside a volume: component by component, links followed there only, `..` of the top is the top.

use rustix::io::Errno;
use volume::{Attributes, Engine, Ino, Kind, New, ROOT};

use crate::limits::{COMPONENTS_MAX, LINKS_FOLLOWED_MAX};

/// What becomes of a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Last {
    Follow,
    Keep,
}

/// What becomes of directories on the way that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Refuse,
    Make,
}

/// Where a path leads.
#[derive(Debug)]
pub(crate) struct Place {
    /// The directory that the entry is in, or would be.
    pub(crate) directory: Attributes,
    /// The entry's name; `.` for the top directory.
    pub(crate) name: Vec<u8>,
    pub(crate) found: Option<Attributes>,
}

impl Place {
    /// What is there.
    pub(crate) fn existing(self) -> Result<Attributes, Errno> {
        self.found.ok_or(Errno::NOENT)
    }
}

/// Permissions of directories that are made on the way.
const DIRECTORY_MODE: u16 = 0o755;

struct Walk<'e> {
    engine: &'e Engine,
    /// The directories from below the top to where it is, with their names.
    way: Vec<(Vec<u8>, Attributes)>,
    /// Components to go, the next one last.
    rest: Vec<Vec<u8>>,
    links: usize,
}

/// Resolves `path`. Blocks.
pub(crate) fn walk(engine: &Engine, path: &[u8], last: Last, missing: Missing) -> Result<Place, Errno> {
    let mut walk = Walk { engine, way: Vec::new(), rest: Vec::new(), links: 0 };
    walk.go(path)?;
    while let Some(name) = walk.rest.pop() {
        let here = walk.here()?;
        let at_end = walk.rest.is_empty();
        if name == b".." {
            walk.way.pop();
            continue;
        }
        let found = match engine.lookup(here.ino, &name) {
            Err(Errno::NOENT) if at_end => return Ok(Place { directory: here, name, found: None }),
            Err(Errno::NOENT) if missing == Missing::Make => make_directory(engine, &here, &name)?,
            found => found?,
        };
        match found.inode.kind {
            Kind::Symlink if !at_end || last == Last::Follow => walk.follow(&found)?,
            Kind::Directory => walk.way.push((name, found)),
            _ if at_end => return Ok(Place { directory: here, name, found: Some(found) }),
            _ => return Err(Errno::NOTDIR),
        }
    }
    walk.directory()
}

impl Walk<'_> {
    /// Has the components of `path` before it.
    fn go(&mut self, path: &[u8]) -> Result<(), Errno> {
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        self.rest.extend(parts.rev().map(<[u8]>::to_vec));
        if self.rest.len() > COMPONENTS_MAX { Err(Errno::NAMETOOLONG) } else { Ok(()) }
    }

    fn here(&self) -> Result<Attributes, Errno> {
        self.way.last().map_or_else(|| self.engine.attributes(ROOT), |(_, here)| Ok(here.clone()))
    }

    fn follow(&mut self, link: &Attributes) -> Result<(), Errno> {
        self.links += 1;
        if self.links > LINKS_FOLLOWED_MAX {
            return Err(Errno::LOOP);
        }
        if link.inode.target.first() == Some(&b'/') {
            self.way.clear();
        }
        self.go(&link.inode.target)
    }

    /// The path ends at the directory where it is.
    fn directory(mut self) -> Result<Place, Errno> {
        let (name, found) = match self.way.pop() {
            Some(last) => last,
            None => (b".".to_vec(), self.engine.attributes(ROOT)?),
        };
        Ok(Place { directory: self.here()?, name, found: Some(found) })
    }
}

/// A directory that belongs to whom the one around it does. Somebody else may be faster.
fn make_directory(engine: &Engine, around: &Attributes, name: &[u8]) -> Result<Attributes, Errno> {
    match engine.make(around.ino, name, owned(around, Kind::Directory, DIRECTORY_MODE)) {
        Err(Errno::EXIST) => engine.lookup(around.ino, name),
        made => made,
    }
}

/// A new inode that belongs to whom the directory does.
pub(crate) fn owned<'a>(directory: &Attributes, kind: Kind, mode: u16) -> New<'a> {
    New { kind, mode, uid: directory.inode.uid, gid: directory.inode.gid, device: 0, target: b"" }
}

/// Removes a directory with all that is in it; gives the inodes that went. Blocks.
pub(crate) fn remove_all(engine: &Engine, directory: Ino, name: &[u8], top: Ino) -> Result<Vec<Ino>, Errno> {
    let mut gone = Vec::new();
    // Directories yet to be emptied, each with where it is; a directory comes again when it is empty.
    let mut rest = vec![(directory, name.to_vec(), top)];
    while let Some((parent, name, ino)) = rest.pop() {
        let entries: Vec<_> = match engine.list(ino, 0, REMOVED_AT_ONCE) {
            Err(Errno::STALE | Errno::NOENT) => continue,
            entries => entries?.into_iter().filter(|entry| !matches!(&entry.name[..], b"." | b"..")).collect(),
        };
        if entries.is_empty() {
            match engine.remove_directory(parent, &name) {
                Ok(()) => gone.push(ino),
                // Somebody else has removed it, or put something into it.
                Err(Errno::NOENT) => {}
                Err(Errno::NOTEMPTY) => rest.push((parent, name, ino)),
                Err(errno) => return Err(errno),
            }
            continue;
        }
        rest.push((parent, name, ino));
        for entry in entries {
            if entry.kind == Kind::Directory {
                rest.push((ino, entry.name, entry.ino));
                continue;
            }
            match engine.unlink(ino, &entry.name) {
                Ok(()) => gone.push(entry.ino),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(gone)
}

/// Entries that are listed before they are removed; with `.` and `..`.
const REMOVED_AT_ONCE: usize = 1026;
