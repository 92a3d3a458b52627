//! Taking in what was read of the tree.

use std::collections::BTreeMap;

use bytes::Bytes;
use rustix::io::Errno;

use super::{Base, Node, Slot, State};
use crate::{
    directory::Dirent,
    extents::Window,
    inode::{Ino, Inode},
    key::{Key, Part},
    paged::Paged,
};

/// Entries of the tree from a missed key on, as far as one inode goes.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) entries: Vec<(Key, Bytes)>,
    /// Nothing of the inode is behind them.
    pub(crate) whole: bool,
}

#[derive(Default)]
struct Parsed {
    inode: Option<Inode>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    windows: Vec<(u64, Window)>,
    entries: Vec<(u64, Dirent)>,
}

impl State {
    /// Takes in a page that was read of `base` after a miss of `missed`. What is here already is newer and stays. A page of an older
    /// base is dropped: whoever missed will ask again.
    pub(crate) fn admit(&mut self, base: Base, missed: Key, page: Page) -> Result<(), Errno> {
        if base.version != self.base.version {
            return Ok(());
        }
        let last = page.entries.last().map(|(key, _)| key.part);
        let known = |first: Part, part: fn(u64) -> Part| known_range(missed.part, first, last, page.whole, part);
        let (windows, entries) =
            (known(Part::Window(u64::MAX), Part::Window), known(Part::Entry(u64::MAX), Part::Entry));
        let parsed = parse(page.entries).ok_or(Errno::IO)?;
        if missed.part == Part::Inode && !self.slots.contains_key(&missed.ino) {
            self.slots.insert(missed.ino, slot(parsed.inode, parsed.xattrs));
        }
        let Some(Slot::Here(node)) = self.slots.get_mut(&missed.ino) else { return Ok(()) };
        if let Some((first, last)) = windows {
            node.windows.admit(first, last, parsed.windows.into_iter());
        }
        if let Some((first, last)) = entries {
            node.entries.admit(first, last, parsed.entries.into_iter());
        }
        Ok(())
    }
}

fn slot(inode: Option<Inode>, xattrs: BTreeMap<Vec<u8>, Vec<u8>>) -> Slot {
    let Some(inode) = inode else { return Slot::Gone };
    let (entries, windows) = (Paged::unread(), Paged::unread());
    Slot::Here(Box::new(Node { inode, xattrs, entries, windows, used: true.into() }))
}

/// The numbers of one kind of key that a page answers for: from the missed one on, to the last that was read or to the end.
fn known_range(missed: Part, top: Part, last: Option<Part>, whole: bool, part: fn(u64) -> Part) -> Option<(u64, u64)> {
    if missed > top {
        return None;
    }
    let first = if missed < part(0) { 0 } else { number(missed) };
    match last {
        _ if whole => Some((first, u64::MAX)),
        Some(last) if last > top => Some((first, u64::MAX)),
        Some(last) if last >= part(0) => Some((first, number(last))),
        Some(_) | None => None,
    }
}

fn number(part: Part) -> u64 {
    match part {
        Part::Window(number) | Part::Entry(number) | Part::Orphan(number) => number,
        Part::Inode | Part::Xattrs => 0,
    }
}

fn parse(page: Vec<(Key, Bytes)>) -> Option<Parsed> {
    let mut parsed = Parsed::default();
    for (key, value) in page {
        match key.part {
            Part::Inode => parsed.inode = Some(postcard::from_bytes(&value).ok()?),
            Part::Xattrs => parsed.xattrs = decode_xattrs(&value)?,
            Part::Window(index) => parsed.windows.push((index, Window::decode(&value)?)),
            Part::Entry(cookie) => parsed.entries.push((cookie, postcard::from_bytes(&value).ok()?)),
            Part::Orphan(_) => return None,
        }
    }
    Some(parsed)
}

type Xattr<'a> = (&'a serde_bytes::Bytes, &'a serde_bytes::Bytes);

pub(crate) fn decode_xattrs(value: &[u8]) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    let pairs: Vec<Xattr<'_>> = postcard::from_bytes(value).ok()?;
    Some(pairs.into_iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect())
}

/// Attributes as the tree holds them.
pub(crate) fn encode_xattrs(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> postcard::Result<Vec<u8>> {
    let pairs: Vec<Xattr<'_>> =
        xattrs.iter().map(|(name, value)| (serde_bytes::Bytes::new(name), serde_bytes::Bytes::new(value))).collect();
    postcard::to_stdvec(&pairs)
}

/// The inodes without a name among entries of the tree.
pub(crate) fn orphans(page: &Page) -> Option<Vec<Ino>> {
    let ino = |(key, _): &(Key, Bytes)| match key.part {
        Part::Orphan(ino) => Some(Ino(ino)),
        Part::Inode | Part::Xattrs | Part::Window(_) | Part::Entry(_) => None,
    };
    page.entries.iter().map(ino).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use store::tree::Tree;

    use super::*;
    use crate::state::{Stop, Superblock};

    /// Of an empty tree, with ten inodes that nobody has looked at.
    pub(in crate::state) fn state() -> State {
        let (salt, epoch) = ([0; 32], [0; 16]);
        let (bytes_max, inodes_max) = (1 << 20, 100);
        let (durability, created) = (crate::Durability::Local, Default::default());
        let about = Superblock {
            salt,
            epoch,
            sequence: 0,
            next_ino: 10,
            bytes: 0,
            inodes: 1,
            bytes_max,
            inodes_max,
            durability,
            created,
            incarnation: [0; 16],
        };
        State::new(about, Tree::EMPTY, BTreeSet::new())
    }

    #[test]
    fn a_page_of_an_older_tree_is_dropped() {
        let mut state = state();
        let missed = Key::inode(Ino(5));
        assert!(matches!(state.node(Ino(5)), Err(Stop::Miss(key)) if key == missed));
        let old = state.base();
        state.install(Tree::EMPTY, Vec::new());
        state.admit(old, missed, Page { entries: Vec::new(), whole: true }).unwrap();
        assert!(matches!(state.node(Ino(5)), Err(Stop::Miss(_))), "it has to be read again");
        state.admit(state.base(), missed, Page { entries: Vec::new(), whole: true }).unwrap();
        assert!(matches!(state.node(Ino(5)), Err(Stop::Errno(Errno::STALE))));
    }

    #[test]
    fn what_no_volume_writes_is_an_error_and_not_a_panic() {
        let mut state = state();
        let base = state.base();
        for key in [Key::inode(Ino(5)), Key::xattrs(Ino(5)), Key::window(Ino(5), 0), Key::entry(Ino(5), 9)] {
            let entries = vec![(key, Bytes::from_static(b"\xff\xff\xff"))];
            assert_eq!(state.admit(base, Key::inode(Ino(5)), Page { entries, whole: true }), Err(Errno::IO));
        }
    }
}
