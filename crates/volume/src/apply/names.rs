//! Operations on names.

use rustix::io::Errno;

use super::{Outcome, Place, check_name};
use crate::{
    directory::Dirent,
    inode::{Ino, Inode, Kind, MODE_MASK, SET_GID, Time},
    limits,
    op::{New, Rename},
    state::{State, Step},
};

/// An entry that was found.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) cookie: u64,
    pub(super) ino: Ino,
    pub(super) kind: Kind,
}

impl State {
    pub(super) fn make(&mut self, place: Place<'_>, new: &New<'_>, now: Time) -> Step<Outcome> {
        let cookie = self.place_for_new(place)?;
        if new.target.len() > limits::TARGET_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let is_directory = new.kind == Kind::Directory;
        if is_directory && self.node(place.directory)?.inode.links >= limits::LINKS_MAX {
            return Err(Errno::MLINK.into());
        }
        let inode = Inode { cookie, ..self.new_inode(place.directory, new, now)? };
        self.room(0, 1)?;
        let ino = self.add(inode);
        self.put_entry(place.directory, cookie, Dirent { ino, kind: new.kind, name: place.name.to_vec() })?;
        self.entries_changed(place.directory, 1, i64::from(is_directory), now)?;
        Ok(ino.into())
    }

    /// An inode as it begins in `directory`.
    pub(super) fn new_inode(&self, directory: Ino, new: &New<'_>, now: Time) -> Step<Inode> {
        let parent = &self.node(directory)?.inode;
        let inherits = parent.mode & SET_GID != 0;
        let is_directory = new.kind == Kind::Directory;
        let set_gid = if inherits && is_directory { SET_GID } else { 0 };
        Ok(Inode {
            kind: new.kind,
            mode: new.mode & MODE_MASK | set_gid,
            uid: new.uid,
            gid: if inherits { parent.gid } else { new.gid },
            links: if is_directory { 2 } else { 1 },
            size: new.target.len() as u64,
            allocated: 0,
            device: new.device,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            parent: directory,
            cookie: 0,
            target: new.target.to_vec(),
        })
    }

    pub(super) fn link(&mut self, ino: Ino, place: Place<'_>, now: Time) -> Step<Outcome> {
        let inode = &self.node(ino)?.inode;
        let kind = inode.kind;
        if kind == Kind::Directory {
            return Err(Errno::PERM.into());
        }
        if inode.links == 0 {
            return Err(Errno::NOENT.into());
        }
        if inode.links >= limits::LINKS_MAX {
            return Err(Errno::MLINK.into());
        }
        let cookie = self.place_for_new(place)?;
        let inode = self.edit(ino)?;
        inode.links += 1;
        inode.changed = now;
        (inode.parent, inode.cookie) = (place.directory, cookie);
        self.put_entry(place.directory, cookie, Dirent { ino, kind, name: place.name.to_vec() })?;
        self.entries_changed(place.directory, 1, 0, now)?;
        Ok(ino.into())
    }

    pub(super) fn unlink(&mut self, place: Place<'_>, now: Time) -> Step<Outcome> {
        let found = self.find(place)?.ok_or(Errno::NOENT)?;
        if found.kind == Kind::Directory {
            return Err(Errno::ISDIR.into());
        }
        self.node(found.ino)?;
        self.remove_entry(place.directory, found.cookie)?;
        self.entries_changed(place.directory, -1, 0, now)?;
        self.lose_name(found, now)?;
        Ok(found.ino.into())
    }

    pub(super) fn remove_directory(&mut self, place: Place<'_>, now: Time) -> Step<Outcome> {
        let found = self.find(place)?.ok_or(Errno::NOENT)?;
        self.check_empty_directory(found)?;
        self.remove_entry(place.directory, found.cookie)?;
        self.entries_changed(place.directory, -1, -1, now)?;
        self.lose_name(found, now)?;
        Ok(found.ino.into())
    }

