//! Changes.

use rustix::io::Errno;

use super::{Attributes, Engine, look::attributes};
use crate::{
    inode::{Ino, Time},
    op::{Changes, New, Op, Rename, SetXattr},
    state::State,
    state::pins::Unpinned,
};

/// Keeps an inode usable: see [`Engine::hold`].
pub struct Hold<'e> {
    engine: &'e Engine,
    ino: Ino,
}

impl Hold<'_> {
    /// The inode.
    pub fn ino(&self) -> Ino {
        self.ino
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let unused = self.engine.lock().is_ok_and(|mut state| state.release(self.ino));
        if unused {
            // Without an answer: what cannot be removed now is removed when the volume is opened next.
            let _ = self.engine.reap(self.ino);
        }
    }
}

impl Engine {
    /// Makes `name` in `directory`.
    pub fn make(&self, directory: Ino, name: &[u8], new: New<'_>) -> Result<Attributes, Errno> {
        self.changed(&Op::Make { directory, name, new, now: Time::now() })
    }

    /// Makes a file, or anything but a directory, that has no name yet, as if it were made in `directory`. Without [`Engine::place`] it
    /// goes with the hold.
    pub fn make_unnamed(&self, directory: Ino, new: New<'_>) -> Result<Hold<'_>, Errno> {
        let op = Op::MakeUnnamed { directory, new, now: Time::now() };
        let ino = self.perform(&op, |state, outcome| {
            let ino = outcome.ino.ok_or(Errno::IO)?;
            state.hold(ino);
            Ok(ino)
        })?;
        Ok(Hold { engine: self, ino })
    }

    /// Gives an inode that has no name one, at once in the place of whatever has it; that must not be a directory.
    pub fn place(&self, ino: Ino, directory: Ino, name: &[u8]) -> Result<(), Errno> {
        self.unnamed(&Op::Place { ino, directory, name, now: Time::now() })
    }

    /// As [`Engine::place`], unless something has the name (`EEXIST`). Of two at once, one is refused.
    pub fn place_new(&self, ino: Ino, directory: Ino, name: &[u8]) -> Result<(), Errno> {
        let op = Op::Place { ino, directory, name, now: Time::now() };
        let is_free = |state: &State| match state.entry(directory, name)? {
            Some(_) => Err(Errno::EXIST.into()),
            None => Ok(()),
        };
        self.perform_if(&op, is_free, |_, _| Ok(()))
    }

    /// Gives `ino` another name.
    pub fn link(&self, ino: Ino, directory: Ino, name: &[u8]) -> Result<Attributes, Errno> {
        self.changed(&Op::Link { ino, directory, name, now: Time::now() })
    }

    /// Removes the name of anything but a directory.
    pub fn unlink(&self, directory: Ino, name: &[u8]) -> Result<(), Errno> {
        self.unnamed(&Op::Unlink { directory, name, now: Time::now() })
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, directory: Ino, name: &[u8]) -> Result<(), Errno> {
        self.unnamed(&Op::RemoveDirectory { directory, name, now: Time::now() })
    }

    /// Renames `name` in `directory` to `new_name` in `to`.
    pub fn rename(&self, directory: Ino, name: &[u8], to: Ino, new_name: &[u8], how: Rename) -> Result<(), Errno> {
        self.unnamed(&Op::Rename { directory, name, to, new_name, how, now: Time::now() })
    }

    /// Changes attributes.
    pub fn change(&self, ino: Ino, changes: Changes) -> Result<Attributes, Errno> {
        self.changed(&Op::Change { ino, changes, now: Time::now() })
    }

    /// Writes all of `data`, at most [`crate::limits::WRITE_BYTES_MAX`]. `drop_privileges`: the caller is an ordinary user.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], drop_privileges: bool) -> Result<(), Errno> {
        self.counters.wrote(data.len());
        self.perform(&Op::Write { ino, offset, data, drop_privileges, now: Time::now() }, |_, _| Ok(()))
    }

    /// Makes a hole. The size stays.
    pub fn punch(&self, ino: Ino, offset: u64, length: u64) -> Result<(), Errno> {
        self.perform(&Op::Punch { ino, offset, length, now: Time::now() }, |_, _| Ok(()))
    }

