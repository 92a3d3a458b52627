//! Root filesystems, copies of upper directories, images.

use std::{
    fs,
    os::{
        fd::AsRawFd,
        unix::fs::{FileTypeExt, MetadataExt, symlink},
    },
    path::{Path, PathBuf},
    process,
};

use images::unpack_tarball;
use sandbox::{LAYERS_MAX, Sandbox, Spec, detached_rootfs};

use super::archive::list;
use crate::sandbox::host::{Host, at_rest, destroy, run, shell};

pub(crate) fn many_layers(host: &Host) {
    let folder = tempfile::tempdir_in(host.state()).unwrap();
    let layer = |number: usize| {
        let path = folder.path().join(number.to_string());
        fs::create_dir(&path).unwrap();
        path
    };
    let above: Vec<PathBuf> = (2..=LAYERS_MAX).map(layer).collect();
    fs::write(above[0].join("top"), "top").unwrap();
    fs::write(above[LAYERS_MAX - 3].join("deep"), "deep").unwrap();
    let layers = |above: &[PathBuf]| [above, &[host.mask(), PathBuf::from("/")]].concat();
    let spec = host.spec_of(layers(&above[1..]));
    let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
    assert_eq!(shell(&sandbox, "cat /deep; test -e /top || echo not there").text, "deepnot there\n");
    destroy(sandbox);
    detached_rootfs(&layers(&above[1..])).unwrap();
    detached_rootfs(&layers(&above)).unwrap_err();
}

pub(crate) fn snapshot(host: &Host) {
    let spec = host.spec();
    let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
    let script = "set -e; cd ~; mkdir -m 2750 d; echo text > d/a; ln d/a b; ln -s nowhere l; mkfifo -m 600 p; \
        truncate -s 64M sparse; printf end | dd of=sparse bs=1 seek=67108000 conv=notrunc 2>/dev/null; touch -d @1000.5 old; \
        chmod 4711 b; setfattr -n user.k -v v b 2>/dev/null || true; \
        python3 -c \"import socket; socket.socket(1).bind('sock')\"; rm -rf gone; echo; mkdir x; mv d/a d/c";
    assert_eq!(shell(&sandbox, script).code, 0);
    // A whiteout and an opaque directory can only be made by root here.
    let upper = spec.dir.join("upper");
    rustix::fs::mknodat(rustix::fs::CWD, upper.join("etc/w"), rustix::fs::FileType::CharacterDevice, 0.into(), 0)
        .unwrap();
    rustix::fs::setxattr(upper.join("home/user/x"), "trusted.overlay.opaque", b"y", rustix::fs::XattrFlags::empty())
        .unwrap();
    // Permitted: CAP_NET_RAW. A change of owner clears it.
    let capability = [&0x0200_0000_u32.to_le_bytes()[..], &(1_u32 << 13).to_le_bytes(), &[0; 12]].concat();
    rustix::fs::setxattr(
        upper.join("home/user/b"),
        "security.capability",
        &capability,
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    let copy = host.state().join("copy");
    sandbox.freeze().unwrap();
    sandbox.capture_changes(&copy).unwrap().finish(&[]).unwrap();
    // All but what makes a sandbox a machine of its own, which every sandbox has itself.
    let identity = ["etc/hostname", "etc/machine-id", "etc/hosts", "run/pando/boot_id", "run/pando/generation"];
    let files = identity.into_iter().chain(["run/pando/meminfo"]);
    // So are directories in which there is nothing else; in etc there is.
    let own = files.chain(["run/pando", "run"]);
    let (mut expected, copied) = (list(&upper), list(&copy));
    // Where the host has more processors than the sandbox.
    expected.retain(|path, _| !["run/pando/cpuinfo", "run/pando/cpus"].iter().any(|file| path == Path::new(file)));
    for file in own {
        assert!(expected.remove(Path::new(file)).is_some(), "{file}");
    }
    expected.get_mut(Path::new("")).unwrap().names -= 1;
    assert_eq!(expected, copied);
    let (sparse, link) =
        (fs::metadata(copy.join("home/user/sparse")).unwrap(), fs::metadata(copy.join("home/user/b")).unwrap());
    assert!(sparse.blocks() < 64 && sparse.len() == 64 << 20, "holes stay holes");
    assert_eq!(link.ino(), fs::metadata(copy.join("home/user/d/c")).unwrap().ino());
    assert_eq!((link.uid(), link.mode() & 0o7777), (1000, 0o4711));
    assert!(fs::symlink_metadata(copy.join("etc/w")).unwrap().file_type().is_char_device());
    // What hides something is not left out.
    let opaque = host.state().join("opaque");
    rustix::fs::setxattr(upper.join("run"), "trusted.overlay.opaque", b"y", rustix::fs::XattrFlags::empty()).unwrap();
    sandbox.capture_changes(&opaque).unwrap().finish(&[]).unwrap();
    assert!(opaque.join("run").exists() && !opaque.join("run/pando").exists());
    fs::remove_dir_all(opaque).unwrap();
    sandbox.thaw().unwrap();
    // It serves as a layer.
    let child =
        Sandbox::create(&host.spec_of(vec![copy.clone(), host.mask(), PathBuf::from("/")]), &host.cgroups).unwrap();
    assert_eq!(shell(&child, "cat ~/d/c; tail -c 3 ~/sparse | head -c 3").text.lines().next(), Some("text"));
    assert_ne!(shell(&child, "hostname").text, shell(&sandbox, "hostname").text);
    destroy(child);
    destroy(sandbox);
    fs::remove_dir_all(copy).unwrap();
}

pub(crate) fn hostile_tree(host: &Host) {
    let outside = host.state().join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("kept"), "").unwrap();
    let sandbox = host.sandbox();
    let script = "import os
os.chdir('/home/user')
for i in range(20000):
    os.mkdir('d'); os.chdir('d')
os.chdir('/tmp')
for i in range(3000): open('f%d' % i, 'w').close()
for name in ('.pando-removed-1', '.pando-removed-2'):
    os.mkdir('/tmp/' + name); open('/tmp/' + name + '/x', 'w').close()
os.mkdir('/tmp/locked'); os.mkdir('/tmp/locked/in'); os.chmod('/tmp/locked', 0)
os.symlink('OUTSIDE', '/tmp/link'); os.symlink('/', '/tmp/root')
print('made')";
    let output = run(&sandbox, &["python3", "-c", &script.replace("OUTSIDE", outside.to_str().unwrap())]);
    assert_eq!(output.text, "made\n");
    let copy = host.state().join("copy");
    let error = sandbox.capture_changes(&copy).unwrap_err().to_string();
    assert!(error.contains("nested too deep"), "{error}");
    assert!(!copy.exists());
    destroy(sandbox);
    assert!(outside.join("kept").exists());
}

