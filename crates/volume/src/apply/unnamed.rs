//! Files that are made without a name, and appear under one when they are whole.

use rustix::io::Errno;

use super::{Outcome, Place, check_name};
use crate::{
    directory::Dirent,
    inode::{Ino, Inode, Kind, Time},
    limits,
    op::New,
    state::{State, Step},
};

impl State {
    pub(super) fn make_unnamed(&mut self, directory: Ino, new: &New<'_>, now: Time) -> Step<Outcome> {
        self.live_directory(directory)?;
        if new.kind == Kind::Directory {
            return Err(Errno::ISDIR.into());
        }
        if new.target.len() > limits::TARGET_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let inode = Inode { links: 0, ..self.new_inode(directory, new, now)? };
        self.room(0, 1)?;
        let ino = self.add(inode);
        self.set_orphan(ino, true);
        Ok(ino.into())
    }

    pub(super) fn place(&mut self, ino: Ino, place: Place<'_>, now: Time) -> Step<Outcome> {
        check_name(place.name)?;
        self.live_directory(place.directory)?;
        let kind = self.node(ino)?.inode.kind;
        if !self.is_orphan(ino) || kind == Kind::Directory {
            return Err(Errno::INVAL.into());
        }
        let target = self.find(place)?;
        let cookie = match target {
            Some(target) if target.kind == Kind::Directory => return Err(Errno::ISDIR.into()),
            Some(target) => {
                self.node(target.ino)?;
                target.cookie
            }
            None => self.free_cookie(place.directory, place.name)?,
        };
        self.put_entry(place.directory, cookie, Dirent { ino, kind, name: place.name.to_vec() })?;
        self.entries_changed(place.directory, i64::from(target.is_none()), 0, now)?;
        let inode = self.edit(ino)?;
        (inode.links, inode.parent, inode.cookie, inode.changed) = (1, place.directory, cookie, now);
        self.set_orphan(ino, false);
        if let Some(target) = target {
            self.lose_name(target, now)?;
        }
        Ok(Outcome { ino: target.map(|target| target.ino), bytes: 0 })
    }
}
