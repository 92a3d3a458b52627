//! The working state of a volume: what is in memory of its tree, and what has changed since the tree was written.
//!
//! Pure: no clock, no file, no store. A question that the memory cannot answer is a [`Stop::Miss`]: the caller reads the key's page,
//! admits it and asks again, so no lock is held while the store is read. Every operation looks at all it needs before it changes anything.
//!
//! ```text
//!            touch(key), before each change            commit
//!   clean ───────────────────────────────► dirty ──┐ freeze: O(1), takes the set of dirty keys
//!     ▲                                            ▼
//!     └── install(new tree): as the tree has it ── frozen ── capture: its value, before it changes again
//! ```
//!
//! A frozen state is captured a few keys at a time while work goes on: whoever changes a key that has not been captured captures
//! it first. So background work sees one moment, and never puts an older value over a newer one.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};

use foldhash::{HashMap, HashSet};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use store::{id::SegmentId, tree::Tree};

use crate::{
    directory::{self, Dirent, SLOTS},
    extents::Window,
    inode::{Ino, Inode, Kind, Time},
    key::{Key, Part},
    limits::DIRTY_KEY_BYTES,
    paged::{Gap, Paged},
};

mod freeze;
mod load;
pub(crate) mod pins;

pub(crate) use self::{
    freeze::{Frozen, Stored, Value},
    load::{Page, decode_xattrs, encode_xattrs, orphans},
};

/// Why an operation did not happen.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It must not, or cannot.
    Errno(Errno),
    /// This key and those behind it have to be read first.
    Miss(Key),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

pub(crate) type Step<T> = Result<T, Stop>;

/// Epoch of a volume that nobody has opened yet.
pub(crate) const NO_EPOCH: [u8; 16] = [0; 16];

/// What a volume is besides its tree. Lies in its manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Superblock {
    /// Key of the cookies' hash.
    pub(crate) salt: [u8; 32],
    /// Whose log goes on from this state; [`NO_EPOCH`]: nobody's.
    pub(crate) epoch: [u8; 16],
    /// The last operation in it.
    pub(crate) sequence: u64,
    pub(crate) next_ino: u64,
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    pub(crate) bytes_max: u64,
    pub(crate) inodes_max: u64,
    pub(crate) durability: Durability,
    pub(crate) created: Time,
    /// Whose state it is: a fork has its parent's until it is opened first.
    pub(crate) incarnation: [u8; 16],
}

/// What `fsync` of a file in a volume promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    /// It is on this node's disk: it survives a crash of the process and of the node.
    Local,
    /// It is in the store: it survives the loss of the node.
    Object,
}

/// Bytes of data by segment, as changes.
pub(crate) type Usage = HashMap<SegmentId, i64>;

/// An inode with what hangs on it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) inode: Inode,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) entries: Paged<Dirent>,
    pub(crate) windows: Paged<Window>,
    /// Asked for since the last sweep of clean nodes.
    used: std::cell::Cell<bool>,
}

#[derive(Debug)]
enum Slot {
    Here(Box<Node>),
    /// There is no such inode, whatever the tree says.
    Gone,
}

/// The tree that everything clean is in. The version tells a page that was read of an older one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Base {
    pub(crate) tree: Tree,
    pub(crate) version: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct State {
    superblock: Superblock,
    base: Base,
    /// Inodes from this number on were made after the last freeze.
    fresh_from: u64,
    slots: HashMap<Ino, Slot>,
    orphans: BTreeSet<Ino>,
    pins: pins::Pins,
    dirty: HashSet<Key>,
    freeze: Option<freeze::Freeze>,
    usage: Usage,
    /// Bytes of data that are in memory only.
    memory_bytes: u64,
    /// Inodes in memory after the last sweep of clean ones.
    evicted_to: usize,
    /// A log is being replayed: what it holds has happened, whatever the quota says.
    replaying: bool,
}

impl State {
    /// The state of `tree`. Nothing of it is read yet, but for the inodes without a name.
    pub(crate) fn new(superblock: Superblock, tree: Tree, orphans: BTreeSet<Ino>) -> Self {
        Self {
            fresh_from: superblock.next_ino,
            superblock,
            base: Base { tree, version: 0 },
            slots: HashMap::default(),
            orphans,
            pins: pins::Pins::default(),
            dirty: HashSet::default(),
            freeze: None,
            usage: Usage::default(),
            memory_bytes: 0,
            evicted_to: 0,
            replaying: false,
        }
    }

    /// Becomes the state of another tree, and gives the one before back: to let go of it takes as long as it is large. References from
    /// outside stay.
    pub(crate) fn restart(&mut self, superblock: Superblock, tree: Tree, orphans: BTreeSet<Ino>) -> Self {
        let version = self.base.version + 1;
        let pins = std::mem::take(&mut self.pins);
        let next = Self { pins, base: Base { tree, version }, ..Self::new(superblock, tree, orphans) };
        std::mem::replace(self, next)
    }

