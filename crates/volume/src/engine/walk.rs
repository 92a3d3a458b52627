//! Paths, for adapters that have no kernel to walk them. All stay in the volume: its top directory is `/` and its own parent.

use rustix::io::Errno;

use super::{Attributes, Engine};
use crate::{
    inode::{Ino, Kind, ROOT},
    limits::SYMLINKS_MAX,
    op::New,
};

/// Whether a symbolic link at the end of a path is followed. Those before it always are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the words say it
pub enum Links {
    Follow,
    Keep,
}

/// A path that is being walked.
struct Walk<'a> {
    engine: &'a Engine,
    at: Ino,
    /// Components that are left, the next one last.
    rest: Vec<Vec<u8>>,
    links: usize,
}

impl Engine {
    /// What `path` leads to. A path that ends in `/` is a directory's.
    pub fn resolve(&self, path: &[u8], links: Links) -> Result<Attributes, Errno> {
        let directory = path.ends_with(b"/");
        let mut walk = Walk::new(self, path);
        while let Some(name) = walk.rest.pop() {
            let follow = directory || links == Links::Follow || !walk.rest.is_empty();
            walk.enter(&name, follow)?;
        }
        let found = self.attributes(walk.at)?;
        if directory && !found.inode.is_directory() { Err(Errno::NOTDIR) } else { Ok(found) }
    }

    /// The directory that the last component of `path` is in, and that component: it need not exist, and is no `.` or `..`.
    pub fn resolve_parent(&self, path: &[u8]) -> Result<(Ino, Vec<u8>), Errno> {
        self.parent_of(path, |_, _| Err(Errno::NOENT))
    }

    /// As `resolve_parent`, with directories that are missing made as `new` says. `made` is told where and under which name each of them is,
    /// also if a later one cannot be made.
    pub fn make_parents(
        &self,
        path: &[u8],
        new: New<'_>,
        mut made: impl FnMut(Ino, &[u8]),
    ) -> Result<(Ino, Vec<u8>), Errno> {
        let new = New { kind: Kind::Directory, target: b"", ..new };
        self.parent_of(path, |directory, name| {
            match self.make(directory, name, new) {
                Ok(_) => made(directory, name),
                // Somebody else was faster: it is entered as any other.
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            Ok(())
        })
    }

    /// The last directory that is there on the way to `path`.
    pub fn nearest(&self, path: &[u8]) -> Result<Ino, Errno> {
        let mut nearest = ROOT;
        let found = self.parent_of(path, |directory, _| {
            nearest = directory;
            Err(Errno::NOENT)
        });
        match found {
            Err(Errno::NOENT) => Ok(nearest),
            found => found.map(|(directory, _)| directory),
        }
    }

    /// `missing` makes what is missing, or says that it cannot be.
    fn parent_of(
        &self,
        path: &[u8],
        mut missing: impl FnMut(Ino, &[u8]) -> Result<(), Errno>,
    ) -> Result<(Ino, Vec<u8>), Errno> {
        let mut walk = Walk::new(self, path);
        let last = if walk.rest.is_empty() { None } else { Some(walk.rest.remove(0)) };
        let last = last.filter(|name| name != b"." && name != b"..").ok_or(Errno::INVAL)?;
        while let Some(name) = walk.rest.pop() {
            match walk.enter(&name, true) {
                Err(Errno::NOENT) if self.is_missing(walk.at, &name)? => {
                    missing(walk.at, &name)?;
                    walk.enter(&name, true)?;
                }
                entered => entered?,
            }
        }
        match self.attributes(walk.at)?.inode.is_directory() {
            true => Ok((walk.at, last)),
            false => Err(Errno::NOTDIR),
        }
    }

    fn is_missing(&self, directory: Ino, name: &[u8]) -> Result<bool, Errno> {
        match self.lookup(directory, name) {
            Ok(_) => Ok(false),
            Err(Errno::NOENT) => Ok(true),
            Err(errno) => Err(errno),
        }
    }
}

impl<'a> Walk<'a> {
    fn new(engine: &'a Engine, path: &[u8]) -> Self {
        Self { engine, at: ROOT, rest: components(path), links: 0 }
    }

    /// Goes to `name`, or puts where it leads before what is left.
    fn enter(&mut self, name: &[u8], follow: bool) -> Result<(), Errno> {
        let found = self.engine.lookup(self.at, name)?;
        if found.inode.kind != Kind::Symlink || !follow {
            self.at = found.ino;
            return Ok(());
        }
        self.links += 1;
        if self.links > SYMLINKS_MAX {
            return Err(Errno::LOOP);
        }
        if found.inode.target.starts_with(b"/") {
            self.at = ROOT;
        }
        self.rest.append(&mut components(&found.inode.target));
        Ok(())
    }
}

/// The parts of a path, the first one last.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    parts.map(<[u8]>::to_vec).rev().collect()
}
