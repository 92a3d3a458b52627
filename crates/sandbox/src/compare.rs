//! How the files of two sandboxes differ.
//!
//! Both are looked at as overlays that are mounted nowhere, so that it is the kernel that says what their layers show. Where to look the layers say:
//! only an entry of one that the two have not in common can differ. A directory that hides what is below it is looked at whole.

use std::{
    collections::{BTreeSet, VecDeque},
    ffi::{CString, OsString},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Stat, lgetxattr, openat2, readlinkat, seek,
        statat,
    },
    io::{Errno, pread},
};

use crate::{
    attributes::{LEVELS_MAX, OPAQUE, entry_path, open_dir, xattr, xattr_names},
    entry::open_source,
    error::{Context, Error},
    machine::{IDENTITY_FILES, is_one_of},
    rootfs::detached_rootfs,
};

/// Bytes that are compared at once.
const BUFFER_BYTES: usize = 256 << 10;

/// The files of a sandbox.
#[derive(Debug)]
pub struct Files {
    root: OwnedFd,
    /// Topmost first.
    layers: Vec<PathBuf>,
}

impl Files {
    /// As these layers show them, topmost first, at least two. The files of a sandbox that runs may change while they are looked at.
    pub fn open(layers: Vec<PathBuf>) -> Result<Self, Error> {
        Ok(Self { root: detached_rootfs(&layers)?, layers })
    }

    pub(crate) fn root(&self) -> &OwnedFd {
        &self.root
    }
}

/// What of an entry differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// It is of another kind: a file, a directory, a link.
    Kind,
    /// Content of a file, target of a link, number of a device.
    Content,
    /// Bits of access.
    Mode,
    /// User or group.
    Owner,
    /// Extended attributes.
    Attributes,
}

/// How an entry differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Only the second has it, with all below it.
    Added,
    /// Only the first has it, with all below it.
    Removed,
    /// Both have it.
    Changed(Vec<Aspect>),
}

/// An entry that is not the same in both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// From the root, without a slash before it.
    pub path: PathBuf,
    /// How it differs.
    pub change: Change,
    /// Whether it is a directory, where it is.
    pub is_directory: bool,
}

/// Finds what differs, in the order of the paths, and at most `most` of it. What makes a sandbox a machine of its own is left out.
///
/// Ends early, with what it has found, once `stop` is set.
pub fn differences(first: &Files, second: &Files, most: usize, stop: &AtomicBool) -> Result<Vec<Difference>, Error> {
    let common = first.layers.iter().rev().zip(second.layers.iter().rev()).take_while(|(one, other)| one == other);
    let common = common.count();
    let own = |files: &Files| files.layers[..files.layers.len() - common].to_vec();
    let open = |layer: PathBuf| open_dir(CWD, &layer).at("open", &layer);
    let layers: Vec<OwnedFd> = own(first).into_iter().chain(own(second)).map(open).collect::<Result<_, _>>()?;
    let all = (0..layers.len()).collect();
    let walk = Walk { sides: [&first.root, &second.root], layers, most, stop };
    walk.run(Directory { path: Vec::new(), layers: all, whole: false, level: 0 })
}

struct Walk<'a> {
    sides: [&'a OwnedFd; 2],
    /// The roots of the layers that only one of them has.
    layers: Vec<OwnedFd>,
    most: usize,
    stop: &'a AtomicBool,
}

/// A directory that both have.
struct Directory {
    path: Vec<u8>,
    /// The layers that have it.
    layers: Vec<usize>,
    /// Whether one of these hides what is below it.
    whole: bool,
    level: usize,
}

impl Directory {
    fn entry(&self, name: &CString) -> Vec<u8> {
        let slash: &[u8] = if self.path.is_empty() { b"" } else { b"/" };
        [self.path.as_slice(), slash, name.to_bytes()].concat()
    }
}

