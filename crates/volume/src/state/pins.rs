//! References from outside, for which an inode without a name stays: the kernel's, and those of whoever works on it in this process.
//!
//! The kernel counts what it was told of an inode, and takes all of it back at once when it forgets the inode. The counts of a
//! process that died are lost. So whoever goes on in its place takes every inode that was there for known to the kernel, until the
//! kernel forgets it: when it has taken back as much as this process has told of it, it is asked whether that was all.

use foldhash::HashMap;

use super::State;
use crate::inode::{Ino, ROOT};

#[derive(Debug, Default)]
pub(super) struct Pins {
    /// What this process has told the kernel.
    told: HashMap<Ino, u64>,
    /// Inodes below this may be known to the kernel from a process before.
    adopted_below: u64,
    /// Whoever works on an inode in this process.
    held: HashMap<Ino, u64>,
}

/// Whether an inode without a name can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unpinned {
    Used,
    /// If the kernel has no reference from a process before.
    Perhaps,
    Unused,
}

impl State {
    /// The kernel may know every inode that there is.
    pub(crate) fn adopt(&mut self) {
        self.pins.adopted_below = self.superblock().next_ino;
    }

    /// The kernel knows nothing any more.
    pub(crate) fn forget_pins(&mut self) {
        self.pins = Pins::default();
    }

    pub(crate) fn is_pinned(&self, ino: Ino) -> bool {
        let Pins { told, adopted_below, held } = &self.pins;
        ino.0 < *adopted_below || told.contains_key(&ino) || held.contains_key(&ino)
    }

    /// The inodes that the kernel may know.
    pub(crate) fn known(&self) -> Vec<Ino> {
        let Pins { told, adopted_below, .. } = &self.pins;
        let since = told.keys().copied().filter(|ino| ino.0 >= *adopted_below);
        (ROOT.0..(*adopted_below).max(ROOT.0 + 1)).map(Ino).chain(since).collect()
    }

    /// The kernel was told of `ino`.
    pub(crate) fn pin(&mut self, ino: Ino) {
        *self.pins.told.entry(ino).or_default() += 1;
    }

    /// The kernel takes `count` references back. Tells whether it has none of an inode without a name any more, and nobody else has.
    ///
    /// Of an adopted inode only the kernel knows: it may have more than this process has told, and what it takes back may be from before, and be read
    /// after it was told again (of a file with two names, the first removed, the second opened and removed).
    pub(crate) fn unpin(&mut self, ino: Ino, count: u64) -> Unpinned {
        let told = self.pins.told.get(&ino).copied().unwrap_or(0);
        let rest = told.saturating_sub(count);
        match rest {
            0 => self.pins.told.remove(&ino),
            rest => self.pins.told.insert(ino, rest),
        };
        if rest > 0 || !self.is_orphan(ino) || self.pins.held.contains_key(&ino) {
            return Unpinned::Used;
        }
        if ino.0 < self.pins.adopted_below { Unpinned::Perhaps } else { Unpinned::Unused }
    }

    /// Somebody in this process works on `ino`.
    pub(crate) fn hold(&mut self, ino: Ino) {
        *self.pins.held.entry(ino).or_default() += 1;
    }

    /// Takes a hold back; true if an inode without a name is not used any more.
    pub(crate) fn release(&mut self, ino: Ino) -> bool {
        let Some(held) = self.pins.held.get_mut(&ino) else { return false };
        *held -= 1;
        if *held == 0 {
            self.pins.held.remove(&ino);
        }
        self.is_orphan(ino) && !self.is_pinned(ino)
    }
}
