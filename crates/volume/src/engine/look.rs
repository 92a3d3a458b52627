//! Questions.

use rustix::io::Errno;

use super::{Attributes, Engine};
use crate::{
    directory::{COOKIE_PARENT, COOKIE_SELF},
    inode::{Ino, Inode, Kind},
    state::{State, Step, Stop, entry_gap},
};

/// An entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Goes on behind this entry. Stays the same as long as the entry exists.
    pub cookie: u64,
    /// What it names.
    pub ino: Ino,
    /// What that is.
    pub kind: Kind,
    /// The name.
    pub name: Vec<u8>,
}

impl Listed {
    /// Is it the directory itself, or the one that it is in?
    pub fn is_dot(&self) -> bool {
        self.cookie <= COOKIE_PARENT
    }
}

/// How full a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the words say it
pub struct Usage {
    pub bytes: u64,
    pub bytes_max: u64,
    pub inodes: u64,
    pub inodes_max: u64,
}

impl Engine {
    /// The entry `name` of `directory`; `.` and `..` too.
    pub fn lookup(&self, directory: Ino, name: &[u8]) -> Result<Attributes, Errno> {
        self.ask(|state| {
            let ino = match name {
                b"." => directory,
                b".." => state.directory(directory)?.inode.parent,
                name => state.entry(directory, name)?.ok_or(Errno::NOENT)?.1,
            };
            attributes(state, ino)
        })
    }

    /// What `ino` is.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes, Errno> {
        self.ask(|state| attributes(state, ino))
    }

    /// Up to `count` entries behind `cookie`, which is 0 at first. In an order of their own; entries that are there all the time come
    /// exactly once, whatever is added or removed meanwhile.
    pub fn list(&self, directory: Ino, cookie: u64, count: usize) -> Result<Vec<Listed>, Errno> {
        self.ask(|state| list(state, directory, cookie, count))
    }

    /// As [`Engine::list`], with what each entry names, of which the kernel is told: all but `.` and `..` are pinned.
    pub fn list_told(&self, directory: Ino, cookie: u64, count: usize) -> Result<Vec<(Listed, Inode)>, Errno> {
        self.ask(|state| {
            let mut told = Vec::with_capacity(count);
            for entry in list(state, directory, cookie, count)? {
                match state.node(entry.ino) {
                    Ok(node) => told.push((entry, node.inode.clone())),
                    // What is known is enough for an answer.
                    Err(Stop::Miss(_)) if !told.is_empty() => break,
                    Err(stop) => return Err(stop),
                }
            }
            told.iter().filter(|(entry, _)| !entry.is_dot()).for_each(|(entry, _)| state.pin(entry.ino));
            Ok(told)
        })
    }

    /// Up to `length` bytes from `offset` on; less at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, length: u32) -> Result<Vec<u8>, Errno> {
        let plan = self.ask(|state| state.plan_read(ino, offset, length.into()))?;
        self.fetch(&plan)
    }

    /// Where a symbolic link leads.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let inode = self.attributes(ino)?.inode;
        if inode.kind == Kind::Symlink { Ok(inode.target) } else { Err(Errno::INVAL) }
    }

    /// The first data at `offset` or behind it; `ENXIO` if there is none.
    pub fn seek_data(&self, ino: Ino, offset: u64) -> Result<u64, Errno> {
        self.ask(|state| state.next_data(ino, offset))
    }

    /// The first hole at `offset` or behind it; the end of the file counts as one.
    pub fn seek_hole(&self, ino: Ino, offset: u64) -> Result<u64, Errno> {
        self.ask(|state| state.next_hole(ino, offset))
    }

    /// The value of an extended attribute; `ENODATA` if there is none.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.ask(|state| Ok(state.node(ino)?.xattrs.get(name).cloned().ok_or(Errno::NODATA)?))
    }

    /// The names of all extended attributes.
    pub fn xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>, Errno> {
        self.ask(|state| Ok(state.node(ino)?.xattrs.keys().cloned().collect()))
    }

    /// How full the volume is.
    pub fn usage(&self) -> Result<Usage, Errno> {
        let state = self.lock()?;
        let about = state.superblock();
        let (bytes, bytes_max) = (about.bytes, about.bytes_max);
        Ok(Usage { bytes, bytes_max, inodes: about.inodes, inodes_max: about.inodes_max })
    }

    /// What is in memory and in the log only: bytes of data, and [`crate::limits::DIRTY_KEY_BYTES`] for each inode, name or window that has changed.
    pub fn dirty_bytes(&self) -> Result<u64, Errno> {
        Ok(self.lock()?.dirty_bytes())
    }

    /// Inodes that are in memory.
    pub fn inodes_in_memory(&self) -> Result<usize, Errno> {
        Ok(self.lock()?.inodes_in_memory())
    }
}

pub(super) fn attributes(state: &State, ino: Ino) -> Step<Attributes> {
    Ok(Attributes { ino, inode: state.node(ino)?.inode.clone() })
}

fn list(state: &State, directory: Ino, cookie: u64, count: usize) -> Step<Vec<Listed>> {
    let node = state.directory(directory)?;
    let dots = [(COOKIE_SELF, directory, "."), (COOKIE_PARENT, node.inode.parent, "..")];
    let dots = dots.into_iter().filter(|(dot, ..)| *dot > cookie).take(count);
    let mut listed: Vec<Listed> = dots
        .map(|(cookie, ino, name)| Listed { cookie, ino, kind: Kind::Directory, name: name.as_bytes().to_vec() })
        .collect();
    let mut from = cookie.max(COOKIE_PARENT) + 1;
    while listed.len() < count {
        match node.entries.next(from) {
            Ok(Some((cookie, entry))) => {
                let (ino, kind, name) = (entry.ino, entry.kind, entry.name.clone());
                listed.push(Listed { cookie, ino, kind, name });
                from = cookie + 1;
            }
            Ok(None) => break,
            // What is known is enough for an answer.
            Err(_) if !listed.is_empty() => break,
            Err(gap) => return Err(entry_gap(directory, gap)),
        }
    }
    Ok(listed)
}