impl Walk<'_> {
    fn run(&self, root: Directory) -> Result<Vec<Difference>, Error> {
        let (mut found, mut left) = (Vec::new(), VecDeque::from([root]));
        while let Some(directory) = left.pop_front() {
            let below = self.look(&directory, &mut found).at("compare", &path_of(&directory.path))?;
            below.into_iter().rev().for_each(|below| left.push_front(below));
            if found.len() >= self.most || self.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        found.truncate(self.most);
        found.sort_unstable_by(|one: &Difference, other| one.path.cmp(&other.path));
        Ok(found)
    }

    /// Compares the entries of a directory; gives the directories in it that both have.
    fn look(&self, at: &Directory, found: &mut Vec<Difference>) -> rustix::io::Result<Vec<Directory>> {
        let [first, second] = [self.open(self.sides[0], &at.path)?, self.open(self.sides[1], &at.path)?];
        // One of them may have gone meanwhile.
        let (Some(first), Some(second)) = (first, second) else { return Ok(Vec::new()) };
        let mut here = Vec::new();
        for layer in &at.layers {
            here.extend(self.open(&self.layers[*layer], &at.path)?.map(|opened| (*layer, opened)));
        }
        let mut names = BTreeSet::new();
        let both = [&first, &second];
        let listed = here.iter().map(|(_, layer)| layer).chain(both.into_iter().filter(|_| at.whole));
        for directory in listed {
            names.extend(sys::tree::list(directory)?);
        }
        let mut below = Vec::new();
        for name in names {
            if self.stop.load(Ordering::Relaxed) || found.len() >= self.most {
                break;
            }
            let path = at.entry(&name);
            if is_one_of(&IDENTITY_FILES, &path) {
                continue;
            }
            let entry = Entry { directories: both, name: &name, stop: self.stop };
            let (change, is_directory, goes_on) = match (stat(&first, &name)?, stat(&second, &name)?) {
                (None, None) => continue,
                (Some(one), None) => (Some(Change::Removed), is_directory(&one), false),
                (None, Some(other)) => (Some(Change::Added), is_directory(&other), false),
                (Some(one), Some(other)) => {
                    let aspects = entry.compare(&one, &other)?;
                    let change = (!aspects.is_empty()).then_some(Change::Changed(aspects));
                    (change, is_directory(&other), is_directory(&one) && is_directory(&other))
                }
            };
            if let Some(change) = change {
                found.push(Difference { path: path_of(&path), change, is_directory });
            }
            // Deeper ones no copy of the sandbox has either.
            if goes_on && at.level < LEVELS_MAX {
                let has =
                    |(layer, opened): &(usize, OwnedFd)| open_dir(opened, &name).ok().map(|found| (*layer, found));
                let has: Vec<(usize, OwnedFd)> = here.iter().filter_map(has).collect();
                let whole = at.whole || has.iter().any(|(_, opened)| hides_below(opened));
                let layers: Vec<usize> = has.into_iter().map(|(layer, _)| layer).collect();
                if whole || !layers.is_empty() {
                    below.push(Directory { path, layers, whole, level: at.level + 1 });
                }
            }
        }
        Ok(below)
    }

    fn open(&self, root: &OwnedFd, path: &[u8]) -> rustix::io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if path.is_empty() { b"." } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            opened => opened.map(Some),
        }
    }
}

/// An entry that both have.
struct Entry<'a> {
    directories: [&'a OwnedFd; 2],
    name: &'a CString,
    stop: &'a AtomicBool,
}

impl Entry<'_> {
    fn compare(&self, one: &Stat, other: &Stat) -> rustix::io::Result<Vec<Aspect>> {
        let mut aspects = Vec::new();
        let mut add = |differs: bool, aspect| aspects.extend(differs.then_some(aspect));
        let kinds = [one, other].map(|stat| FileType::from_raw_mode(stat.st_mode));
        if kinds[0] != kinds[1] {
            add(true, Aspect::Kind);
        } else {
            add(self.content_differs(kinds[0], one, other)?, Aspect::Content);
            // Links have no mode of their own.
            let modes = [one, other].map(|stat| stat.st_mode & 0o7777);
            add(modes[0] != modes[1] && kinds[0] != FileType::Symlink, Aspect::Mode);
        }
        add((one.st_uid, one.st_gid) != (other.st_uid, other.st_gid), Aspect::Owner);
        add(self.both(attributes)?.is_some_and(|[one, other]| one != other), Aspect::Attributes);
        Ok(aspects)
    }

    /// Nothing if one of them has gone meanwhile.
    fn both<T>(&self, of: impl Fn(&OwnedFd, &CString) -> rustix::io::Result<T>) -> rustix::io::Result<Option<[T; 2]>> {
        let [one, other] = self.directories.map(|directory| match of(directory, self.name) {
            Err(Errno::NOENT | Errno::NODATA) => Ok(None),
            found => found.map(Some),
        });
        Ok(one?.zip(other?).map(|(one, other)| [one, other]))
    }

    fn content_differs(&self, kind: FileType, one: &Stat, other: &Stat) -> rustix::io::Result<bool> {
        match kind {
            FileType::RegularFile if one.st_size != other.st_size => Ok(true),
            FileType::RegularFile => {
                let files = self.both(|directory, name| open_source((directory, name)))?;
                files.map_or(Ok(true), |[one, other]| self.data_differs([&one, &other]))
            }
            FileType::Symlink => {
                let targets = self.both(|directory, name| readlinkat(directory, name, Vec::new()))?;
                Ok(targets.is_none_or(|[one, other]| one != other))
            }
            FileType::CharacterDevice | FileType::BlockDevice => Ok(one.st_rdev != other.st_rdev),
            _ => Ok(false),
        }
    }

    fn data_differs(&self, files: [&OwnedFd; 2]) -> rustix::io::Result<bool> {
        let mut buffers = [vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]];
        let mut at = 0;
        while !self.stop.load(Ordering::Relaxed) {
            // Holes are zeros in both.
            let [one, other] = files.map(|file| next_data(file, at));
            let Some(next) = one?.into_iter().chain(other?).min() else { return Ok(false) };
            at = next;
            let mut lengths = [0; 2];
            for ((file, buffer), length) in files.into_iter().zip(&mut buffers).zip(&mut lengths) {
                *length = read_full(file, buffer, at)?;
            }
            if buffers[0][..lengths[0]] != buffers[1][..lengths[1]] {
                return Ok(true);
            }
            if lengths[0] == 0 {
                return Ok(false);
            }
            at += lengths[0] as u64;
        }
        Ok(false)
    }
}

