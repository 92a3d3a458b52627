//! Shared memory outside the root filesystem: shared anonymous memory, memfds, deleted files in shared mappings.
//!
//! The still shares these pages with the source, so their content is read while the source is stopped.

pub(crate) mod attributes;

use std::{
    fs::File,
    io,
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt},
    },
};

use base::limits;
use procfs::MapLine;
use rustix::fs::{Mode, OFlags, SealFlags};

use crate::{
    error::{Context, Error},
    image::{ObjectStatus, SharedObject},
    observe::sort::{Sort, sort},
    refusal::Refusal,
};

/// An object and the file through which it is read.
#[derive(Debug)]
pub(crate) struct Object {
    /// Device and inode as the list of mappings shows them; on an overlay these are not those that `stat` shows.
    mapped_as: Option<(u64, u64)>,
    /// Device and inode of `stat`.
    status: (u64, u64),
    name: Vec<u8>,
    file: File,
    /// A descriptor shows it, by which its attributes can be seen.
    is_open: bool,
}

impl Object {
    /// Whether this mapping shows it.
    pub(crate) fn is_mapped_by(&self, line: &MapLine) -> bool {
        self.mapped_as == Some((line.dev, line.inode))
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }
}

/// All objects found so far.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) found: Vec<Object>,
}

impl Objects {
    /// Adds the objects that mappings show.
    pub(crate) fn add_mapped(&mut self, pid: i32, lines: &[MapLine]) -> Result<(), Error> {
        for line in lines {
            if sort(line) != Ok(Sort::Object) || self.found.iter().any(|object| object.is_mapped_by(line)) {
                continue;
            }
            let path = line.link(pid);
            let file = open(&path).on("open", path)?;
            let at = self.add(file, &line.path)?;
            self.found[at].mapped_as = Some((line.dev, line.inode));
        }
        Ok(())
    }

    /// The object that a descriptor shows, added if it is new.
    pub(crate) fn add_file(&mut self, file: File, link: &[u8]) -> Result<usize, Error> {
        let at = self.add(file, link)?;
        self.found[at].is_open = true;
        Ok(at)
    }

    fn add(&mut self, file: File, link: &[u8]) -> Result<usize, Error> {
        let status = file.metadata().on("read", String::from_utf8_lossy(link))?;
        let status = (status.dev(), status.ino());
        if let Some(at) = self.found.iter().position(|object| object.status == status) {
            return Ok(at);
        }
        self.found.push(Object { mapped_as: None, status, name: memfd_name(link), file, is_open: false });
        Ok(self.found.len() - 1)
    }

    /// Reads every object's content, or none when all together hold more than is carried.
    pub(crate) fn read(&self, refusals: &mut Vec<Refusal>) -> Result<Vec<SharedObject>, Error> {
        let mut parts = Vec::with_capacity(self.found.len());
        let mut bytes = 0u64;
        for object in &self.found {
            let found = data_ranges(&object.file).on("read", object.shown())?;
            bytes += found.iter().map(|(start, end)| end - start).sum::<u64>();
            parts.push(found);
        }
        if bytes > limits::CARRIED_BYTES_MAX {
            let names: Vec<String> = self.found.iter().take(4).map(Object::shown).collect();
            let what = format!("shared memory ({})", names.join(", "));
            refusals.push(Refusal::TooMuchContent { what, bytes, max: limits::CARRIED_BYTES_MAX });
            return Ok(Vec::new());
        }
        self.found.iter().zip(parts).map(|(object, parts)| read_object(object, parts)).collect()
    }
}

impl Objects {
    /// The attributes of those that descriptors of process `pid` show, by their places.
    pub(crate) fn statuses(&self, pid: i32, refusals: &mut Vec<Refusal>) -> Result<Vec<(usize, ObjectStatus)>, Error> {
        let mut found = Vec::new();
        for (at, object) in self.found.iter().enumerate().filter(|(_, object)| object.is_open || is_sealed(object)) {
            let status = object.file.metadata().on("read", object.shown())?;
            let attributes = attributes::read(&object.file, pid).on("read the attributes of", object.shown())?;
            if let Err(error) = attributes::try_on_a_memfd(&attributes) {
                let what = format!("the deleted file {}", object.shown());
                refusals.push(Refusal::Attributes { what, reason: error.to_string() });
                continue;
            }
            let times = [(status.atime(), status.atime_nsec() as u64), (status.mtime(), status.mtime_nsec() as u64)];
            found.push((at, ObjectStatus { mode: status.mode() & 0o7777, times, attributes }));
        }
        Ok(found)
    }
}

/// Whether its mode counts, although nothing has it open: of one that can be executed, the kernel takes F_SEAL_EXEC for a seal against writing, too.
fn is_sealed(object: &Object) -> bool {
    rustix::fs::fcntl_get_seals(object.file.as_fd()).is_ok_and(|seals| !(seals - SealFlags::SEAL).is_empty())
}

/// Opens an object without changing when it was last read.
pub(crate) fn open(path: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// `NAME` of `/memfd:NAME (deleted)`; the path itself for other objects.
fn memfd_name(link: &[u8]) -> Vec<u8> {
    let name = link.strip_suffix(b" (deleted)").unwrap_or(link);
    name.strip_prefix(b"/memfd:").unwrap_or(name).to_vec()
}

fn read_object(object: &Object, parts: Vec<(u64, u64)>) -> Result<SharedObject, Error> {
    let size = object.file.metadata().on("read", object.shown())?.len();
    // Objects that are not memfds have no seals to read.
    let seals = rustix::fs::fcntl_get_seals(object.file.as_fd()).map_or(0, |seals| seals.bits());
    let mut content = Vec::with_capacity(parts.len());
    for (start, end) in parts {
        let mut chunk = vec![0; (end - start) as usize];
        object.file.read_exact_at(&mut chunk, start).on("read", object.shown())?;
        content.push((start, chunk));
    }
    Ok(SharedObject { name: object.name.clone(), size, seals, content })
}

/// The parts of a sparse file that hold data.
pub(crate) fn data_ranges(file: &File) -> io::Result<Vec<(u64, u64)>> {
    let size = file.metadata()?.len();
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            // Only a hole follows.
            Err(rustix::io::Errno::NXIO) => break,
            start => start?,
        };
        let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start))?.min(size);
        ranges.push((start, end));
        at = end;
    }
    Ok(ranges)
}