    pub(super) fn rename(&mut self, from: Place<'_>, to: Place<'_>, how: Rename, now: Time) -> Step<Outcome> {
        check_name(to.name)?;
        let source = self.find(from)?.ok_or(Errno::NOENT)?;
        self.live_directory(to.directory)?;
        let target = self.find(to)?;
        self.node(source.ino)?;
        self.check_not_below(to.directory, source)?;
        if how == Rename::Whiteout {
            self.room(0, 1)?;
        }
        match (how, target) {
            (Rename::Refuse, Some(_)) => Err(Errno::EXIST.into()),
            (Rename::Exchange, None) => Err(Errno::NOENT.into()),
            // Two names of one inode, or one name: both stay.
            (Rename::Replace | Rename::Whiteout | Rename::Exchange, Some(target)) if target.ino == source.ino => {
                Ok(Outcome { ino: None, bytes: 0 })
            }
            (Rename::Exchange, Some(target)) => {
                self.node(target.ino)?;
                self.check_not_below(from.directory, target)?;
                self.exchange((from, source), (to, target), now)
            }
            (Rename::Replace | Rename::Whiteout, Some(target)) => {
                let outcome = self.replace((from, source), (to, target), now)?;
                self.leave_behind((from, source), how, now)?;
                Ok(outcome)
            }
            (Rename::Replace | Rename::Refuse | Rename::Whiteout, None) => {
                let cookie = self.free_cookie(to.directory, to.name)?;
                self.check_directory_links(from, to, source)?;
                self.move_entry((from, source), (to, cookie), now)?;
                let subdirectory = i64::from(source.kind == Kind::Directory);
                self.entries_changed(from.directory, -1, -subdirectory, now)?;
                self.entries_changed(to.directory, 1, subdirectory, now)?;
                self.leave_behind((from, source), how, now)?;
                Ok(Outcome { ino: None, bytes: 0 })
            }
        }
    }

    /// Removes an inode without a name, with all it holds.
    pub(super) fn reap(&mut self, ino: Ino) -> Step<Outcome> {
        if !self.is_orphan(ino) {
            return Err(Errno::INVAL.into());
        }
        let windows = self.window_indexes(ino, 0)?;
        self.remove(ino, &windows);
        Ok(ino.into())
    }

    fn replace(&mut self, (from, source): Entry<'_>, (to, target): Entry<'_>, now: Time) -> Step<Outcome> {
        self.node(target.ino)?;
        match (source.kind == Kind::Directory, target.kind == Kind::Directory) {
            (false, true) => return Err(Errno::ISDIR.into()),
            (true, false) => return Err(Errno::NOTDIR.into()),
            (true, true) => self.check_empty_directory(target)?,
            (false, false) => {}
        }
        let subdirectory = i64::from(source.kind == Kind::Directory);
        self.move_entry((from, source), (to, target.cookie), now)?;
        // The directory that was replaced goes, and the one that was moved comes.
        self.entries_changed(from.directory, -1, -subdirectory, now)?;
        self.entries_changed(to.directory, 0, 0, now)?;
        self.lose_name(target, now)?;
        Ok(target.ino.into())
    }

    /// Puts a whiteout where an entry was, if it is wanted.
    fn leave_behind(&mut self, (from, source): Entry<'_>, how: Rename, now: Time) -> Step<()> {
        if how != Rename::Whiteout {
            return Ok(());
        }
        let new = New { kind: Kind::CharDevice, mode: 0, uid: 0, gid: 0, device: 0, target: b"" };
        let inode = Inode { cookie: source.cookie, ..self.new_inode(from.directory, &new, now)? };
        let ino = self.add(inode);
        let entry = Dirent { ino, kind: new.kind, name: from.name.to_vec() };
        self.put_entry(from.directory, source.cookie, entry)?;
        self.entries_changed(from.directory, 1, 0, now)
    }

