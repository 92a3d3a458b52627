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
        self.fresh_from = self.superblock.next_ino;
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

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;
    use crate::{
        inode::{Kind, ROOT, Time},
        op::{New, Op},
        state::{Stop, load::Page, load::tests::state},
    };

    const NOW: Time = Time { seconds: 1, nanos: 0 };

    fn with_top_directory() -> State {
        let mut state = state();
        let top = postcard::to_stdvec(&crate::volume::top_directory(&crate::Options::default())).unwrap();
        let page = Page { entries: vec![(Key::inode(ROOT), top.into())], whole: true };
        state.admit(state.base(), Key::inode(ROOT), page).unwrap();
        state
    }

    fn make(state: &mut State) -> Ino {
        let new = New { kind: Kind::File, mode: 0o644, uid: 0, gid: 0, device: 0, target: b"" };
        let ino = state.apply(&Op::Make { directory: ROOT, name: b"f", new, now: NOW }).unwrap().ino.unwrap();
        state.apply(&Op::Write { ino, offset: 0, data: b"data", drop_privileges: false, now: NOW }).unwrap();
        ino
    }

    fn remove(state: &mut State, ino: Ino) {
        state.apply(&Op::Unlink { directory: ROOT, name: b"f", now: NOW }).unwrap();
        state.apply(&Op::Reap { ino }).unwrap();
    }

    /// Keys of `ino` that a freeze has, with whether each is gone.
    fn of(state: &mut State, ino: Ino) -> Vec<(Key, bool)> {
        let captured = state.capture(usize::MAX).unwrap_or_default().into_iter();
        let own = captured.filter(|(key, _)| key.ino == ino || *key == Key::orphan(ino));
        let mut own: Vec<_> = own.map(|(key, value)| (key, matches!(value, Value::Absent))).collect();
        own.sort();
        own
    }

    #[test]
    fn a_file_that_no_freeze_has_seen_leaves_nothing_to_commit() {
        let mut state = with_top_directory();
        let ino = make(&mut state);
        let bytes = state.superblock().bytes;
        remove(&mut state, ino);
        assert_eq!((bytes, state.superblock().bytes, state.memory_bytes), (4, 0, 0));
        assert_eq!(state.dirty.len(), 2, "the directory, and the name in it");
        assert!(!state.slots.contains_key(&ino));
        assert!(matches!(state.node(ino), Err(Stop::Errno(Errno::STALE))), "nobody has to ask the store");
        state.freeze();
        assert_eq!(of(&mut state, ino), []);
    }

    #[test]
    fn a_file_that_a_freeze_has_seen_is_removed_by_the_next() {
        let mut state = with_top_directory();
        let ino = make(&mut state);
        state.freeze();
        remove(&mut state, ino);
        let own = [Key::inode(ino), Key::window(ino, 0)];
        assert_eq!(of(&mut state, ino), own.map(|key| (key, false)), "as they were");
        state.install(Tree::EMPTY, Vec::new());
        state.freeze();
        let gone = [Key::orphan(ino), Key::inode(ino), Key::window(ino, 0)];
        assert_eq!(of(&mut state, ino), gone.map(|key| (key, true)));
        assert_eq!((state.superblock().bytes, state.memory_bytes), (0, 0));
    }

    #[test]
    fn a_file_of_a_commit_that_failed_is_removed_all_the_same() {
        let mut state = with_top_directory();
        let ino = make(&mut state);
        state.freeze();
        assert!(!of(&mut state, ino).is_empty());
        state.thaw();
        remove(&mut state, ino);
        state.freeze();
        let gone = [Key::orphan(ino), Key::inode(ino), Key::window(ino, 0)];
        assert_eq!(of(&mut state, ino), gone.map(|key| (key, true)));
    }
}
