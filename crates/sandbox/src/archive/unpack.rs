//! Making a layer from records that may be hostile: which may come when, and in what order.

use std::{
    ffi::OsStr,
    fs::Permissions,
    io::Read,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::CWD;

use super::{
    ArchiveTotals,
    limits::{ENTRIES_MAX, FILE_BYTES_MAX, NAME_BYTES_MAX, TARGET_BYTES_MAX},
    make::{Made, Place},
    record::{Attributes, Node, Record, Source, refused_mark},
};
use crate::{
    attributes::{LEVELS_MAX, XATTR_BYTES_MAX, open_dir},
    error::{Context, Error},
};

/// Fills the empty directory `into`.
pub(super) fn unpack(input: &mut dyn Read, into: &Path) -> Result<ArchiveTotals, Error> {
    // Nobody else looks at files of other owners before they are whole.
    std::fs::set_permissions(into, Permissions::from_mode(0o700)).at("set the mode of", into)?;
    let mut source = Source::new(input);
    let mut unpacker = Unpacker { into, levels: Vec::new(), open: None, entries: 0, data_bytes: 0 };
    while unpacker.apply(source.next()?)? == Progress::Unfinished {}
    let totals = source.finish(unpacker.entries, unpacker.data_bytes)?;
    totals.ok_or_else(|| unpacker.refused(b"", "its end is not what belongs to it"))
}

#[derive(PartialEq)]
enum Progress {
    Unfinished,
    /// The layer itself has ended.
    Whole,
}

struct Unpacker<'a> {
    into: &'a Path,
    /// The directories that are open, the layer first.
    levels: Vec<Level>,
    /// What is open in the last of them, unless it is a directory.
    open: Option<Open>,
    entries: u64,
    data_bytes: u64,
}

struct Level {
    made: Made,
    /// Below the layer, with a slash at its end unless empty.
    path: Vec<u8>,
    /// Name of its last entry; they ascend, so that none comes twice.
    last: Vec<u8>,
    /// Name of its last extended attribute.
    xattr: Option<Vec<u8>>,
}

/// An entry that is no directory.
struct Open {
    made: Made,
    path: Vec<u8>,
    /// Of a file.
    size: u64,
    /// Where its data ended so far.
    written: u64,
    xattr: Option<Vec<u8>>,
}

const NO_LAYER: &str = "the layer itself does not come first";

type Refusal = Result<(), &'static str>;

