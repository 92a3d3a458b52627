use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, PermissionsExt, symlink},
    },
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::fs::{XattrFlags, lremovexattr, setxattr};

use super::*;
use crate::attributes::{xattr, xattr_names};

/// A program that changes a tree at random.
struct Changer {
    root: PathBuf,
    state: u64,
}

impl Changer {
    fn number(&mut self, below: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % below
    }

    /// Some path: of few names, so that they meet.
    fn path(&mut self) -> PathBuf {
        let mut path = self.root.clone();
        for _ in 0..=self.number(3) {
            path.push(["n0", "n1", "n2", "n3", "etc", "run"][self.number(6) as usize]);
        }
        path
    }

    /// Many attempts fail, by what is in the way.
    fn change(&mut self) {
        let (path, other, byte) = (self.path(), self.path(), self.number(256) as u8);
        let _ = match self.number(16) {
            0 | 1 => fs::create_dir_all(&path),
            2 | 3 => fs::write(&path, vec![byte; self.number(9_000) as usize]),
            4 => File::options()
                .write(true)
                .open(&path)
                .and_then(|file| file.write_all_at(&[byte; 3], self.number(5_000))),
            5 => fs::hard_link(&path, &other),
            6 | 14 | 15 => fs::rename(&path, &other),
            7 => fs::remove_file(&path),
            8 => fs::remove_dir_all(&path),
            9 => symlink("target", &path),
            10 => fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + u32::from(byte) % 0o100)),
            11 => setxattr(&path, format!("user.a{}", byte % 3), &[byte], XattrFlags::empty()).map_err(Into::into),
            12 => lremovexattr(&path, format!("user.a{}", byte % 3)).map_err(Into::into),
            _ => File::options().write(true).open(&path).and_then(|file| file.set_len(self.number(9_000))),
        };
    }
}

/// Everything of a tree that a copy has to have, by path. Files with several names say which one is the first.
fn tree_of(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut first, mut left) = (BTreeMap::new(), BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = left.pop() {
        let stat = path.symlink_metadata().unwrap();
        let mut entries: Vec<_> =
            fs::read_dir(&path).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        left.extend(entries.into_iter().rev().filter(|_| stat.is_dir()));
        let below = path.strip_prefix(root).unwrap().to_owned();
        let name = if stat.is_dir() { below.clone() } else { first.entry(stat.ino()).or_insert(below.clone()).clone() };
        let content =
            if stat.is_file() { blake3::hash(&fs::read(&path).unwrap()).to_hex().to_string() } else { String::new() };
        let at = path.as_os_str().as_bytes();
        let names = xattr_names(at).unwrap();
        let xattrs: Vec<_> =
            names.iter().map(|name| (String::from_utf8_lossy(name), xattr(at, name).unwrap())).collect();
        let links = if stat.is_dir() { 0 } else { stat.nlink() };
        let (mode, size) = (stat.mode(), if stat.is_dir() { 0 } else { stat.len() });
        let line =
            format!("{name:?} {mode:o} {links} {size} {content} {xattrs:?} {} {}", stat.mtime(), stat.mtime_nsec());
        found.insert(below, line);
    }
    found
}

fn expect_same(source: &Path, dest: &Path, what: &str) {
    let (mut source, dest) = (tree_of(source), tree_of(dest));
    // Empty, they are what every sandbox has.
    for own in ["etc", "run"].map(Path::new) {
        let is_directory = source.get(own).is_some_and(|line| line.starts_with(&format!("{own:?} 40")));
        if is_directory && !source.keys().any(|path| path != own && path.starts_with(own)) {
            source.remove(own);
        }
    }
    for (path, line) in &source {
        assert_eq!(Some(line), dest.get(path), "{what}: {}", path.display());
    }
    assert_eq!(
        source.len(),
        dest.len(),
        "{what}: the copy has more: {:?}",
        dest.keys().filter(|path| !source.contains_key(*path)).collect::<Vec<_>>()
    );
}