pub(crate) fn tarball(host: &Host) {
    // A small root from the host's own shell: no tools are downloaded.
    let root = host.state().join("root");
    for directory in ["bin", "lib/x86_64-linux-gnu", "lib64", "etc"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    let programs = ["/bin/sh", "/bin/cat", "/bin/ls"];
    let listing = process::Command::new("ldd").args(programs).output().unwrap();
    let listing = String::from_utf8(listing.stdout).unwrap();
    let libraries = listing.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
    for file in libraries.chain(programs) {
        let to = root.join(file.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(file, to).unwrap();
    }
    fs::write(root.join("etc/own"), "from the image\n").unwrap();
    // Where an image turns what a sandbox mounts on into links to elsewhere, nothing may happen there.
    symlink("/etc", root.join("proc")).unwrap();
    symlink("/etc", root.join("dev")).unwrap();
    for (flags, name) in [("-cf", "image.tar"), ("-czf", "image.tar.gz")] {
        let tarball = host.state().join(name);
        let status =
            process::Command::new("tar").arg(flags).arg(&tarball).arg("-C").arg(&root).arg(".").status().unwrap();
        assert!(status.success());
        let image = host.state().join("image");
        unpack_tarball(&tarball, &image).unwrap();
        let spec = Spec { ..host.spec_of(vec![host.base(&image), image.clone()]) };
        let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
        at_rest(&sandbox);
        let output =
            shell(&sandbox, "cat /etc/own; ls /; echo x > /dev/null; cat /proc/1/comm; echo ok > /tmp/t; cat /tmp/t");
        assert_eq!(
            output.text,
            "from the image\nbin\ndev\netc\nhome\nlib\nlib64\nproc\nrun\nsys\ntmp\nvar\npando-init\nok\n"
        );
        destroy(sandbox);
        fs::remove_dir_all(&image).unwrap();
    }
    let broken = host.state().join("broken");
    fs::write(&broken, "not a tarball, but long enough to look like one: ".repeat(40)).unwrap();
    assert!(unpack_tarball(&broken, &host.state().join("image")).is_err());
    assert!(!host.state().join("image").exists() && !host.state().join("image.partial").exists());
    fs::remove_dir_all(root).unwrap();
}

pub(crate) fn detached(host: &Host) {
    let rootfs = detached_rootfs(&[host.mask(), PathBuf::from("/")]).unwrap();
    let root = PathBuf::from(format!("/proc/self/fd/{}", rootfs.as_raw_fd()));
    assert!(root.join("usr/bin/python3").exists() && !root.join("etc/shadow").exists());
    assert_eq!(fs::write(root.join("etc/x"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
}
