//! The reference: a filesystem as simple as can be, which can be cloned.

use std::collections::BTreeMap;

use rustix::io::Errno;
use volume::{Kind, Rename};

type Outcome = Result<(), Errno>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Thing {
    pub(crate) kind: Kind,
    pub(crate) mode: u16,
    pub(crate) links: u32,
    pub(crate) data: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Model {
    things: BTreeMap<u32, Thing>,
    /// Entries by directory and name.
    entries: BTreeMap<(u32, Vec<u8>), u32>,
    next: u32,
}

/// A path: names of one letter.
pub(crate) type Path = [u8];

impl Model {
    pub(crate) fn new() -> Self {
        let mut things = BTreeMap::new();
        things.insert(0, Thing::new(Kind::Directory, 0o755));
        Self { things, entries: BTreeMap::new(), next: 1 }
    }

    /// All that there is, by path.
    pub(crate) fn dump(&self) -> BTreeMap<Vec<u8>, Thing> {
        let mut dump = BTreeMap::new();
        self.dump_below(0, &mut Vec::new(), &mut dump);
        dump
    }

    fn dump_below(&self, id: u32, path: &mut Vec<u8>, dump: &mut BTreeMap<Vec<u8>, Thing>) {
        dump.insert(path.clone(), self.things[&id].clone());
        for ((_, name), below) in self.entries.iter().filter(|((directory, _), _)| *directory == id) {
            path.extend_from_slice(name);
            self.dump_below(*below, path, dump);
            path.truncate(path.len() - name.len());
        }
    }

    fn resolve(&self, path: &Path) -> Result<u32, Errno> {
        path.iter().try_fold(0, |directory, name| self.entry(directory, *name)?.ok_or(Errno::NOENT))
    }

    fn entry(&self, directory: u32, name: u8) -> Result<Option<u32>, Errno> {
        match self.things[&directory].kind {
            Kind::Directory => Ok(self.entries.get(&(directory, vec![name])).copied()),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// The directory of a path and the last name.
    fn place(&self, path: &Path) -> Result<(u32, u8), Errno> {
        let (name, above) = path.split_last().unwrap();
        let directory = self.resolve(above)?;
        self.entry(directory, *name)?;
        Ok((directory, *name))
    }

    fn file(&mut self, path: &Path) -> Result<&mut Thing, Errno> {
        let id = self.resolve(path)?;
        match self.things[&id].kind {
            Kind::File => Ok(self.things.get_mut(&id).unwrap()),
            Kind::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    pub(crate) fn make(&mut self, path: &Path, kind: Kind, mode: u16) -> Outcome {
        let (directory, name) = self.place(path)?;
        if self.entry(directory, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        let mut thing = Thing::new(kind, mode);
        if kind == Kind::Symlink {
            thing.data = b"target".to_vec();
        }
        self.things.insert(self.next, thing);
        self.entries.insert((directory, vec![name]), self.next);
        self.next += 1;
        self.things.get_mut(&directory).unwrap().links += u32::from(kind == Kind::Directory);
        Ok(())
    }

    pub(crate) fn link(&mut self, from: &Path, to: &Path) -> Outcome {
        let id = self.resolve(from)?;
        let (directory, name) = self.place(to)?;
        if self.things[&id].kind == Kind::Directory {
            return Err(Errno::PERM);
        }
        if self.entry(directory, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        self.entries.insert((directory, vec![name]), id);
        self.things.get_mut(&id).unwrap().links += 1;
        Ok(())
    }

    pub(crate) fn unlink(&mut self, path: &Path) -> Outcome {
        let (directory, name) = self.place(path)?;
        let id = self.entry(directory, name)?.ok_or(Errno::NOENT)?;
        if self.things[&id].kind == Kind::Directory {
            return Err(Errno::ISDIR);
        }
        self.entries.remove(&(directory, vec![name]));
        self.lose(id);
        Ok(())
    }

    pub(crate) fn remove_directory(&mut self, path: &Path) -> Outcome {
        let (directory, name) = self.place(path)?;
        let id = self.entry(directory, name)?.ok_or(Errno::NOENT)?;
        self.check_empty(id)?;
        self.entries.remove(&(directory, vec![name]));
        self.lose(id);
        self.things.get_mut(&directory).unwrap().links -= 1;
        Ok(())
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path, how: Rename) -> Outcome {
        let (from_directory, from_name) = self.place(from)?;
        let id = self.entry(from_directory, from_name)?.ok_or(Errno::NOENT)?;
        let (to_directory, to_name) = self.place(to)?;
        let target = self.entry(to_directory, to_name)?;
        let is_directory = |model: &Self, id: u32| model.things[&id].kind == Kind::Directory;
        if is_directory(self, id) && to.len() > from.len() && to.starts_with(from) {
            return Err(Errno::INVAL);
        }
        match (how, target) {
            (Rename::Refuse, Some(_)) => return Err(Errno::EXIST),
            (Rename::Exchange, None) => return Err(Errno::NOENT),
            (_, Some(target)) if target == id => return Ok(()),
            (Rename::Exchange, Some(target)) => {
                if is_directory(self, target) && from.len() > to.len() && from.starts_with(to) {
                    return Err(Errno::INVAL);
                }
                self.entries.insert((to_directory, vec![to_name]), id);
                self.entries.insert((from_directory, vec![from_name]), target);
                self.recount();
                return Ok(());
            }
            (Rename::Replace | Rename::Whiteout, Some(target)) => {
                match (is_directory(self, id), is_directory(self, target)) {
                    (false, true) => return Err(Errno::ISDIR),
                    (true, false) => return Err(Errno::NOTDIR),
                    (true, true) => self.check_empty(target)?,
                    (false, false) => {}
                }
                self.lose(target);
            }
            (Rename::Replace | Rename::Refuse | Rename::Whiteout, None) => {}
        }
        self.entries.remove(&(from_directory, vec![from_name]));
        self.entries.insert((to_directory, vec![to_name]), id);
        self.recount();
        if how == Rename::Whiteout {
            self.make(from, Kind::CharDevice, 0)?;
        }
        Ok(())
    }

    /// A new file appears as a whole, in the place of whatever has the name.
    pub(crate) fn replace(&mut self, path: &Path, mode: u16, data: &[u8]) -> Outcome {
        let (directory, name) = self.place(path)?;
        if let Some(target) = self.entry(directory, name)? {
            if self.things[&target].kind == Kind::Directory {
                return Err(Errno::ISDIR);
            }
            self.unlink(path)?;
        }
        self.make(path, Kind::File, mode)?;
        self.write(path, 0, data)
    }

    pub(crate) fn write(&mut self, path: &Path, offset: usize, data: &[u8]) -> Outcome {
        let file = self.file(path)?;
        let end = offset + data.len();
        if file.data.len() < end && !data.is_empty() {
            file.data.resize(end, 0);
        }
        if !data.is_empty() {
            file.data[offset..end].copy_from_slice(data);
        }
        Ok(())
    }

    pub(crate) fn resize(&mut self, path: &Path, size: usize) -> Outcome {
        self.file(path)?.data.resize(size, 0);
        Ok(())
    }

    pub(crate) fn punch(&mut self, path: &Path, offset: usize, length: usize) -> Outcome {
        let data = &mut self.file(path)?.data;
        let end = (offset + length).min(data.len());
        if offset < end {
            data[offset..end].fill(0);
        }
        Ok(())
    }

    pub(crate) fn copy(&mut self, from: &Path, offset: usize, to: &Path, to_offset: usize, length: usize) -> Outcome {
        let source = self.file(from)?.data.clone();
        let end = (offset + length).min(source.len());
        let part = source.get(offset..end).unwrap_or_default().to_vec();
        self.file(to)?;
        if self.resolve(from) == self.resolve(to) && offset < to_offset + part.len() && to_offset < offset + part.len()
        {
            return Err(Errno::INVAL);
        }
        self.write(to, to_offset, &part)
    }

    pub(crate) fn set_mode(&mut self, path: &Path, mode: u16) -> Outcome {
        let id = self.resolve(path)?;
        self.things.get_mut(&id).unwrap().mode = mode;
        Ok(())
    }

    pub(crate) fn set_xattr(&mut self, path: &Path, name: &[u8], value: Option<&[u8]>) -> Outcome {
        let id = self.resolve(path)?;
        let xattrs = &mut self.things.get_mut(&id).unwrap().xattrs;
        match value {
            Some(value) => drop(xattrs.insert(name.to_vec(), value.to_vec())),
            None => drop(xattrs.remove(name).ok_or(Errno::NODATA)?),
        }
        Ok(())
    }

    fn check_empty(&self, id: u32) -> Outcome {
        if self.things[&id].kind != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        let empty = !self.entries.keys().any(|(directory, _)| *directory == id);
        if empty { Ok(()) } else { Err(Errno::NOTEMPTY) }
    }

    fn lose(&mut self, id: u32) {
        self.things.get_mut(&id).unwrap().links -= 1;
    }

    /// Links of directories: two, and one for each directory in them.
    fn recount(&mut self) {
        let directories = self.things.iter().filter(|(_, thing)| thing.kind == Kind::Directory);
        for id in directories.map(|(id, _)| *id).collect::<Vec<u32>>() {
            let below = self.entries.iter().filter(|((directory, _), _)| *directory == id);
            let directories = below.filter(|(_, below)| self.things[below].kind == Kind::Directory).count();
            self.things.get_mut(&id).unwrap().links = 2 + directories as u32;
        }
    }
}

impl Thing {
    fn new(kind: Kind, mode: u16) -> Self {
        let links = if kind == Kind::Directory { 2 } else { 1 };
        Self { kind, mode, links, data: Vec::new(), xattrs: BTreeMap::new() }
    }
}
