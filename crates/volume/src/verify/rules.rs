//! What has to hold in a tree whose parts are all readable, apart from sums of one inode.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use store::{
    id::SegmentId,
    tree::{Entry, Scan, TreeError, census},
};

use crate::{
    compact::Use,
    directory::{SLOTS, first_cookie},
    inode::{Ino, Inode, Kind, ROOT},
    loader::Loader,
    materialise::Layout,
};

/// What is counted for one inode while the tree goes by.
#[derive(Default)]
pub(super) struct Seen {
    /// What it says itself, once it has come by.
    inode: Option<Said>,
    /// Entries that name it, what the last of them says that it is, and the directory of that.
    names: u32,
    named_as: Option<Kind>,
    named_in: Option<Ino>,
    directories: u32,
    unnamed: bool,
}

struct Said {
    kind: Kind,
    links: u32,
    parent: Ino,
}

impl Seen {
    pub(super) fn says(&mut self, inode: &Inode) {
        self.inode = Some(Said { kind: inode.kind, links: inode.links, parent: inode.parent });
    }

    pub(super) fn is_named(&mut self, directory: Ino, kind: Kind) {
        self.names += 1;
        self.named_as = Some(kind);
        self.named_in = Some(directory);
    }

    pub(super) fn has_entry(&mut self, kind: Kind) {
        self.directories += u32::from(kind == Kind::Directory);
    }

    pub(super) fn is_unnamed(&mut self) {
        self.unnamed = true;
    }

    fn is_directory(&self) -> bool {
        self.inode.as_ref().is_some_and(|said| said.kind == Kind::Directory)
    }
}

/// What is wrong with the names of an inode.
pub(super) fn miscount(ino: Ino, seen: &Seen) -> Option<String> {
    let Some(Said { kind, links, parent }) = seen.inode else {
        return Some(format!("{} entries name it, and it does not exist", seen.names));
    };
    if let Some(named) = seen.named_as.filter(|named| *named != kind) {
        return Some(format!("it is of kind {kind:?}, and an entry says {named:?}"));
    }
    let expected = match kind {
        Kind::Directory if seen.unnamed => 0,
        Kind::Directory => 2 + seen.directories,
        _ => seen.names,
    };
    if links != expected {
        return Some(format!("it says that it has {links} links and has {expected}"));
    }
    let names_expected = match kind {
        Kind::Directory => u32::from(ino != ROOT && !seen.unnamed),
        _ => seen.names,
    };
    let lost = ino != ROOT && seen.names == 0 && !seen.unnamed;
    if seen.names != names_expected || lost {
        return Some(format!("it has {} names", seen.names));
    }
    match seen.named_in {
        Some(directory) if kind == Kind::Directory && directory != parent => {
            Some(format!("it says that it is in inode {}, and is in inode {}", parent.0, directory.0))
        }
        _ => None,
    }
}

/// Directories that are below themselves, and so not below the top; one of each circle.
pub(super) fn circles(seen: &HashMap<Ino, Seen>) -> Vec<Ino> {
    let (mut known, mut found) = (HashSet::from([ROOT]), Vec::new());
    let mut directories: Vec<Ino> = seen.iter().filter(|(_, seen)| seen.is_directory()).map(|(ino, _)| *ino).collect();
    directories.sort_unstable();
    for ino in directories {
        let mut way = HashSet::new();
        let mut at = Some(ino).filter(|ino| !known.contains(ino));
        while let Some(here) = at {
            if !way.insert(here) {
                found.push(here);
                break;
            }
            // One that has no name is told elsewhere.
            at = seen.get(&here).and_then(|seen| seen.named_in).filter(|above| !known.contains(above));
        }
        known.extend(way);
    }
    found
}

/// Entries of one directory whose names have one hash, as they come by.
#[derive(Default)]
pub(super) struct Slot {
    /// The directory, and the first cookie of that hash.
    group: Option<(Ino, u64)>,
    names: Vec<Vec<u8>>,
}

impl Slot {
    /// What is wrong with the place of an entry: it is looked for by its name.
    pub(super) fn misplaced(
        &mut self,
        salt: &[u8; 32],
        (directory, cookie): (Ino, u64),
        name: &[u8],
    ) -> Option<String> {
        let first = first_cookie(salt, name);
        let shown = String::from_utf8_lossy(name);
        if !(first..first + SLOTS).contains(&cookie) {
            return Some(format!("its entry {shown:?} is not where that name is looked for"));
        }
        if self.group != Some((directory, first)) {
            *self = Self { group: Some((directory, first)), names: Vec::new() };
        }
        if self.names.iter().any(|known| known == name) {
            return Some(format!("it has two entries {shown:?}"));
        }
        self.names.push(name.to_vec());
        None
    }
}

/// What is wrong with the account of segments, by which the collector takes them: `used` is what windows refer to. An error says that it cannot be read.
pub(super) async fn misaccounted(
    loader: &Loader,
    layout: &Layout,
    mut used: BTreeMap<SegmentId, i64>,
) -> Result<Vec<String>, TreeError> {
    let nodes = census(loader, &[layout.files, layout.usage]).await?;
    let needed: BTreeSet<&SegmentId> = used.keys().chain(nodes.keys()).collect();
    let mut wrong: Vec<String> = needed
        .into_iter()
        .filter(|segment| !layout.segments.contains(*segment))
        .map(|segment| format!("its manifest does not name segment {segment}, which it needs"))
        .collect();
    let mut scan = Scan::all(loader, &layout.usage);
    while let Some(Entry { key, value }) = scan.next().await? {
        let (Ok(id), Some(said)) = (key[..].try_into().map(SegmentId), Use::decode(&value)) else {
            wrong.push("the account of its segments has an entry that is none".to_owned());
            continue;
        };
        let found = used.remove(&id).unwrap_or(0);
        if found != said.live {
            wrong.push(format!("{found} bytes of segment {id} are in use, and its account says {}", said.live));
        }
    }
    let unknown = |(id, found)| format!("{found} bytes of segment {id} are in use, of which it has no account");
    wrong.extend(used.into_iter().map(unknown));
    Ok(wrong)
}