    fn exchange(&mut self, (from, source): Entry<'_>, (to, target): Entry<'_>, now: Time) -> Step<Outcome> {
        self.check_directory_links(from, to, source)?;
        self.check_directory_links(to, from, target)?;
        for (place, cookie, moved) in [(to, target.cookie, source), (from, source.cookie, target)] {
            let entry = Dirent { ino: moved.ino, kind: moved.kind, name: place.name.to_vec() };
            self.put_entry(place.directory, cookie, entry)?;
            let inode = self.edit(moved.ino)?;
            inode.changed = now;
            (inode.parent, inode.cookie) = (place.directory, cookie);
        }
        let directory = |found: Found| i64::from(found.kind == Kind::Directory);
        let moved = directory(source) - directory(target);
        self.entries_changed(from.directory, 0, -moved, now)?;
        self.entries_changed(to.directory, 0, moved, now)?;
        Ok(Outcome { ino: None, bytes: 0 })
    }

    fn move_entry(&mut self, (from, source): Entry<'_>, (to, cookie): (Place<'_>, u64), now: Time) -> Step<()> {
        self.remove_entry(from.directory, source.cookie)?;
        let entry = Dirent { ino: source.ino, kind: source.kind, name: to.name.to_vec() };
        self.put_entry(to.directory, cookie, entry)?;
        let inode = self.edit(source.ino)?;
        inode.changed = now;
        (inode.parent, inode.cookie) = (to.directory, cookie);
        Ok(())
    }

    pub(super) fn lose_name(&mut self, found: Found, now: Time) -> Step<()> {
        let inode = self.edit(found.ino)?;
        inode.links = if found.kind == Kind::Directory { 0 } else { inode.links.saturating_sub(1) };
        inode.changed = now;
        let unnamed = inode.links == 0;
        if unnamed {
            self.set_orphan(found.ino, true);
        }
        Ok(())
    }

    pub(super) fn find(&self, place: Place<'_>) -> Step<Option<Found>> {
        let found = self.entry(place.directory, place.name)?;
        Ok(found.map(|(cookie, ino, kind)| Found { cookie, ino, kind }))
    }

    fn place_for_new(&self, place: Place<'_>) -> Step<u64> {
        check_name(place.name)?;
        self.live_directory(place.directory)?;
        match self.find(place)? {
            Some(_) => Err(Errno::EXIST.into()),
            None => self.free_cookie(place.directory, place.name),
        }
    }

    /// A directory that was removed takes no entries.
    pub(super) fn live_directory(&self, directory: Ino) -> Step<()> {
        let links = self.directory(directory)?.inode.links;
        if links == 0 { Err(Errno::NOENT.into()) } else { Ok(()) }
    }

    fn check_empty_directory(&self, found: Found) -> Step<()> {
        let size = self.directory(found.ino)?.inode.size;
        if size == 0 { Ok(()) } else { Err(Errno::NOTEMPTY.into()) }
    }

    /// A directory cannot be moved into itself.
    fn check_not_below(&self, directory: Ino, moved: Found) -> Step<()> {
        if moved.kind != Kind::Directory {
            return Ok(());
        }
        let mut above = directory;
        for _ in 0..limits::DEPTH_MAX {
            if above == moved.ino {
                return Err(Errno::INVAL.into());
            }
            let parent = self.node(above)?.inode.parent;
            if parent == above {
                return Ok(());
            }
            above = parent;
        }
        Err(Errno::LOOP.into())
    }

    fn check_directory_links(&self, from: Place<'_>, to: Place<'_>, moved: Found) -> Step<()> {
        let full = self.node(to.directory)?.inode.links >= limits::LINKS_MAX;
        if moved.kind == Kind::Directory && from.directory != to.directory && full {
            return Err(Errno::MLINK.into());
        }
        Ok(())
    }
}

type Entry<'a> = (Place<'a>, Found);
