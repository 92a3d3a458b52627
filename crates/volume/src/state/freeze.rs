//! Freezing: one moment of the state, taken out while work goes on.

use std::collections::BTreeMap;

use foldhash::HashSet;
use store::tree::Tree;

use super::{Base, Slot, State, Superblock, Usage};
use crate::{
    directory::Dirent,
    extents::Window,
    inode::{Ino, Inode},
    key::{Key, Part},
};

/// What a key stood for at the moment of a freeze.
#[derive(Debug)]
pub(crate) enum Value {
    Absent,
    Inode(Box<Inode>),
    Xattrs(BTreeMap<Vec<u8>, Vec<u8>>),
    Entry(Dirent),
    Window(Window),
    Orphan,
}

/// A freeze whose commit is under way.
#[derive(Debug)]
pub(super) struct Freeze {
    /// Keys that have not been captured.
    waiting: HashSet<Key>,
    captured: Vec<(Key, Value)>,
    /// Keys whose values were taken out. They stay in memory until the tree that has them is the base.
    taken: HashSet<Key>,
    usage: Usage,
}

impl Freeze {
    /// How many keys it holds in memory.
    pub(super) fn keys(&self) -> usize {
        self.waiting.len() + self.captured.len() + self.taken.len()
    }
}

/// A window whose data went into the store.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) key: Key,
    /// As it was captured.
    pub(crate) frozen: Window,
    /// As the tree has it.
    pub(crate) stored: Window,
}

/// What is the same for the whole of a freeze.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub(crate) superblock: Superblock,
    pub(crate) base: Base,
    /// What the frozen changes make of each segment's use.
    pub(crate) usage: Usage,
}

impl State {
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Begins a freeze; one at a time. Constant time, however much is dirty.
    pub(crate) fn freeze(&mut self) -> Frozen {
        debug_assert!(self.freeze.is_none());
        let usage = std::mem::take(&mut self.usage);
        let waiting = std::mem::take(&mut self.dirty);
        let frozen = Frozen { superblock: self.superblock.clone(), base: self.base, usage: usage.clone() };
        self.freeze = Some(Freeze { waiting, captured: Vec::new(), taken: HashSet::default(), usage });
        frozen
    }

    /// Takes out up to `count` values of the freeze, and those that were captured before a change. `None` after the last.
    pub(crate) fn capture(&mut self, count: usize) -> Option<Vec<(Key, Value)>> {
        let mut freeze = self.freeze.take()?;
        let keys: Vec<Key> = freeze.waiting.iter().take(count).copied().collect();
        for key in keys {
            freeze.waiting.remove(&key);
            freeze.captured.push((key, self.value(key)));
        }
        let values = std::mem::take(&mut freeze.captured);
        freeze.taken.extend(values.iter().map(|(key, _)| *key));
        self.freeze = Some(freeze);
        (!values.is_empty()).then_some(values)
    }

    /// Ends a freeze that was committed: `tree` has what was frozen, and in it these windows lie as `stored` says. What has changed since
    /// stays as it is.
    pub(crate) fn install(&mut self, tree: Tree, stored: Vec<Stored>) {
        self.freeze = None;
        self.base = Base { tree, version: self.base.version + 1 };
        for Stored { key, frozen, stored } in stored {
            if self.dirty.contains(&key) {
                // The account was kept against the frozen window, and the tree has the stored one.
                self.count(&frozen, 1);
                self.count(&stored, -1);
                continue;
            }
            let (Part::Window(index), Some(Slot::Here(node))) = (key.part, self.slots.get_mut(&key.ino)) else {
                continue;
            };
            // One that was moved need not be in memory.
            if node.windows.loaded(index).is_some() {
                self.memory_bytes -= frozen.memory_bytes();
                node.windows.put(index, stored);
            }
        }
    }

    /// Ends a freeze whose commit failed: all of it is dirty again.
    pub(crate) fn thaw(&mut self) {
        let Some(freeze) = self.freeze.take() else { return };
        self.dirty.extend(freeze.waiting);
        self.dirty.extend(freeze.taken);
        self.dirty.extend(freeze.captured.into_iter().map(|(key, _)| key));
        for (segment, bytes) in freeze.usage {
            *self.usage.entry(segment).or_default() += bytes;
        }
    }

    /// Lets clean nodes go that were not asked for since the last time, when there are more than `nodes_max`.
    pub(crate) fn evict(&mut self, nodes_max: usize) {
        if self.slots.len() <= nodes_max {
            return;
        }
        let frozen = self.freeze.iter().flat_map(|freeze| freeze.waiting.iter().chain(&freeze.taken));
        let captured = self.freeze.iter().flat_map(|freeze| freeze.captured.iter().map(|(key, _)| key));
        let kept: HashSet<_> = self.dirty.iter().chain(frozen).chain(captured).map(|key| key.ino).collect();
        self.slots.retain(|ino, slot| match slot {
            _ if kept.contains(ino) => true,
            Slot::Here(node) => node.used.replace(false),
            Slot::Gone => false,
        });
        self.evicted_to = self.slots.len();
    }

    /// As `evict`, if there is a quarter more than there may be, or than the last time left: it looks at all of them.
    pub(crate) fn evict_if_grown(&mut self, nodes_max: usize) {
        if self.slots.len() / 5 * 4 >= nodes_max.max(self.evicted_to) {
            self.evict(nodes_max);
        }
    }

    pub(super) fn capture_before_change(&mut self, key: Key) {
        let waits = self.freeze.as_mut().is_some_and(|freeze| freeze.waiting.remove(&key));
        if waits {
            let value = self.value(key);
            if let Some(freeze) = &mut self.freeze {
                freeze.captured.push((key, value));
            }
        }
    }

    /// What `key` stands for now. A dirty key is always in memory.
    fn value(&self, key: Key) -> Value {
        if let Part::Orphan(ino) = key.part {
            return if self.orphans.contains(&Ino(ino)) { Value::Orphan } else { Value::Absent };
        }
        let Some(node) = self.here(key.ino) else { return Value::Absent };
        match key.part {
            Part::Inode => Value::Inode(Box::new(node.inode.clone())),
            Part::Xattrs if node.xattrs.is_empty() => Value::Absent,
            Part::Xattrs => Value::Xattrs(node.xattrs.clone()),
            Part::Window(index) => node.windows.loaded(index).cloned().map_or(Value::Absent, Value::Window),
            Part::Entry(cookie) => node.entries.loaded(cookie).cloned().map_or(Value::Absent, Value::Entry),
            Part::Orphan(_) => Value::Absent,
        }
    }
}
