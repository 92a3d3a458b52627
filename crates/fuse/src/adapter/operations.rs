//! What each request does, without FUSE's types of replies.

use fuser::{FileAttr, Request, TimeOrNow};
use rustix::{
    fs::{FallocateFlags, OFlags, XattrFlags},
    io::Errno,
};
use volume::{Attributes, Changes, Ino, Kind, Listed, New, Rename, SetXattr, limits};

use super::{LISTED, shared::Shared};
use crate::convert;

/// Attributes that a request changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SetAttributes {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) accessed: Option<TimeOrNow>,
    pub(super) modified: Option<TimeOrNow>,
}

/// Where something is, or shall be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) directory: Ino,
    pub(super) name: &'a [u8],
}

/// What a new inode of the caller's is.
pub(super) fn new_inode<'a>(request: &Request, kind: Kind, mode: u32, target: &'a [u8]) -> New<'a> {
    New { kind, mode: (mode & 0o7777) as u16, uid: request.uid(), gid: request.gid(), device: 0, target }
}

impl SetAttributes {
    /// Whether set-user-id and set-group-id bits go. The caller's user does not count: in idmapped mounts the kernel does not tell it.
    ///
    /// The kernel asks for a change of nothing where these bits shall go and nothing else: `chown` to nobody, and before a write, `fallocate` or
    /// `copy_file_range` of a caller without CAP_FSETID. With a new size it says so by a flag that `fuser` hides, so they always go there.
    fn drops_privileges(&self) -> bool {
        self.uid.is_some() || self.gid.is_some() || self.size.is_some() || *self == Self::default()
    }
}

impl Shared {
    pub(super) fn find(&self, place: Place<'_>) -> Result<Attributes, Errno> {
        if place.name.len() > limits::NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        // Also `.` and `..`: so the kernel asks for an inode of which it has only a handle (FUSE_EXPORT_SUPPORT), and for its parent.
        self.told(self.engine().lookup(place.directory, place.name)?)
    }

    pub(super) fn make(&self, request: &Request, place: Place<'_>, new: New<'_>) -> Result<Attributes, Errno> {
        self.told(self.inode_once(request, || self.engine().make(place.directory, place.name, new))?)
    }

    /// Makes a file, or takes the one that has the name unless it must be new. `flags` are those of open(2).
    pub(super) fn create(
        &self,
        request: &Request,
        place: Place<'_>,
        mode: u32,
        flags: i32,
    ) -> Result<Attributes, Errno> {
        let flags = OFlags::from_bits_retain(flags as u32);
        match self.make(request, place, new_inode(request, Kind::File, mode, b"")) {
            Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {
                let found = self.find(place)?;
                if flags.contains(OFlags::TRUNC) { self.empty(found.ino) } else { Ok(found) }
            }
            made => made,
        }
    }

    pub(super) fn link(&self, request: &Request, ino: Ino, place: Place<'_>) -> Result<Attributes, Errno> {
        self.told(self.inode_once(request, || self.engine().link(ino, place.directory, place.name))?)
    }

    pub(super) fn unlink(&self, request: &Request, place: Place<'_>) -> Result<(), Errno> {
        self.done_once(request, || self.engine().unlink(place.directory, place.name))
    }

    pub(super) fn remove_directory(&self, request: &Request, place: Place<'_>) -> Result<(), Errno> {
        self.done_once(request, || self.engine().remove_directory(place.directory, place.name))
    }

    pub(super) fn rename(
        &self,
        request: &Request,
        from: Place<'_>,
        to: Place<'_>,
        flags: fuser::RenameFlags,
    ) -> Result<(), Errno> {
        let how = match flags {
            flags if flags.is_empty() => Rename::Replace,
            fuser::RenameFlags::RENAME_NOREPLACE => Rename::Refuse,
            fuser::RenameFlags::RENAME_EXCHANGE => Rename::Exchange,
            fuser::RenameFlags::RENAME_WHITEOUT => Rename::Whiteout,
            _ => return Err(Errno::INVAL),
        };
        self.done_once(request, || self.engine().rename(from.directory, from.name, to.directory, to.name, how))
    }

    pub(super) fn set_attributes(&self, ino: Ino, set: &SetAttributes) -> Result<Attributes, Errno> {
        let changes = Changes {
            mode: set.mode.map(|mode| (mode & 0o7777) as u16),
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            accessed: set.accessed.map(convert::time),
            modified: set.modified.map(convert::time),
            drop_privileges: set.drops_privileges(),
        };
        self.kept(self.engine().change(ino, changes))
    }

    /// An open file that shall be empty: the kernel sends this along with the opening.
    pub(super) fn empty(&self, ino: Ino) -> Result<Attributes, Errno> {
        self.set_attributes(ino, &SetAttributes { size: Some(0), ..SetAttributes::default() })
    }