/// Where a file has data, from `at` on.
fn next_data(file: &OwnedFd, at: u64) -> rustix::io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(at)) {
        Err(Errno::NXIO) => Ok(None),
        // No filesystem without holes needs to know of them.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)),
        next => next.map(Some),
    }
}

fn read_full(file: &OwnedFd, buffer: &mut [u8], at: u64) -> rustix::io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match pread(file, &mut buffer[length..], at + length as u64)? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

/// Those that show: overlayfs keeps its own to itself.
fn attributes(directory: &OwnedFd, name: &CString) -> rustix::io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path = entry_path(directory, name);
    let value = |name: Vec<u8>| xattr(&path, &name).map(|value| (name, value));
    xattr_names(&path)?.into_iter().map(value).collect()
}

fn stat(directory: impl AsFd, name: &CString) -> rustix::io::Result<Option<Stat>> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        stat => stat.map(Some),
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn hides_below(directory: &OwnedFd) -> bool {
    lgetxattr(entry_path(directory, c"."), OPAQUE, &mut [0; 1][..]).is_ok()
}

fn path_of(path: &[u8]) -> PathBuf {
    Path::new(&OsString::from_vec(path.to_vec())).to_owned()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use rustix::fs::{XattrFlags, makedev, mknodat, setxattr};

    use super::*;

    struct Sandboxes {
        dir: tempfile::TempDir,
    }

    impl Sandboxes {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            for layer in ["image", "common", "one", "other"] {
                fs::create_dir(dir.path().join(layer)).unwrap();
            }
            Self { dir }
        }

        fn write(&self, path: &str, content: &str) {
            let path = self.dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        fn path(&self, path: &str) -> PathBuf {
            self.dir.path().join(path)
        }

        fn differences(&self, most: usize) -> Vec<String> {
            let files = |own: &str| Files::open([own, "common", "image"].map(|layer| self.path(layer)).to_vec());
            let found = differences(&files("one").unwrap(), &files("other").unwrap(), most, &AtomicBool::new(false));
            let show = |found: Difference| format!("{} {:?}", found.path.display(), found.change);
            found.unwrap().into_iter().map(show).collect()
        }
    }

    #[test]
    fn what_layers_show_differently_is_found() {
        let sandboxes = Sandboxes::new();
        for (path, content) in [
            ("image/etc/same", "a"),
            ("image/etc/gone", "b"),
            ("image/etc/mode", "c"),
            ("image/opt/a/deep", "d"),
            ("image/opt/b", "e"),
            ("common/etc/both", "f"),
            ("one/etc/both", "one"),
            ("other/etc/both", "two"),
            ("one/etc/same", "a"),
            ("one/home/only/x", "g"),
            ("other/new", "h"),
            ("other/etc/mode", "c"),
            ("other/etc/hostname", "another"),
        ] {
            sandboxes.write(path, content);
        }
        fs::set_permissions(sandboxes.path("other/etc/mode"), fs::Permissions::from_mode(0o600)).unwrap();
        mknodat(CWD, sandboxes.path("other/etc/gone"), FileType::CharacterDevice, Mode::empty(), makedev(0, 0))
            .unwrap();
        fs::create_dir(sandboxes.path("one/opt")).unwrap();
        setxattr(sandboxes.path("one/opt"), OPAQUE, b"y", XattrFlags::empty()).unwrap();
        symlink("x", sandboxes.path("one/link")).unwrap();
        symlink("y", sandboxes.path("other/link")).unwrap();
        assert_eq!(
            sandboxes.differences(100),
            [
                "etc/both Changed([Content])",
                "etc/gone Removed",
                "etc/mode Changed([Mode])",
                "home Removed",
                "link Changed([Content])",
                "new Added",
                "opt/a Added",
                "opt/b Added",
            ]
        );
        assert_eq!(sandboxes.differences(2).len(), 2);
    }

    #[test]
    fn data_is_compared_wherever_it_lies() {
        let sandboxes = Sandboxes::new();
        for (layer, byte) in [("one", b"x"), ("other", b"y")] {
            for (name, byte) in [("same", b"x"), ("end", byte)] {
                let file = fs::File::create(sandboxes.path(&format!("{layer}/{name}"))).unwrap();
                file.set_len(1 << 40).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, byte, (1 << 40) - 5).unwrap();
            }
        }
        assert_eq!(sandboxes.differences(100), ["end Changed([Content])"]);
    }
}