/// A tree that changes between rounds and during them is copied exactly by the last one, whatever was seen before.
#[test]
fn rounds_of_a_changing_tree_end_in_an_exact_copy() {
    // Not on a tmpfs, whose mapped pages have no times.
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    for seed in 1..=60_u64 {
        let (source, dest) = (place.path().join(format!("s{seed}")), place.path().join(format!("d{seed}")));
        fs::create_dir(&source).unwrap();
        let mut changer = Changer { root: source.clone(), state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) };
        (0..200).for_each(|_| changer.change());
        let mut mirror = Mirror::begin(&source, &dest).unwrap();
        // So that most of what is seen is not taken again for its time alone.
        mirror.slack = Duration::from_millis(4);
        // Some rounds that run ahead are cut off.
        if seed % 5 < 2 {
            mirror.ahead = mirror.began.elapsed() + Duration::from_millis(11 + seed % 7 * 5);
        }
        let look = || {
            std::thread::sleep(Duration::from_millis(if seed % 3 == 0 { 0 } else { 10 }));
            Hot::look(&[], Hot::default()).unwrap()
        };
        if seed % 2 == 0 {
            for _ in 0..3 {
                mirror.round(&look(), Processes::Run).unwrap();
                (0..30).for_each(|_| changer.change());
            }
        } else {
            let ends = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let changing = scope.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        changer.change();
                    }
                });
                let done: Result<Vec<_>, _> = (0..3).map(|_| mirror.round(&look(), Processes::Run)).collect();
                ends.store(true, Ordering::Relaxed);
                changing.join().unwrap();
                done.unwrap();
            });
        }
        mirror.round(&look(), Processes::StandStill).unwrap();
        expect_same(&source, &dest, &format!("seed {seed}"));
        mirror.keep();
    }
}

/// What comes in the place of a link may have attributes that links cannot have.
#[test]
fn a_link_that_becomes_a_file_is_copied_by_the_next_round() {
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let (source, dest) = (place.path().join("source"), place.path().join("dest"));
    fs::create_dir(&source).unwrap();
    let (entry, next) = (source.join("entry"), place.path().join("next"));
    let change = || {
        symlink("target", &next).unwrap();
        fs::rename(&next, &entry).unwrap();
        fs::write(&next, "a file").unwrap();
        setxattr(&next, "user.a", b"1", XattrFlags::empty()).unwrap();
        fs::rename(&next, &entry).unwrap();
    };
    change();
    let ends = AtomicBool::new(false);
    let mut mirror = Mirror::begin(&source, &dest).unwrap();
    let mut round = |when| mirror.round(&Hot::look(&[], Hot::default()).unwrap(), when);
    std::thread::scope(|scope| {
        scope.spawn(|| std::iter::repeat_with(change).find(|()| ends.load(Ordering::Relaxed)));
        let done: Result<Vec<_>, _> = (0..1_000).map(|_| round(Processes::Run)).collect();
        ends.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    round(Processes::StandStill).unwrap();
    expect_same(&source, &dest, "the last round");
}

/// Writes that leave the time of change as it is are copied: to pages that are mapped already, and within the grain of the clock.
#[test]
fn mapped_pages_and_quick_writes_are_taken_again() {
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let (source, dest) = (place.path().join("source"), place.path().join("dest"));
    fs::create_dir(&source).unwrap();
    for name in ["quick", "mapped", "still"] {
        fs::write(source.join(name), vec![b'o'; 8_192]).unwrap();
    }
    let mut mirror = Mirror::begin(&source, &dest).unwrap();
    mirror.slack = Duration::from_millis(50);
    std::thread::sleep(mirror.slack * 2);
    let look = || {
        let mut hot = Hot::look(&[], Hot::default()).unwrap();
        hot.mapped = HashSet::from([b"mapped".to_vec()]);
        hot
    };
    let file = |name: &str| File::options().write(true).open(source.join(name)).unwrap();
    file("quick").write_all_at(b"1", 0).unwrap();
    mirror.round(&look(), Processes::Run).unwrap();
    // As if by the page: the time of change is set back to what it was.
    file("quick").write_all_at(b"2", 0).unwrap();
    let changed = |mirror: &mut Mirror, name: &str| {
        let stat = source.join(name).symlink_metadata().unwrap();
        mirror.seen.get_mut(name.as_bytes()).unwrap().changed = (stat.ctime(), stat.ctime_nsec() as u64);
    };
    changed(&mut mirror, "quick");
    file("mapped").write_all_at(b"3", 0).unwrap();
    changed(&mut mirror, "mapped");
    let done = mirror.round(&look(), Processes::StandStill).unwrap();
    assert_eq!(done.bytes, 2 * 8_192, "{done:?}: also what has not changed");
    expect_same(&source, &dest, "the last round");
    drop(mirror);
    assert!(!dest.exists(), "a copy that is given up stays");
}