    pub(super) fn write(&self, ino: Ino, offset: u64, data: &[u8], drop_privileges: bool) -> Result<u32, Errno> {
        self.kept(self.engine().write(ino, offset, data, drop_privileges))?;
        Ok(data.len() as u32)
    }

    pub(super) fn allocate(&self, ino: Ino, offset: u64, length: u64, mode: i32) -> Result<(), Errno> {
        let mode = FallocateFlags::from_bits(mode as u32).ok_or(Errno::OPNOTSUPP)?;
        let engine = self.engine();
        let keep = FallocateFlags::KEEP_SIZE;
        let done = match mode - keep {
            flags if flags.is_empty() && mode.contains(keep) => Ok(()),
            flags if flags.is_empty() => engine.allocate(ino, offset, length),
            FallocateFlags::PUNCH_HOLE => engine.punch(ino, offset, length),
            FallocateFlags::ZERO_RANGE => {
                if !mode.contains(keep) {
                    engine.allocate(ino, offset, length)?;
                }
                engine.punch(ino, offset, length)
            }
            _ => return Err(Errno::OPNOTSUPP),
        };
        self.kept(done)
    }

    /// Gives the entries of a directory behind `cookie` to `add` until that says that it is full.
    pub(super) fn list(
        &self,
        directory: Ino,
        mut cookie: u64,
        mut add: impl FnMut(&Listed) -> bool,
    ) -> Result<(), Errno> {
        let first = cookie;
        loop {
            let entries = match self.engine().list(directory, cookie, LISTED) {
                // What there is is an answer; the error comes again when the kernel asks for more.
                Err(_) if cookie != first => return Ok(()),
                listed => listed?,
            };
            let Some(last) = entries.last() else { return Ok(()) };
            cookie = last.cookie;
            if entries.iter().any(&mut add) {
                return Ok(());
            }
        }
    }

    /// As [`Shared::list`], with what each entry names. What is added counts as looked up, but for `.` and `..`.
    pub(super) fn list_told(
        &self,
        directory: Ino,
        mut cookie: u64,
        mut add: impl FnMut(&Listed, &FileAttr) -> bool,
    ) -> Result<(), Errno> {
        let first = cookie;
        loop {
            let entries = match self.engine().list_told(directory, cookie, LISTED) {
                Err(_) if cookie != first => return Ok(()),
                told => told?,
            };
            let Some((last, _)) = entries.last() else { return Ok(()) };
            cookie = last.cookie;
            let full = entries.iter().position(|(entry, inode)| add(entry, &convert::attributes(entry.ino, inode)));
            if let Some(added) = full {
                let rest = entries[added..].iter().filter(|(entry, _)| !entry.is_dot());
                rest.for_each(|(entry, _)| self.forgotten(entry.ino, 1, || true));
                return Ok(());
            }
        }
    }

    pub(super) fn seek(&self, ino: Ino, offset: i64, whence: i32) -> Result<i64, Errno> {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        let found = match whence {
            SEEK_DATA => self.engine().seek_data(ino, offset)?,
            SEEK_HOLE => self.engine().seek_hole(ino, offset)?,
            _ => return Err(Errno::INVAL),
        };
        i64::try_from(found).map_err(|_| Errno::OVERFLOW)
    }

    pub(super) fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64) -> Result<u32, Errno> {
        // The reply has 32 bits.
        let length = length.min(1 << 30);
        let copied = self.kept(self.engine().copy(from, to, length))?;
        Ok(copied as u32)
    }

    pub(super) fn set_xattr(
        &self,
        request: &Request,
        ino: Ino,
        (name, value): (&[u8], &[u8]),
        flags: i32,
    ) -> Result<(), Errno> {
        check_xattr(name)?;
        let how = match XattrFlags::from_bits_truncate(flags as u32) {
            XattrFlags::CREATE => SetXattr::Create,
            XattrFlags::REPLACE => SetXattr::Replace,
            _ => SetXattr::Either,
        };
        self.done_once(request, || self.engine().set_xattr(ino, name, value, how))
    }

    pub(super) fn remove_xattr(&self, request: &Request, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        check_xattr(name)?;
        self.done_once(request, || self.engine().remove_xattr(ino, name))
    }

    pub(super) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        check_xattr(name)?;
        self.engine().xattr(ino, name)
    }

    /// All names, each with a zero behind it.
    pub(super) fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let names = self.engine().xattrs(ino)?;
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }
}

/// Access control lists would be stored and not obeyed.
fn check_xattr(name: &[u8]) -> Result<(), Errno> {
    if name.starts_with(b"system.") { Err(Errno::OPNOTSUPP) } else { Ok(()) }
}
