//! Archives of layers that overlay made, and of every kind of entry that only root can make.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    os::unix::fs::{FileTypeExt, MetadataExt, chown, symlink},
    path::{Path, PathBuf},
};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lgetxattr, llistxattr, lsetxattr, mknodat,
    utimensat,
};
use sandbox::{ArchiveTotals, Error, Sandbox, pack_layer, unpack_layer};

use crate::sandbox::host::{Host, destroy, shell};

const GOLDEN: &[u8] = include_bytes!("../../../../../../crates/sandbox/tests/golden/layer-archive-v1.bin");

/// All that an archive or a copy carries of an entry.
#[derive(Debug, PartialEq)]
pub(crate) struct Entry {
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    device: u64,
    size: u64,
    pub(super) names: u64,
    /// All its names, the first one of them.
    first: PathBuf,
    /// A link's target, or a file's megabytes that are not all zeros.
    content: BTreeMap<usize, Vec<u8>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub(crate) fn list(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let (mut entries, mut paths, mut inodes) = (BTreeMap::new(), vec![root.to_owned()], BTreeMap::new());
    while let Some(path) = paths.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        let below = path.strip_prefix(root).unwrap().to_owned();
        let directory = found.is_dir();
        let mut content = BTreeMap::new();
        if directory {
            let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
            names.sort();
            paths.extend(names);
        } else if found.is_file() && found.blocks() > 0 {
            content = data(&path);
        } else if found.is_symlink() {
            content.insert(0, fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes());
        }
        let entry = Entry {
            mode: found.mode(),
            owner: (found.uid(), found.gid()),
            modified: (found.mtime(), found.mtime_nsec()),
            device: found.rdev(),
            size: if directory { 0 } else { found.size() },
            names: found.nlink(),
            first: inodes.entry(found.ino()).or_insert_with(|| below.clone()).clone(),
            content,
            xattrs: xattrs(&path),
        };
        entries.insert(below, entry);
    }
    entries
}

fn data(path: &Path) -> BTreeMap<usize, Vec<u8>> {
    let (mut file, mut data) = (File::open(path).unwrap(), BTreeMap::new());
    for number in 0.. {
        let mut bytes = Vec::new();
        if (&mut file).take(1 << 20).read_to_end(&mut bytes).unwrap() == 0 {
            break;
        }
        if bytes.iter().any(|byte| *byte != 0) {
            data.insert(number, bytes);
        }
    }
    data
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut names, mut value) = (vec![0; 65_536], vec![0; 65_536]);
    let length = llistxattr(path, &mut names[..]).unwrap();
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut get = |name: &[u8]| {
        let length = lgetxattr(path, name, &mut value[..]).unwrap();
        value[..length].to_vec()
    };
    names.map(|name| (name.to_vec(), get(name))).collect()
}

fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (list(one), list(other));
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (path, entry) in &one {
        assert_eq!(entry, &other[path], "{}", path.display());
    }
}

fn pack(dir: &Path) -> (Vec<u8>, ArchiveTotals) {
    let mut archive = Vec::new();
    let totals = pack_layer(dir, &mut archive).unwrap();
    (archive, totals)
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn make(path: PathBuf, kind: FileType, device: u64) -> PathBuf {
    mknodat(CWD, &path, kind, Mode::from_raw_mode(0o640), device).unwrap();
    path
}

/// Of a file's owner and group, a user who may read and execute, mask, others: version 2, then tag, rights, id of each.
fn access_list() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 5, 1234), (4, 4, u32::MAX), (16, 5, u32::MAX), (32, 0, u32::MAX)];
    let entries = entries
        .iter()
        .flat_map(|(tag, rights, id)| [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat());
    2_u32.to_le_bytes().into_iter().chain(entries).collect()
}

/// One of everything, in every directory of it.
fn fill(dir: &Path) {
    fs::write(dir.join("file"), vec![7; 300_000]).unwrap();
    chown(dir.join("file"), Some(1000), Some(1001)).unwrap();
    set_xattr(&dir.join("file"), "user.key", b"value\n\0");
    // Version 2, permitted: CAP_NET_RAW.
    let capability = [&0x0200_0000_u32.to_le_bytes()[..], &(1_u32 << 13).to_le_bytes(), &[0; 12]].concat();
    set_xattr(&dir.join("file"), "security.capability", &capability);
    set_xattr(&dir.join("file"), "trusted.overlay.origin", b"\0\xfb\x1d");
    set_xattr(&dir.join("file"), "system.posix_acl_access", &access_list());
    fs::hard_link(dir.join("file"), dir.join("again")).unwrap();
    fs::write(dir.join("set-id"), "x").unwrap();
    chown(dir.join("set-id"), Some(1000), Some(1001)).unwrap();
    rustix::fs::chmod(dir.join("set-id"), Mode::from_raw_mode(0o6711)).unwrap();
    File::create(dir.join("hole")).unwrap().set_len(5 << 30).unwrap();
    symlink("/etc/../..//x", dir.join("symlink")).unwrap();
    chown_link(&dir.join("symlink"));
    set_xattr(&dir.join("symlink"), "trusted.on-a-link", b"1");
    fs::hard_link(dir.join("symlink"), dir.join("symlink again")).unwrap();
    set_xattr(&make(dir.join("gone"), FileType::CharacterDevice, 0), "trusted.on-a-whiteout", b"1");
    fs::hard_link(dir.join("gone"), dir.join("gone too")).unwrap();
    make(dir.join("pipe"), FileType::Fifo, 0);
    make(dir.join("socket"), FileType::Socket, 0);
    for (number, name) in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).enumerate() {
        set_time(&name, -(number as i64) * 1_000_000, 123_456_789);
    }
}