impl Unpacker<'_> {
    fn apply(&mut self, record: Record<'_>) -> Result<Progress, Error> {
        match record {
            Record::Entry { name: b"", attributes, node: Node::Directory } => self.layer(attributes)?,
            Record::Entry { name, attributes, node } => self.entry(name, attributes, node)?,
            Record::Link { name, first } => self.link(name, first)?,
            Record::Data { at, bytes } => self.data(at, bytes)?,
            Record::Xattr { name, value } => self.xattr(name, value)?,
            Record::End => self.end()?,
            Record::Trailer { .. } => return Err(self.refused(self.here(), "the archive ends too early")),
        }
        Ok(if self.levels.is_empty() { Progress::Whole } else { Progress::Unfinished })
    }

    fn layer(&mut self, attributes: Attributes) -> Result<(), Error> {
        if self.entries > 0 {
            return Err(self.refused(self.here(), "an entry has no name"));
        }
        check_attributes(&attributes).map_err(|reason| self.refused(b"", reason))?;
        self.entries = 1;
        let root = open_dir(CWD, self.into).at("open", self.into)?;
        let made = Made::directory(root, attributes).at("set the owner of", self.into)?;
        self.levels.push(Level { made, path: Vec::new(), last: Vec::new(), xattr: None });
        Ok(())
    }

    fn entry(&mut self, name: &[u8], attributes: Attributes, node: Node<'_>) -> Result<(), Error> {
        let path = self.admit(name)?;
        let sound = check_attributes(&attributes).and_then(|()| self.check_node(&node));
        sound.map_err(|reason| self.refused(&path, reason))?;
        let made = self.place(name)?.make(&node, attributes).at("make", &self.full(&path))?;
        match node {
            Node::Directory => {
                let path = [&path[..], b"/"].concat();
                self.levels.push(Level { made, path, last: Vec::new(), xattr: None });
            }
            Node::File { size } => self.open = Some(Open { made, path, size, written: 0, xattr: None }),
            Node::Symlink { .. } | Node::Pipe | Node::Socket | Node::Whiteout => {
                self.open = Some(Open { made, path, size: 0, written: 0, xattr: None });
            }
        }
        Ok(())
    }

    fn link(&mut self, name: &[u8], first: &[u8]) -> Result<(), Error> {
        let path = self.admit(name)?;
        if !first.split(|byte| *byte == b'/').all(is_name) {
            return Err(self.refused(&path, "it is a link to no sound path"));
        }
        let place = self.place(name)?;
        let layer = self.levels.first().map_or(place.dir, |layer| layer.made.dir());
        place.link(layer, first).at("link", &self.full(&path))
    }

    fn data(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let Some(open) = &mut self.open else { return Err(self.refused(self.here(), "data is not in a file")) };
        // The size is bounded, so that of two sums none overflows.
        let end = at.checked_add(bytes.len() as u64).filter(|end| *end <= open.size);
        let Some(end) = end.filter(|_| at >= open.written && !bytes.is_empty() && open.xattr.is_none()) else {
            return Err(self.refused(self.here(), "its data is out of place"));
        };
        open.written = end;
        let written = open.made.write(at, bytes);
        self.data_bytes += bytes.len() as u64;
        written.at("write", &self.full(self.here()))
    }

    fn xattr(&mut self, name: &[u8], value: &[u8]) -> Result<(), Error> {
        let (made, last, directory) = match (&mut self.open, self.levels.last_mut()) {
            (Some(open), _) => (&open.made, &mut open.xattr, false),
            (None, Some(level)) => (&level.made, &mut level.xattr, true),
            (None, None) => return Err(self.refused(b"", NO_LAYER)),
        };
        let sound = check_xattr(name, value, last.as_deref(), directory);
        *last = Some(name.to_vec());
        let set = sound.map(|()| made.set_xattr(name, value));
        let set = set.map_err(|reason| self.refused(self.here(), reason))?;
        set.at("set an attribute of", &self.full(self.here()))
    }

    fn end(&mut self) -> Result<(), Error> {
        let (made, path) = match (self.open.take(), self.levels.len()) {
            (Some(open), _) => (open.made, open.path),
            (None, _) => match self.levels.pop() {
                Some(level) => (level.made, level.path),
                None => return Err(self.refused(b"", NO_LAYER)),
            },
        };
        made.finish().at("set the attributes of", &self.full(&path))
    }

    /// The path of another entry, which may come here under this name.
    fn admit(&mut self, name: &[u8]) -> Result<Vec<u8>, Error> {
        self.entries += 1;
        let level = self.levels.last_mut();
        let path = [level.as_ref().map_or(&b""[..], |level| &level.path), name].concat();
        let reason = match level {
            None => NO_LAYER,
            Some(_) if self.open.is_some() => "it is in something that is no directory",
            Some(level) if level.xattr.is_some() => "it comes behind its directory's attributes",
            Some(_) if self.entries > ENTRIES_MAX => "the archive has too many entries",
            Some(_) if !is_name(name) => "its name is not sound",
            Some(level) if level.last.as_slice() >= name => "it comes twice or out of order",
            Some(level) => {
                level.last = name.to_vec();
                return Ok(path);
            }
        };
        Err(self.refused(&path, reason))
    }

    fn check_node(&self, node: &Node<'_>) -> Refusal {
        match node {
            Node::Directory if self.levels.len() >= LEVELS_MAX => Err("it is nested too deep"),
            Node::File { size } if *size > FILE_BYTES_MAX => Err("it is too large"),
            Node::Symlink { target } if !is_target(target) => Err("its target is not sound"),
            Node::Directory | Node::File { .. } | Node::Symlink { .. } | Node::Pipe | Node::Socket | Node::Whiteout => {
                Ok(())
            }
        }
    }

    fn place<'a>(&'a self, name: &'a [u8]) -> Result<Place<'a>, Error> {
        let level = self.levels.last().ok_or_else(|| self.refused(b"", NO_LAYER))?;
        Ok(Place { dir: level.made.dir(), name })
    }

    /// The path of what is open.
    fn here(&self) -> &[u8] {
        match (&self.open, self.levels.last()) {
            (Some(open), _) => &open.path,
            (None, level) => level.map_or(b"", |level| &level.path),
        }
    }

    fn full(&self, path: &[u8]) -> PathBuf {
        self.into.join(OsStr::from_bytes(path))
    }

    fn refused(&self, path: &[u8], reason: &'static str) -> Error {
        Error::ArchiveRefused { path: Path::new("/").join(OsStr::from_bytes(path)), reason }
    }
}

/// Whether it is one component of a path and leads nowhere else.
fn is_name(name: &[u8]) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
        && !matches!(name, b"." | b"..")
}

/// Where it leads is nobody's business here: it is never followed.
fn is_target(target: &[u8]) -> bool {
    (1..=TARGET_BYTES_MAX).contains(&target.len()) && !target.contains(&0)
}

fn check_attributes(attributes: &Attributes) -> Refusal {
    let Attributes { mode, uid, gid, nanoseconds, .. } = *attributes;
    // The highest id and nanoseconds beyond a second would mean something else to the kernel than a value.
    if mode > 0o7777 || uid == u32::MAX || gid == u32::MAX || nanoseconds >= 1_000_000_000 {
        return Err("its attributes are not sound");
    }
    Ok(())
}

fn check_xattr(name: &[u8], value: &[u8], last: Option<&[u8]>, directory: bool) -> Refusal {
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || name.contains(&0) || value.len() > XATTR_BYTES_MAX {
        return Err("an extended attribute is not sound");
    }
    if last.is_some_and(|last| last >= name) {
        return Err("an extended attribute comes twice or out of order");
    }
    refused_mark(name, value, directory).map_or(Ok(()), Err)
}
