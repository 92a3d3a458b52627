//! What each operation does to the state. Deterministic: the same operations on the same state make the same state, so the log is
//! replayed by this code. Each function looks at all that it needs first, and changes only after the last `?` that can say no.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::{
    inode::{Ino, Time},
    limits,
    op::Op,
    state::{State, Step},
};

mod attributes;
mod data;
mod names;
mod unnamed;

pub(crate) use data::Plan;

/// What an operation has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The inode that was made or changed; of a removal or a replacement the one that lost a name, if one did.
    pub(crate) ino: Option<Ino>,
    /// Bytes that were copied.
    pub(crate) bytes: u64,
}

impl From<Ino> for Outcome {
    fn from(ino: Ino) -> Self {
        Self { ino: Some(ino), bytes: 0 }
    }
}

/// An entry by its place.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    directory: Ino,
    name: &'a [u8],
}

impl State {
    /// Performs `op`, or does nothing and says why.
    pub(crate) fn apply(&mut self, op: &Op<'_>) -> Step<Outcome> {
        match *op {
            Op::Make { directory, name, new, now } => self.make(Place { directory, name }, &new, now),
            Op::Link { ino, directory, name, now } => self.link(ino, Place { directory, name }, now),
            Op::Unlink { directory, name, now } => self.unlink(Place { directory, name }, now),
            Op::RemoveDirectory { directory, name, now } => self.remove_directory(Place { directory, name }, now),
            Op::Rename { directory, name, to, new_name, how, now } => {
                self.rename(Place { directory, name }, Place { directory: to, name: new_name }, how, now)
            }
            Op::Reap { ino } => self.reap(ino),
            Op::Change { ino, changes, now } => self.change(ino, &changes, now),
            Op::Write { ino, offset, data, drop_privileges, now } => {
                self.write(ino, offset, data, drop_privileges, now)
            }
            Op::Punch { ino, offset, length, now } => self.punch(ino, offset, length, now),
            Op::Copy { from, from_offset, to, to_offset, length, now } => {
                self.copy((from, from_offset), (to, to_offset), length, now)
            }
            Op::SetXattr { ino, name, value, how, now } => self.set_xattr(ino, name, value, how, now),
            Op::RemoveXattr { ino, name, now } => self.remove_xattr(ino, name, now),
            Op::MakeUnnamed { directory, new, now } => self.make_unnamed(directory, &new, now),
            Op::Place { ino, directory, name, now } => self.place(ino, Place { directory, name }, now),
            Op::Mounted => Ok(Outcome { ino: None, bytes: 0 }),
        }
    }

    /// Times of a directory whose entries have changed, and its size.
    fn entries_changed(&mut self, directory: Ino, entries: i64, links: i64, now: Time) -> Step<()> {
        let inode = self.edit(directory)?;
        inode.size = inode.size.saturating_add_signed(entries);
        inode.links = (i64::from(inode.links) + links) as u32;
        inode.touch(now);
        Ok(())
    }
}

fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > limits::NAME_BYTES_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let special = name.is_empty() || name == b"." || name == b"..";
    if special || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::INVAL);
    }
    Ok(())
}