fn chown_link(path: &Path) {
    std::os::unix::fs::lchown(path, Some(1000), Some(1001)).unwrap();
}

fn set_time(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

pub(crate) fn every_kind(host: &Host) {
    let (from, to) = (host.state().join("from"), host.state().join("to"));
    for (name, mode) in [("", 0o755), ("opaque", 0o2775), ("moved", 0o1777), ("moved/deeper", 0o700)] {
        let dir = from.join(name);
        fs::create_dir(&dir).unwrap();
        fill(&dir);
        rustix::fs::chmod(&dir, Mode::from_raw_mode(mode)).unwrap();
    }
    set_xattr(&from.join("opaque"), "trusted.overlay.opaque", b"y");
    set_xattr(&from.join("opaque"), "system.posix_acl_default", &access_list());
    set_xattr(&from.join("moved"), "trusted.overlay.redirect", b"/home/user/before");
    chown(from.join("opaque"), Some(1000), Some(1001)).unwrap();
    for dir in ["moved/deeper", "moved", "opaque", ""] {
        set_time(&from.join(dir), 1_000_000_000, 999_999_999);
    }

    let (archive, totals) = pack(&from);
    assert_eq!((totals.entries, totals.data_bytes), (4 + 4 * 10, 4 * 300_001));
    assert_eq!(unpack_layer(&mut &archive[..], &to).unwrap(), totals);
    assert_same(&from, &to);
    assert!(fs::metadata(to.join("hole")).unwrap().blocks() < 64, "holes stay holes");
    assert!(pack(&to).0 == archive, "the same tree gives the same bytes");

    for (kind, device) in [(FileType::CharacterDevice, rustix::fs::makedev(1, 3)), (FileType::BlockDevice, 0)] {
        let device = make(from.join("moved/deeper/device"), kind, device);
        let error = pack_layer(&from, &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot archive {}: it is a device", device.display()));
        fs::remove_file(device).unwrap();
    }
    set_xattr(&from.join("moved"), "trusted.overlay.redirect", b"../elsewhere");
    let error = pack_layer(&from, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, Error::NotCarried { path, .. } if path == from.join("moved/")));

    fs::remove_dir_all(&to).unwrap();
    unpack_layer(&mut &GOLDEN[..], &to).unwrap();
    let expected = fs::symlink_metadata(to.join("link")).unwrap();
    assert_eq!((expected.mode() & 0o7777, expected.uid(), expected.gid()), (0o4711, 1000, 1001));
    assert!(pack(&to).0 == GOLDEN);
    fs::remove_dir_all(&from).unwrap();
    fs::remove_dir_all(&to).unwrap();
}

pub(crate) fn overlay(host: &Host) {
    // What a program can delete, replace and rename is a lower layer of its own.
    let lower = host.state().join("lower");
    for dir in ["", "home", "home/user", "home/user/replaced", "home/user/before"] {
        fs::create_dir(lower.join(dir)).unwrap();
        if dir.starts_with("home/user") {
            fs::write(lower.join(dir).join("old"), "old").unwrap();
            fs::write(lower.join(dir).join("gone"), "old").unwrap();
            for path in [lower.join(dir), lower.join(dir).join("old"), lower.join(dir).join("gone")] {
                chown(path, Some(1000), Some(1000)).unwrap();
            }
        }
    }
    let spec = host.spec_of(vec![lower.clone(), host.mask(), PathBuf::from("/")]);
    let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
    let script = "set -e; cd ~; rm gone before/gone; rm -r replaced; mkdir replaced; echo new > replaced/new; \
        mv before after; ln old link; cd after; ls; cat old; ls ~ ~/replaced";
    let before = shell(&sandbox, script);
    assert_eq!(before.code, 0, "{}", before.text);
    let upper = spec.dir.join("upper");
    let marked = |path: &str, mark: &str| xattrs(&upper.join(path)).contains_key(mark.as_bytes());
    assert!(fs::symlink_metadata(upper.join("home/user/gone")).unwrap().file_type().is_char_device());
    assert!(marked("home/user/replaced", "trusted.overlay.opaque"));
    assert!(marked("home/user/after", "trusted.overlay.redirect"));

    sandbox.freeze().unwrap();
    let [copy, carried, whole] = ["copy", "carried", "whole"].map(|name| host.state().join(name));
    sandbox.capture_changes(&copy).unwrap().finish(&[]).unwrap();
    for (from, to) in [(&copy, &carried), (&upper, &whole)] {
        unpack_layer(&mut &pack(from).0[..], to).unwrap();
    }
    sandbox.thaw().unwrap();
    // The machine's own files are left out of both.
    assert!(upper.join("etc/hostname").exists() && !copy.join("etc").exists());
    assert!(whole.join("etc").exists() && !whole.join("etc/hostname").exists());
    assert_same(&copy, &carried);
    let layers = vec![carried.clone(), lower.clone(), host.mask(), PathBuf::from("/")];
    let child = Sandbox::create(&host.spec_of(layers), &host.cgroups).unwrap();
    assert_eq!(shell(&child, "cd ~/after; ls; cat old; ls ~ ~/replaced").text, before.text);
    destroy(child);
    destroy(sandbox);
    for dir in [lower, copy, carried, whole] {
        fs::remove_dir_all(dir).unwrap();
    }
}
