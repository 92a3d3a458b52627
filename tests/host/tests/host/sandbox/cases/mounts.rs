//! Filesystems from outside, attached in sandboxes that exist.

use std::{
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::symlink,
    },
    path::Path,
};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    open_tree,
};
use sandbox::{Error, Hides, Sandbox};

use crate::sandbox::host::{Host, command, destroy, shell, start, wait};

/// A filesystem that is attached nowhere, writable by the program's user.
fn detached() -> OwnedFd {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    for (key, value) in [("uid", "1000"), ("gid", "1000"), ("mode", "0755")] {
        fsconfig_set_string(&context, key, value).unwrap();
    }
    fsconfig_create(&context).unwrap();
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).unwrap()
}

fn again(mount: &OwnedFd) -> OwnedFd {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(mount, "", flags).unwrap()
}

pub(crate) fn shared(host: &Host) {
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    let before = mounts();
    let workspace = Path::new("/workspace");
    let tree = detached();
    let (one, two, other) = (host.sandbox(), host.sandbox(), host.sandbox());
    // A program that runs sees what is attached later.
    let script = "while ! test -e /workspace/go; do sleep 0.01; done; cat /workspace/go";
    for sandbox in [&one, &two, &other] {
        sandbox.make_mount_point(workspace, Hides::Anything).unwrap();
    }
    let (waiting, output) = start(&two, &command(&["sh", "-c", script]));
    for sandbox in [&one, &two] {
        sandbox.attach(again(&tree).as_fd(), workspace).unwrap();
    }
    assert_eq!(mounts(), before, "the host sees none of it");
    assert_eq!(shell(&one, "stat -c '%u %g %a' /workspace; echo said > /workspace/go").text, "1000 1000 755\n");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut fs::File::from(output), &mut text).unwrap();
    assert_eq!((text.as_str(), wait(waiting)), ("said\n", 0));
    assert_eq!(shell(&other, "ls -A /workspace; stat -c %u /workspace").text, "1000\n", "a directory like any other");
    destroy(one);
    assert_eq!(shell(&two, "cat /workspace/go").text, "said\n", "it goes with nobody else's sandbox");
    for sandbox in [two, other] {
        destroy(sandbox);
    }
}

pub(crate) fn made(host: &Host) {
    let sandbox = host.sandbox();
    for path in ["/srv/a/b", "/srv/a/b", "/home/user/work"] {
        sandbox.make_mount_point(Path::new(path), Hides::Anything).unwrap();
    }
    let owners =
        shell(&sandbox, "stat -c '%u:%g %a' /srv/a /srv/a/b /home/user/work; touch /srv/a/b/x && echo writable");
    assert_eq!(owners.text, "0:0 755\n1000:1000 755\n1000:1000 755\nwritable\n");
    sandbox.make_mount_point(Path::new("/srv/a/b"), Hides::Anything).unwrap();
    assert_eq!(shell(&sandbox, "ls /srv/a/b").text, "x\n", "what is there stays");
    let hidden = sandbox.make_mount_point(Path::new("/srv/a/b"), Hides::Nothing).unwrap_err().to_string();
    assert!(hidden.contains("/srv/a/b") && hidden.contains("an empty or missing one"), "{hidden}");
    for path in ["/home/user/work", "/home/user/new/deep"] {
        sandbox.make_mount_point(Path::new(path), Hides::Nothing).unwrap();
    }
    destroy(sandbox);
}

pub(crate) fn hostile(host: &Host) {
    let sandbox = host.sandbox();
    let outside = host.state().join("outside-of-mounts");
    fs::create_dir_all(&outside).unwrap();
    let script = "mkdir -p ~/real && ln -s /etc ~/link && ln -s real ~/near && touch ~/file && ln -s OUTSIDE ~/out";
    assert_eq!(shell(&sandbox, &script.replace("OUTSIDE", outside.to_str().unwrap())).code, 0);
    symlink("/etc", sandbox.dir().join("upper/srv")).unwrap();
    let tree = detached();
    for path in ["link", "link/x", "near", "near/x", "file", "file/x", "out/x", "absent/x", "../../srv/x"] {
        let path = Path::new("/home/user").join(path);
        let error = sandbox.attach(again(&tree).as_fd(), &path).unwrap_err();
        assert!(matches!(error, Error::MountPoint { .. }), "{}: {error}", path.display());
        if !path.starts_with("/home/user/absent") {
            let error = sandbox.make_mount_point(&path, Hides::Anything).unwrap_err();
            assert!(matches!(error, Error::MountPoint { .. }), "{}: {error}", path.display());
        }
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    for path in ["/proc/1", "/sys/kernel", "/dev/pts"] {
        let error = sandbox.attach(again(&tree).as_fd(), Path::new(path)).unwrap_err().to_string();
        assert!(error.contains("another filesystem"), "{path}: {error}");
    }
    sandbox.attach(again(&tree).as_fd(), Path::new("/home/user/real")).unwrap();
    let twice = sandbox.attach(again(&tree).as_fd(), Path::new("/home/user/real")).unwrap_err().to_string();
    assert!(twice.contains("/home/user/real") && twice.contains("another filesystem"), "{twice}");
    assert_eq!(shell(&sandbox, "umount /home/user/real 2>/dev/null || echo no").text, "no\n");
    destroy(sandbox);
}

pub(crate) fn times(host: &Host) {
    let mut times = Vec::new();
    let tree = detached();
    for _ in 0..50 {
        let sandbox: Sandbox = host.sandbox();
        sandbox.make_mount_point(Path::new("/workspace"), Hides::Anything).unwrap();
        let mount = again(&tree);
        let begin = std::time::Instant::now();
        sandbox.attach(mount.as_fd(), Path::new("/workspace")).unwrap();
        times.push(begin.elapsed());
        destroy(sandbox);
    }
    times.sort_unstable();
    println!("attach           median {:?}, p90 {:?}, max {:?}", times[25], times[45], times[49]);
}