    /// Lets go of it in a thread of its own, a few files at a time with rests between them, a million in half a minute: at once they would take a
    /// processor for four seconds, and the allocator's locks, from whoever works meanwhile.
    pub(crate) fn let_go(self) {
        const FILES: usize = 128;
        const REST: Duration = Duration::from_millis(4);
        // Without a thread it goes here and now.
        let _ = thread::Builder::new().name("state-before".to_owned()).spawn(move || {
            let mut slots = self.slots.into_iter();
            while slots.by_ref().take(FILES).count() == FILES {
                thread::sleep(REST);
            }
        });
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub(crate) fn base(&self) -> Base {
        self.base
    }

    /// See [`crate::Engine::dirty_bytes`].
    pub(crate) fn dirty_bytes(&self) -> u64 {
        let keys = self.dirty.len() + self.freeze.as_ref().map_or(0, freeze::Freeze::keys);
        self.memory_bytes + keys as u64 * DIRTY_KEY_BYTES
    }

    /// Inodes of which something is not committed, some more than once.
    pub(crate) fn dirty_inodes(&self) -> impl Iterator<Item = Ino> {
        self.dirty.iter().map(|key| key.ino)
    }

    pub(crate) fn inodes_in_memory(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn set_replaying(&mut self, replaying: bool) {
        self.replaying = replaying;
    }

    /// Counts an operation, for the log.
    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.superblock.sequence += 1;
        self.superblock.sequence
    }

    /// Room for so many more bytes and inodes?
    pub(crate) fn room(&self, bytes: u64, inodes: u64) -> Result<(), Errno> {
        let fits = self.superblock.bytes.saturating_add(bytes) <= self.superblock.bytes_max
            && self.superblock.inodes.saturating_add(inodes) <= self.superblock.inodes_max;
        if fits || self.replaying { Ok(()) } else { Err(Errno::NOSPC) }
    }

    pub(crate) fn node(&self, ino: Ino) -> Step<&Node> {
        match self.slots.get(&ino) {
            Some(Slot::Here(node)) => {
                node.used.set(true);
                Ok(node)
            }
            Some(Slot::Gone) => Err(Errno::STALE.into()),
            // What was made since the last freeze is dirty, so it is here, or was removed, or never was.
            None if ino.0 == 0 || ino.0 >= self.fresh_from => Err(Errno::STALE.into()),
            None => Err(Stop::Miss(Key::inode(ino))),
        }
    }

    pub(crate) fn directory(&self, ino: Ino) -> Step<&Node> {
        let node = self.node(ino)?;
        if node.inode.is_directory() { Ok(node) } else { Err(Errno::NOTDIR.into()) }
    }

    pub(crate) fn file(&self, ino: Ino) -> Step<&Node> {
        match self.node(ino)? {
            node if node.inode.kind == Kind::File => Ok(node),
            node if node.inode.is_directory() => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// The entry `name` of a directory: its cookie, inode and kind.
    pub(crate) fn entry(&self, directory: Ino, name: &[u8]) -> Step<Option<(u64, Ino, Kind)>> {
        let entries = &self.directory(directory)?.entries;
        let first = directory::first_cookie(&self.superblock.salt, name);
        let slots = entries.range(first, first + SLOTS - 1).map_err(|gap| entry_gap(directory, gap))?;
        let mut named = slots.filter(|(_, entry)| entry.name == name);
        Ok(named.next().map(|(cookie, entry)| (cookie, entry.ino, entry.kind)))
    }

    /// A cookie for a new entry `name`.
    pub(crate) fn free_cookie(&self, directory: Ino, name: &[u8]) -> Step<u64> {
        let entries = &self.directory(directory)?.entries;
        let first = directory::first_cookie(&self.superblock.salt, name);
        for cookie in first..first + SLOTS {
            if entries.get(cookie).map_err(|gap| entry_gap(directory, gap))?.is_none() {
                return Ok(cookie);
            }
        }
        Err(Errno::NOSPC.into())
    }

    pub(crate) fn is_orphan(&self, ino: Ino) -> bool {
        self.orphans.contains(&ino)
    }

    pub(crate) fn orphans(&self) -> Vec<Ino> {
        self.orphans.iter().copied().collect()
    }
}

/// Changes. Whoever calls these has looked at the nodes before: they are here.
impl State {
    /// Adds an inode and gives it its number.
    pub(crate) fn add(&mut self, inode: Inode) -> Ino {
        let ino = Ino(self.superblock.next_ino);
        self.touch(Key::inode(ino));
        self.superblock.next_ino += 1;
        self.superblock.inodes += 1;
        let (xattrs, entries, windows) = (BTreeMap::new(), Paged::empty(), Paged::empty());
        let node = Node { inode, xattrs, entries, windows, used: true.into() };
        self.slots.insert(ino, Slot::Here(Box::new(node)));
        ino
    }

    /// Removes an inode without a name, with all it holds: `windows` of data, which are in memory, and no entries.
    pub(crate) fn remove(&mut self, ino: Ino, windows: &[u64]) {
        let is_fresh = ino.0 >= self.fresh_from;
        // Without any now, the tree has none either, or that they are gone is dirty already.
        let may_have_xattrs = is_fresh || self.here(ino).is_some_and(|node| !node.xattrs.is_empty());
        let own = [Key::inode(ino), Key::orphan(ino)].into_iter().chain(may_have_xattrs.then_some(Key::xattrs(ino)));
        let keys = own.chain(windows.iter().map(|index| Key::window(ino, *index)));
        let slot = if is_fresh {
            // Neither the tree nor a freeze has ever heard of it, so no commit has to.
            keys.for_each(|key| _ = self.dirty.remove(&key));
            self.slots.remove(&ino)
        } else {
            keys.for_each(|key| self.touch(key));
            self.slots.insert(ino, Slot::Gone)
        };
        self.orphans.remove(&ino);
        self.superblock.inodes = self.superblock.inodes.saturating_sub(1);
        let Some(Slot::Here(node)) = slot else { return };
        for window in node.windows.into_values() {
            self.count(&window, -1);
            self.memory_bytes -= window.memory_bytes();
            self.superblock.bytes = self.superblock.bytes.saturating_sub(window.bytes());
        }
    }

    pub(crate) fn edit(&mut self, ino: Ino) -> Step<&mut Inode> {
        self.node(ino)?;
        self.touch(Key::inode(ino));
        self.node_mut(ino).map(|node| &mut node.inode)
    }

    pub(crate) fn edit_xattrs(&mut self, ino: Ino) -> Step<&mut BTreeMap<Vec<u8>, Vec<u8>>> {
        self.node(ino)?;
        self.touch(Key::xattrs(ino));
        self.node_mut(ino).map(|node| &mut node.xattrs)
    }

    pub(crate) fn put_entry(&mut self, directory: Ino, cookie: u64, entry: Dirent) -> Step<()> {
        self.touch(Key::entry(directory, cookie));
        self.node_mut(directory)?.entries.put(cookie, entry);
        Ok(())
    }

    pub(crate) fn remove_entry(&mut self, directory: Ino, cookie: u64) -> Step<()> {
        self.touch(Key::entry(directory, cookie));
        self.node_mut(directory)?.entries.take(cookie);
        Ok(())
    }

    /// Changes one window and keeps account of its bytes.
    pub(crate) fn edit_window(&mut self, ino: Ino, index: u64, change: impl FnOnce(&mut Window)) -> Step<()> {
        self.touch(Key::window(ino, index));
        let mut window = self.node_mut(ino)?.windows.take(index).unwrap_or_default();
        let (bytes, memory) = (window.bytes(), window.memory_bytes());
        self.count(&window, -1);
        change(&mut window);
        self.count(&window, 1);
        self.memory_bytes = self.memory_bytes + window.memory_bytes() - memory;
        self.superblock.bytes = (self.superblock.bytes + window.bytes()).saturating_sub(bytes);
        if window.bytes() != bytes {
            self.touch(Key::inode(ino));
        }
        let node = self.node_mut(ino)?;
        node.inode.allocated = (node.inode.allocated + window.bytes()).saturating_sub(bytes);
        if !window.is_empty() {
            node.windows.put(index, window);
        }
        Ok(())
    }

    pub(crate) fn set_orphan(&mut self, ino: Ino, orphan: bool) {
        if self.orphans.contains(&ino) != orphan {
            self.touch(Key::orphan(ino));
            if orphan {
                self.orphans.insert(ino)
            } else {
                self.orphans.remove(&ino)
            };
        }
    }

    /// Adds what lies in segments to the account, or takes it off.
    fn count(&mut self, window: &Window, sign: i64) {
        for (segment, bytes) in window.stored_bytes() {
            *self.usage.entry(segment).or_default() += sign * bytes as i64;
        }
    }

    /// Before each change of what `key` stands for.
    fn touch(&mut self, key: Key) {
        self.capture_before_change(key);
        self.dirty.insert(key);
    }

    fn node_mut(&mut self, ino: Ino) -> Step<&mut Node> {
        match self.slots.get_mut(&ino) {
            Some(Slot::Here(node)) => Ok(node),
            Some(Slot::Gone) => Err(Errno::STALE.into()),
            None => Err(Stop::Miss(Key::inode(ino))),
        }
    }

    fn here(&self, ino: Ino) -> Option<&Node> {
        match self.slots.get(&ino) {
            Some(Slot::Here(node)) => Some(node),
            Some(Slot::Gone) | None => None,
        }
    }
}

pub(crate) fn entry_gap(directory: Ino, gap: Gap) -> Stop {
    Stop::Miss(Key { ino: directory, part: Part::Entry(gap.0) })
}

pub(crate) fn window_gap(ino: Ino, gap: Gap) -> Stop {
    Stop::Miss(Key { ino, part: Part::Window(gap.0) })
}
