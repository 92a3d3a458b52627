//! Operations on attributes, extended ones included.

use rustix::io::Errno;

use super::Outcome;
use crate::{
    inode::{Ino, Kind, MODE_MASK, Time},
    limits,
    op::{Changes, SetXattr},
    state::{State, Step},
};

impl State {
    pub(super) fn change(&mut self, ino: Ino, changes: &Changes, now: Time) -> Step<Outcome> {
        self.node(ino)?;
        if let Some(size) = changes.size {
            self.resize(ino, size)?;
        }
        let inode = self.edit(ino)?;
        inode.changed = now;
        if let Some(size) = changes.size {
            inode.size = size;
            inode.modified = now;
        }
        if changes.drop_privileges {
            inode.drop_privileges();
        }
        if let Some(mode) = changes.mode {
            inode.mode = mode & MODE_MASK;
        }
        inode.uid = changes.uid.unwrap_or(inode.uid);
        inode.gid = changes.gid.unwrap_or(inode.gid);
        inode.accessed = changes.accessed.unwrap_or(inode.accessed);
        inode.modified = changes.modified.unwrap_or(inode.modified);
        Ok(ino.into())
    }

    /// Removes the data behind `size`. What is behind the end of a file is always a hole.
    fn resize(&mut self, ino: Ino, size: u64) -> Step<()> {
        let inode = &self.file(ino)?.inode;
        if inode.kind != Kind::File {
            return Err(Errno::INVAL.into());
        }
        if size > limits::FILE_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        if size < inode.size {
            self.cut(ino, size, u64::MAX - size)?;
        }
        Ok(())
    }

    pub(super) fn set_xattr(&mut self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, now: Time) -> Step<Outcome> {
        if name.is_empty() || name.len() > limits::NAME_BYTES_MAX {
            return Err(Errno::RANGE.into());
        }
        let xattrs = &self.node(ino)?.xattrs;
        let old = xattrs.get(name);
        match (how, old) {
            (SetXattr::Create, Some(_)) => return Err(Errno::EXIST.into()),
            (SetXattr::Replace, None) => return Err(Errno::NODATA.into()),
            (SetXattr::Either | SetXattr::Create | SetXattr::Replace, _) => {}
        }
        let others = xattrs.iter().filter(|(other, _)| *other != name);
        let bytes: usize = others.map(|(name, value)| name.len() + value.len()).sum();
        if bytes + name.len() + value.len() > limits::XATTRS_BYTES_MAX {
            return Err(Errno::NOSPC.into());
        }
        self.edit_xattrs(ino)?.insert(name.to_vec(), value.to_vec());
        self.edit(ino)?.changed = now;
        Ok(ino.into())
    }

    pub(super) fn remove_xattr(&mut self, ino: Ino, name: &[u8], now: Time) -> Step<Outcome> {
        if !self.node(ino)?.xattrs.contains_key(name) {
            return Err(Errno::NODATA.into());
        }
        self.edit_xattrs(ino)?.remove(name);
        self.edit(ino)?.changed = now;
        Ok(ino.into())
    }
}