    /// As `fallocate` without flags: checks that there is room, and lets the file grow. Room is not kept free.
    pub fn allocate(&self, ino: Ino, offset: u64, length: u64) -> Result<(), Errno> {
        let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
        let size = self.ask(|state| {
            let size = state.file(ino)?.inode.size;
            state.room(end.saturating_sub(size), 0)?;
            Ok(size)
        })?;
        if end > size {
            self.change(ino, Changes { size: Some(end), ..Changes::default() })?;
        }
        Ok(())
    }

    /// Copies by sharing: no data is read or written. Returns how many bytes the source had.
    pub fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64) -> Result<u64, Errno> {
        let ((from, from_offset), (to, to_offset)) = (from, to);
        let op = Op::Copy { from, from_offset, to, to_offset, length, now: Time::now() };
        self.perform(&op, |_, outcome| Ok(outcome.bytes))
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<(), Errno> {
        self.perform(&Op::SetXattr { ino, name, value, how, now: Time::now() }, |_, _| Ok(()))
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        self.perform(&Op::RemoveXattr { ino, name, now: Time::now() }, |_, _| Ok(()))
    }

    /// Keeps `ino` usable even without a name, until it is released as often. Pins end with the engine.
    pub fn pin(&self, ino: Ino) -> Result<(), Errno> {
        self.ask(|state| {
            state.node(ino)?;
            state.pin(ino);
            Ok(())
        })
    }

    /// Takes back `count` pins. An inode without a name goes with the last.
    pub fn unpin(&self, ino: Ino, count: u64) -> Result<(), Errno> {
        self.unpin_unless(ino, count, || false)
    }

    /// The same. After an adoption, `is_known` says whether the kernel still has the inode, where that has to be asked.
    pub fn unpin_unless(&self, ino: Ino, count: u64, is_known: impl FnOnce() -> bool) -> Result<(), Errno> {
        let unpinned = self.lock()?.unpin(ino, count);
        match unpinned {
            Unpinned::Used => Ok(()),
            // What it has, it takes back later.
            Unpinned::Perhaps if is_known() => Ok(()),
            Unpinned::Perhaps | Unpinned::Unused => self.reap(ino),
        }
    }

    /// The inodes that the kernel may know: those with pins, the top directory, and after an adoption all that were there then.
    pub fn known(&self) -> Result<Vec<Ino>, Errno> {
        Ok(self.lock()?.known())
    }

    /// Keeps `ino` usable in this process while the answer is there, whatever the kernel forgets.
    pub fn hold(&self, ino: Ino) -> Result<Hold<'_>, Errno> {
        self.ask(|state| {
            state.node(ino)?;
            state.hold(ino);
            Ok(())
        })?;
        Ok(Hold { engine: self, ino })
    }

    /// Removes all inodes without a name that nobody has pinned: what a crash left of open files.
    pub(crate) fn reap_unused(&self) -> Result<(), Errno> {
        let unused = self.ask(|state| {
            let orphans = state.orphans().into_iter();
            Ok(orphans.filter(|ino| !state.is_pinned(*ino)).collect::<Vec<_>>())
        })?;
        unused.into_iter().try_for_each(|ino| self.reap(ino))
    }

    /// Removes all inodes without a name: the kernel uses the volume no more.
    pub(crate) fn reap_all(&self) -> Result<(), Errno> {
        self.lock()?.forget_pins();
        self.reap_unused()
    }

    fn reap(&self, ino: Ino) -> Result<(), Errno> {
        // Whoever closes a file, or has removed its name, has waited already.
        match self.perform_at_once(&Op::Reap { ino }, |_| Ok(()), |_, _| Ok(())) {
            // Another thread was faster, or nothing may be changed here any more.
            Err(Errno::INVAL | Errno::ROFS) => Ok(()),
            other => other,
        }
    }

    fn changed(&self, op: &Op<'_>) -> Result<Attributes, Errno> {
        self.perform(op, |state, outcome| attributes(state, outcome.ino.ok_or(Errno::IO)?))
    }

    /// An operation that may take a name away.
    fn unnamed(&self, op: &Op<'_>) -> Result<(), Errno> {
        let unused = self.perform(op, |state, outcome| {
            Ok(outcome.ino.filter(|ino| state.is_orphan(*ino) && !state.is_pinned(*ino)))
        })?;
        unused.map_or(Ok(()), |ino| self.reap(ino))
    }
}
