//! Superblocks, their clones and their ends.

use std::{
    fs,
    io::ErrorKind,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use fuse::{Access, Options, Served, clone_tree, keep_writable, mount, mount_again};
use rustix::{
    fs::CWD,
    mount::{
        FsPickFlags, MoveMountFlags, UnmountFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick, move_mount, unmount,
    },
};
use volume::{Kind, New, ROOT};

use crate::fuse::{
    local,
    place::{self, NAME, Place},
};

pub(super) fn clones() {
    let mut place = Place::new();
    fs::write(place.path().join("file"), "x").unwrap();
    let other = tempfile::tempdir().unwrap();
    place.attach(place.mounted(), Access::ReadOnly, other.path());
    assert_eq!(fs::read(other.path().join("file")).unwrap(), b"x");
    let refused = fs::write(other.path().join("file"), "y").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    in_another_namespace(&place);
    fs::write(place.path().join("file"), "z").unwrap();
    assert_eq!(fs::read(other.path().join("file")).unwrap(), b"z");
    // The read-only clone alone keeps the superblock.
    unmount(place.path(), UnmountFlags::empty()).unwrap();
    assert_eq!(fs::read(other.path().join("file")).unwrap(), b"z");
    place.attach(place.mounted(), Access::ReadWrite, &place.path());
    unmount(other.path(), UnmountFlags::empty()).unwrap();
    place.unmount();
}

/// As before Linux 6.15, where a tree that is attached nowhere cannot be cloned: by the device alone.
pub(super) fn again() {
    let mut place = Place::new();
    fs::write(place.path().join("file"), "x").unwrap();
    let [other, read_only] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let device = place.mounted().device.as_fd();
    Place::attach_clone(&mount_again(NAME, device, Access::ReadWrite).unwrap(), other.path());
    Place::attach_clone(&mount_again(NAME, device, Access::ReadOnly).unwrap(), read_only.path());
    let superblock = |at: &Path| fs::metadata(at).unwrap().dev();
    assert_eq!(superblock(other.path()), superblock(&place.path()));
    fs::write(other.path().join("file"), "y").unwrap();
    assert_eq!(fs::read(place.path().join("file")).unwrap(), b"y");
    assert_eq!(fs::read(read_only.path().join("file")).unwrap(), b"y");
    let refused = fs::write(read_only.path().join("file"), "z").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    // What mountinfo says of a mount does not tell how it was made.
    let told = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let told = |at: &Path| {
        let line = told.lines().find(|line| line.split(' ').nth(4) == at.to_str()).unwrap();
        let (mount, superblock) = line.split_once(" - ").unwrap();
        (mount.split(' ').nth(5).unwrap().to_owned(), superblock.to_owned())
    };
    assert_eq!(told(other.path()), told(&place.path()));
    unmount(other.path(), UnmountFlags::empty()).unwrap();
    unmount(read_only.path(), UnmountFlags::empty()).unwrap();
    place.unmount();
}

/// As old versions of mount(8) do it, by one call, and as new ones do, the superblock first.
pub(super) fn remounts() {
    let place = Place::new();
    let (tree, other) = (place.mounted().tree.as_fd(), tempfile::tempdir().unwrap());
    let write = |at: &Path| fs::write(at.join("file"), "x").map_err(|error| error.kind());
    let superblock_first = |at: &Path| {
        let picked = fspick(CWD, at, FsPickFlags::FSPICK_CLOEXEC).unwrap();
        fsconfig_set_flag(picked.as_fd(), "ro").unwrap();
        fsconfig_reconfigure(picked.as_fd()).unwrap();
        sys::mount::set_read_only(fs::File::open(at).unwrap()).unwrap();
    };
    let one_call = |at: &Path| place.shell(&format!("mount -o remount,ro {}", at.display()));
    for remount in [&one_call as &dyn Fn(&Path), &superblock_first] {
        place.attach(place.mounted(), Access::ReadWrite, other.path());
        assert!(!keep_writable(tree).unwrap());
        remount(other.path());
        assert_eq!(write(&place.path()), Err(ErrorKind::ReadOnlyFilesystem), "what has to be undone");
        assert!(keep_writable(tree).unwrap() && !keep_writable(tree).unwrap());
        assert_eq!(write(&place.path()), Ok(()));
        assert_eq!(write(other.path()), Err(ErrorKind::ReadOnlyFilesystem), "the one that was remounted");
        place.shell(&format!("mount -o remount,rw {}", other.path().display()));
        assert_eq!(write(other.path()), Ok(()));
        unmount(other.path(), UnmountFlags::empty()).unwrap();
    }
}

pub(super) fn crew() {
    let mut place = Place::new();
    let most = Options::default().threads;
    for round in 0..2 {
        place.shell("for i in $(seq 50); do echo $i > f$i; done; cat f* > /dev/null");
        // A few more than two: each counts as busy while the scheduler has it wait, and nobody waits for the answer to a release.
        let few = place.answering_threads();
        assert!(few < most, "one request after the other needs no more than {few} threads; round {round}");
        let until = Instant::now() + Duration::from_secs(30);
        while place.answering_threads() != most {
            assert!(Instant::now() < until, "{} threads", place.answering_threads());
            place.python(MANY_SYNC);
        }
        place.python(MANY_SYNC);
        assert_eq!(place.answering_threads(), most);
        if round == 0 {
            // Who takes over begins with few again; then the superblock ends, with all of them.
            place.kill();
            place.serve("adopt");
            place.shell("test $(ls | wc -l) = 74");
        }
    }
    place.unmount();
}

/// Twenty-four threads that make files durable.
const MANY_SYNC: &str = "
import os, threading
def work(number):
    for round in range(10):
        with open(f'synced{number}', 'w') as file:
            file.write(str(round)); file.flush(); os.fsync(file.fileno())
threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert all(open(f'synced{number}').read() == '9' for number in range(24))
";

/// As a keeper does it: a process in another mount namespace attaches what was cloned outside of it.
fn in_another_namespace(place: &Place) {
    let clone =
        clone_tree(NAME, place.mounted().device.as_fd(), place.mounted().tree.as_fd(), Access::ReadWrite).unwrap();
    let at = tempfile::tempdir().unwrap();
    let status = place::in_mount_namespace().arg(crate::fuse::ATTACH).arg(at.path()).stdin(clone).status().unwrap();
    assert!(status.success());
    assert!(fs::read_dir(at.path()).unwrap().next().is_none(), "nothing is mounted here");
    assert!(place.path().join("made-inside").exists());
}

/// That process: the mount is its standard input.
pub(crate) fn attach(directory: &Path) {
    move_mount(std::io::stdin(), "", CWD, directory, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).unwrap();
    fs::write(directory.join("made-inside"), "x").unwrap();
}

/// The kernel that runs the tests has all that volumes need; nothing of the trial is left.
pub(super) fn tried() {
    let features = fuse::features().unwrap();
    assert_eq!(features.lacking, None);
    // As it is told when it is served.
    assert_eq!(features, fuse::features().unwrap());
}

/// Served by this process, which changes the volume beside the kernel, as an API does.
pub(super) fn forgets() {
    forgets_with(Options::default());
}

/// As before Linux 6.16.
pub(super) fn forgets_without_epochs() {
    forgets_with(Options { epochs: false, ..Options::default() });
}

fn forgets_with(options: Options) {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let volumes = local::volumes(&directory.path().join("state"), &runtime).unwrap();
    volumes.create(NAME, &volume::Options::default()).unwrap();
    let volume = Arc::new(volumes.open(NAME).unwrap());
    let mounted = mount(NAME).unwrap();
    let served = Served::start(volume.clone(), mounted.device, options).unwrap();
    let at = directory.path().join("mnt");
    fs::create_dir(&at).unwrap();
    move_mount(&mounted.tree, "", CWD, &at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).unwrap();
    drop(mounted.tree);

    let (file, engine) = (at.join("file"), volume.engine());
    assert!(!file.exists());
    let new = New { kind: Kind::File, mode: 0o644, uid: 0, gid: 0, device: 0, target: b"" };
    let ino = engine.make(ROOT, b"file", new).unwrap().ino;
    served.forget_entry(ROOT, b"file");
    assert_eq!(fs::read(&file).unwrap(), b"");
    engine.write(ino, 0, b"one", false).unwrap();
    served.forget_inode(ino);
    assert_eq!(fs::read(&file).unwrap(), b"one");
    assert_eq!(fs::read_dir(&at).unwrap().count(), 1);

    volume.snapshot("then", "").unwrap();
    fs::write(&file, "two, and longer").unwrap();
    fs::write(at.join("later"), "x").unwrap();
    assert_eq!(fs::read_dir(&at).unwrap().count(), 2);
    let (open, in_use) = (fs::File::open(&file).unwrap(), fs::File::open(at.join("later")).unwrap());
    assert!(!at.join("never").exists());
    volume.restore("then", "before").unwrap();
    served.forget_all();
    assert_eq!(std::io::read_to_string(open).unwrap(), "one");
    assert_eq!(fs::read(&file).unwrap(), b"one");
    assert!(!at.join("later").exists());
    assert_eq!(fs::read_dir(&at).unwrap().count(), 1);
    drop(in_use);

    unmount(&at, UnmountFlags::empty()).unwrap();
    served.wait().unwrap();
}
