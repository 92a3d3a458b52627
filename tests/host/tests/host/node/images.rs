//! Images: archives of `docker save`, oci-layouts, tarballs; what they say, and what they must not do.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

use super::shared::with_node;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("images::a_saved_image_is_exactly_what_its_layers_are", || with_node(Setting::default(), exact)),
        Case::new("images::what_an_image_says_of_its_program_holds", || with_node(Setting::default(), said)),
        Case::new("images::hostile_and_damaged_archives_leave_nothing", || with_node(Setting::default(), refused))
            .slow("it makes and refuses some twenty archives, bombs among them"),
        Case::new("images::links_and_directories_of_an_image_stay", || with_node(Setting::default(), kept)),
        Case::new("images::layers_are_shared_and_go_with_the_last", || with_node(Setting::default(), shared)),
        Case::new("images::roots_with_a_c_library_alone_are_enough", || with_node(Setting::default(), bare)),
        Case::new("images::a_checkpoint_starts_on_the_image_that_it_had", || with_node(Setting::default(), bound)),
    ]
}

/// Makes images: `save DIR OUT`, `layout DIR OUT`, where DIR has the directories `0`, `1`, ... with the contents of layers (`.wh.` names are whiteouts)
/// and the file `config`.
const MAKE: &str = r#"
import gzip, hashlib, io, json, os, subprocess, sys, tarfile
kind, source, out = sys.argv[1:4]
def digest(data): return hashlib.sha256(data).hexdigest()
layers = []
for number in sorted(name for name in os.listdir(source) if name.isdigit()):
    tar = ['tar', '--format=pax', '--pax-option=delete=atime,delete=ctime', '--sparse', '--xattrs', '--xattrs-include=*', '--acls', '--numeric-owner', '-C', f'{source}/{number}', '-c', '.']
    layers.append(subprocess.run(tar, check=True, stdout=subprocess.PIPE).stdout)
machine = {'x86_64': 'amd64', 'aarch64': 'arm64'}[os.uname().machine]
config = {'architecture': machine, 'os': 'linux', 'config': json.load(open(f'{source}/config')),
          'rootfs': {'type': 'layers', 'diff_ids': ['sha256:' + digest(layer) for layer in layers]}}
config = json.dumps(config).encode()
blobs = {digest(config): config}
if kind == 'save':
    names = [f'{digest(layer)}/layer.tar' for layer in layers]
    manifest = [{'Config': digest(config) + '.json', 'RepoTags': ['example/app:1.0'], 'Layers': names}]
    files = {digest(config) + '.json': config, 'manifest.json': json.dumps(manifest).encode(), **dict(zip(names, layers))}
else:
    packed = [gzip.compress(layer, 1) for layer in layers]
    blobs.update({digest(layer): layer for layer in packed})
    def named(data, **more): return {'digest': 'sha256:' + digest(data), 'size': len(data), 'mediaType': 'x', **more}
    manifest = json.dumps({'schemaVersion': 2, 'config': named(config), 'layers': [named(layer) for layer in packed]}).encode()
    blobs[digest(manifest)] = manifest
    index = json.dumps({'manifests': [
        named(b'x', platform={'os': 'linux', 'architecture': 's390x'}),
        named(manifest, platform={'os': 'linux', 'architecture': machine}, annotations={'org.opencontainers.image.ref.name': 'example/app:2.0'})]}).encode()
    files = {'oci-layout': b'{"imageLayoutVersion":"1.0.0"}', 'index.json': index, **{f'blobs/sha256/{name}': data for name, data in blobs.items()}}
if out.endswith('/'):
    for name, data in files.items():
        os.makedirs(os.path.dirname(out + name), exist_ok=True); open(out + name, 'wb').write(data)
else:
    with tarfile.open(out, 'w:gz' if out.endswith('gz') else 'w') as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name); entry.size = len(data); tar.addfile(entry, io.BytesIO(data))
"#;

/// A root with a static busybox, in the directory `0` of an image.
const ROOT: &str = r#"
set -e
mkdir -p "$1/0/bin" "$1/0/root"; cd "$1/0"
cp "$(command -v busybox)" bin/busybox
for name in sh cat ls stat nc find id getfattr md5sum sleep sort; do ln -s busybox bin/$name; done
echo '{}' > "$1/config"
"#;

pub(super) fn script(script: &str, arguments: &[&Path]) -> Result<()> {
    let made = Command::new("sh").args(["-euc", script, "sh"]).args(arguments).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}

pub(super) fn make(kind: &str, source: &Path, out: &str) -> Result<()> {
    let made = Command::new("python3").args(["-c", MAKE, kind]).arg(source).arg(out).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}

pub(super) fn root(node: &Node, name: &str) -> Result<PathBuf> {
    let source = node.dir().join(name);
    script(ROOT, &[&source])?;
    Ok(source)
}

pub(super) fn import(node: &Node, kind: &str, source: &Path, out: &str) -> Result<String> {
    let out = format!("{}/{out}", node.dir().display());
    make(kind, source, &out)?;
    node.ok(&["image", "import", &out])
}

/// All that can be told of files, once from those that were packed, once from inside.
const TELL: &str = r#"
import os, stat, sys, hashlib
for path in sorted(sys.argv[2:]):
    whole = os.path.join(sys.argv[1], path)
    found = os.lstat(whole)
    attributes = sorted((name, os.getxattr(whole, name, follow_symlinks=False).hex()) for name in os.listxattr(whole, follow_symlinks=False) if not name.startswith('trusted.'))
    content = os.readlink(whole) if stat.S_ISLNK(found.st_mode) else hashlib.sha256(open(whole, 'rb').read()).hexdigest() if stat.S_ISREG(found.st_mode) else ''
    holes = found.st_blocks * 512 < found.st_size
    print(path, oct(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns, found.st_rdev, found.st_size if not stat.S_ISDIR(found.st_mode) else '', holes, found.st_nlink if not stat.S_ISDIR(found.st_mode) else '', attributes, content)
"#;

/// Below `x` of the first layer, beside what the second one hides.
const SPECIAL: &str = r#"
set -e
mkdir -p "$1/0/x/dir" "$1/0/x/gone" "$1/0/x/opaque" "$1/1/x/opaque"; cd "$1/0/x"
echo text > plain; ln plain hard; ln -s plain link; ln -s link link2; ln -s nowhere dangling
truncate -s 3M sparse; printf middle | dd of=sparse bs=1 seek=1M conv=notrunc status=none
mkfifo fifo; mknod null c 1 3; mknod disk b 7 200
cp /bin/true setid; chown 12:34 setid; chmod 6755 setid; chmod 2775 dir; chown 1000:50 dir; chmod 1777 opaque
touch -d '1960-02-03 04:05:06.25 UTC' old; touch -d '2001-02-03 04:05:06.123456789 UTC' fraction
echo x > hidden; echo x > opaque/below; echo x > gone/file
python3 - <<'P'
import os
os.setxattr('plain', 'user.note', b'\x00\xffvalue')
os.setxattr('setid', 'security.capability', bytes.fromhex('0100000200200000000000000000000000000000'))
P
if command -v setfacl >/dev/null; then setfacl -m u:1234567:r--,g:5000:rw- plain; setfacl -d -m u:7007:rwx dir; fi
touch -d '1999-01-01 00:00:00.5 UTC' dir
touch "$1/1/x/.wh.hidden" "$1/1/x/.wh.gone" "$1/1/x/opaque/.wh..wh..opq"; echo above > "$1/1/x/opaque/new"
"#;

const NAMES: [&str; 14] = [
    "x/plain",
    "x/hard",
    "x/link",
    "x/link2",
    "x/dangling",
    "x/sparse",
    "x/fifo",
    "x/null",
    "x/disk",
    "x/setid",
    "x/dir",
    "x/old",
    "x/fraction",
    "x/opaque",
];

fn tell(root: &Path, names: &[&str]) -> Result<String> {
    let told = Command::new("python3").args(["-c", TELL]).arg(root).args(names).output()?;
    ensure!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    Ok(String::from_utf8(told.stdout)?)
}

fn exact(node: &mut Node) -> Result<()> {
    let source = root(node, "app")?;
    script(SPECIAL, &[&source])?;
    let said = import(node, "save", &source, "app.tar.gz")?;
    ensure!(said.starts_with("example/app:1.0: ") && said.contains("2 layers"), "{said}");
    // Of the lowest layer, where it was unpacked.
    let layers = node.state.join("image-store/layers");
    let lowest = std::fs::read_dir(&layers)?.flatten().map(|entry| entry.path()).find(|path| path.join("bin").is_dir());
    let lowest = lowest.context("there is no layer with programs")?;
    let names: Vec<&str> = NAMES.into_iter().filter(|name| *name != "x/opaque").collect();
    let (packed, unpacked) = (tell(&source.join("0"), &names)?, tell(&lowest, &names)?);
    ensure!(packed == unpacked, "packed:\n{packed}\nunpacked:\n{unpacked}");
    node.ok(&["template", "build", "app", "--image", "example/app:1.0"])?;
    let id = node.ok(&["create", "app", "-q"])?.trim().to_owned();
    let listed = node.ok(&[
        "exec",
        &id,
        "--user",
        "root",
        "--",
        "/bin/sh",
        "-c",
        "cd /x; ls; ls opaque; cat opaque/new link2; stat -c %A setid; touch dir/made; stat -c %g dir/made",
    ])?;
    let expected = [
        "dangling", "dir", "disk", "fifo", "fraction", "hard", "link", "link2", "null", "old", "opaque", "plain",
        "setid", "sparse",
    ];
    let expected = [&expected[..], &["new", "above", "text", "-rwsr-sr-x", "50"]].concat();
    ensure!(listed.split_whitespace().eq(expected), "{listed}");
    Ok(())
}

fn said(node: &mut Node) -> Result<()> {
    let source = root(node, "said")?;
    let config = r#"{"Env": ["GREETING=hello there", "PATH=/bin"], "WorkingDir": "/bin", "Entrypoint": ["/bin/nc", "-ll"],
        "Cmd": ["-p", "8080", "-e", "/bin/cat"], "ExposedPorts": {"8080/tcp": {}, "53/udp": {}}, "User": "app:77"}"#;
    std::fs::create_dir_all(source.join("0/etc"))?;
    std::fs::write(source.join("0/etc/passwd"), "app:x:1234:1235::/srv:/bin/sh\n")?;
    script("echo x > $1/0/root/only; chmod 600 $1/0/root/only", &[&source])?;
    std::fs::write(source.join("config"), config)?;
    import(node, "layout", &source, "said/")?;
    import(node, "layout", &source, "said.tar")?;
    let shown = node.ok(&["image", "inspect", "example/app:2.0"])?;
    for line in [
        "entrypoint  /bin/nc -ll",
        "ports       8080",
        "env         GREETING=hello there",
        "user        app:77",
        "directory   /bin",
    ] {
        ensure!(shown.lines().any(|shown| shown == line), "no {line:?} in {shown}");
    }
    // Its program runs, as it listens.
    let template =
        node.json(&["template", "build", "said", "--image", "example/app:2.0", "--env", "GREETING=other", "--json"])?;
    ensure!(template["spec"]["command"][4] == "-e" && template["spec"]["cwd"] == "/bin", "{template}");
    let id = node.ok(&["create", "said", "-q"])?.trim().to_owned();
    let environment =
        node.ok(&["exec", &id, "--", "/bin/sh", "-c", "echo $GREETING; echo hi | nc 127.0.0.1 8080; pwd"])?;
    ensure!(environment == "other\nhi\n/bin\n", "{environment:?}");
    // Program and commands are its user's, or that of the option; so are copies.
    // The source may still have what its copies were made from.
    let of_program = "for found in /proc/[0-9]*; do case $(cat $found/comm) in nc) stat -c '%u %g' $found; esac; done | sort -u; echo $(id -u):$(id -g) $HOME";
    let who = |template: &str| -> Result<String> {
        let id = node.ok(&["create", template, "-q"])?.trim().to_owned();
        let forked = node.json(&["fork", &id, "--json"])?;
        let copy = forked["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
        let [own, copied] = [&id, &copy].map(|id| node.ok(&["exec", id, "--", "/bin/sh", "-c", of_program]));
        let (own, copied) = (own?, copied?);
        ensure!(own == copied, "{own} {copied}");
        Ok(own)
    };
    let found = who("said")?;
    ensure!(found == "1234 77\n1234:77 /srv\n", "{found:?}");
    node.ok(&["template", "build", "roots", "--image", "example/app:2.0", "--user", "root"])?;
    let found = who("roots")?;
    ensure!(found == "0 0\n0:0 /root\n", "{found:?}");
    // Also the command that tells whether it is ready.
    let ready = ["--user", "root", "--ready", "cat /root/only"];
    node.ok(&[&["template", "build", "ready", "--image", "example/app:2.0"], &ready[..]].concat())?;
    let host = node.pando(&["template", "build", "host-root", "--user", "root"])?;
    ensure!(host.code != 0 && host.stderr.contains("`user` is the only one"), "{host}");
    let missing = node.pando(&["template", "build", "nobody", "--image", "example/app:2.0", "--user", "bob"])?;
    ensure!(missing.code != 0 && missing.stderr.contains("bob"), "{missing}");
    Ok(())
}

/// A program and its C library, musl's or glibc's, and nothing else: no shell, no users, no /etc.
const BARE: &str = r#"
mkdir -p "$2/musl/lib" "$2/glibc/lib64"
musl-gcc -O1 -o "$2/musl/server" "$1"
cp -L /lib/ld-musl-*.so.1 "$2/musl/lib/"
cc -O1 -pthread -o "$2/glibc/server" "$1"
for library in $(ldd "$2/glibc/server" | grep -o '/[^ ]*'); do mkdir -p "$2/glibc$(dirname "$library")"; cp -L "$library" "$2/glibc$library"; done
"#;

fn bare(node: &mut Node) -> Result<()> {
    let (program, roots) = (node.dir().join("bare.c"), node.dir().join("roots"));
    std::fs::write(&program, include_str!("../../../probes/bare.c"))?;
    script(BARE, &[&program, &roots])?;
    for kind in ["musl", "glibc"] {
        let root = roots.join(kind);
        let root = root.to_string_lossy();
        node.ok(&["template", "build", kind, "--image", &root, "--port", "8080", "--user", "7:7", "--", "/server"])?;
        let id = node.ok(&["create", kind, "-q"])?.trim().to_owned();
        let forked = node.json(&["fork", &id, "--json"])?;
        let copy = forked["sandboxes"][0]["id"].as_str().context("no copy")?;
        node.ok(&["checkpoint", &id, "--name", "taken"])?;
        let restored = node.ok(&["create", "taken", "-q"])?.trim().to_owned();
        for id in [&id, copy, &restored] {
            let said = node.ok(&["connect", id, "8080"])?;
            ensure!(said == "heap 1 7\n", "{kind} {id}: {said:?}");
        }
        node.ok(&["kill", "--all"])?;
        node.ok(&["checkpoint", "rm", "taken"])?;
    }
    Ok(())
}

fn kept(node: &mut Node) -> Result<()> {
    let source = root(node, "kept")?;
    let with_links = "cd $1/0; mkdir -p conf data/tmp home/app run/own tmp; ln -s conf etc; ln -s /data var
        echo 'root:x:0:0::/root:/bin/sh' > conf/passwd; echo mine > home/app/file; echo r > run/own/r; echo t > tmp/t; chmod 1777 tmp data/tmp";
    script(with_links, &[&source])?;
    let tarball = node.dir().join("kept.tar.xz");
    script("tar -C $1/0 -cJf $2 .", &[&source, &tarball])?;
    for image in [source.join("0"), tarball] {
        node.ok(&["template", "build", "kept", "--image", &image.to_string_lossy()])?;
        let id = node.ok(&["create", "kept", "-q"])?.trim().to_owned();
        let look = "cat /etc/passwd /home/app/file /run/own/r /tmp/t; cat /etc/hostname; ls -d /var/tmp; echo x > /var/tmp/x; cat /data/tmp/x /proc/sys/kernel/random/boot_id";
        let found = node.ok(&["exec", &id, "--", "/bin/sh", "-c", look])?;
        let begins = format!("root:x:0:0::/root:/bin/sh\nmine\nr\nt\n{id}\n/var/tmp\nx\n");
        ensure!(found.starts_with(&begins) && found.len() > begins.len() + 30, "{}: {found}", image.display());
    }
    Ok(())
}

/// Archives that must not be unpacked, as Python makes them.
const HOSTILE: &str = r#"
import io, lzma, sys, tarfile
kind, out = sys.argv[1:]
def entry(tar, name, data=b'x', **more):
    found = tarfile.TarInfo(name); found.size = len(data)
    for key, value in more.items(): setattr(found, key, value)
    if found.type != tarfile.REGTYPE: found.size = 0
    tar.addfile(found, io.BytesIO(data) if found.size else None)
if kind == 'bomb':
    with lzma.open(out, 'w', preset=0) as packed:
        with tarfile.open(fileobj=packed, mode='w|') as tar:
            found = tarfile.TarInfo('zeros'); found.size = 3 << 29
            class Zeros:
                def read(self, n): return bytes(n)
            tar.addfile(found, Zeros())
    sys.exit()
with tarfile.open(out, 'w') as tar:
    if kind == 'above': entry(tar, '../escaped')
    if kind == 'link':
        entry(tar, 'out', type=tarfile.SYMTYPE, linkname='/var/tmp'); entry(tar, 'out/escaped')
        entry(tar, 'up', type=tarfile.SYMTYPE, linkname='../../../../../../..'); entry(tar, 'up/escaped')
    if kind == 'hard': entry(tar, 'shadow', type=tarfile.LNKTYPE, linkname='../../../../../../etc/shadow')
    if kind == 'whiteout': entry(tar, 'x', type=tarfile.CHRTYPE, devmajor=0, devminor=0)
    if kind == 'owner': entry(tar, 'x', uid=(1 << 32) - 1)
    if kind == 'short':
        entry(tar, 'x', data=b'x' * 100000)
if kind == 'short': open(out, 'r+b').truncate(2000)
"#;

fn refused(node: &mut Node) -> Result<()> {
    let import = |kind: &str, text: &str| -> Result<()> {
        let out = node.dir().join(format!("{kind}.tar"));
        let made = Command::new("python3").args(["-c", HOSTILE, kind]).arg(&out).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let answer = node.pando(&["image", "import", &out.to_string_lossy(), "--name", "hostile"])?;
        ensure!(answer.code == 2 && answer.stderr.contains(text), "{kind}: {answer}");
        Ok(())
    };
    import("above", "leads above the root")?;
    import("hard", "leads above the root")?;
    import("whiteout", "a device 0:0")?;
    import("owner", "no number that a kernel has")?;
    import("short", "ends in the middle of a file")?;
    import("bomb", "times its size")?;
    // A layer that is not what its manifest says.
    let source = root(node, "damaged")?;
    let out = format!("{}/damaged/layout/", node.dir().display());
    make("layout", &source, &out)?;
    script(
        "for blob in $1/blobs/sha256/*; do case $(head -c 2 $blob | od -An -tx1) in ' 1f 8b') printf x | dd of=$blob bs=1 seek=9 conv=notrunc status=none;; esac; done",
        &[Path::new(&out)],
    )?;
    let answer = node.pando(&["image", "import", out.trim_end_matches('/')])?;
    ensure!(answer.code == 2 && answer.stderr.contains("is not what its digest says"), "{answer}");
    let left: Vec<_> = std::fs::read_dir(node.state.join("image-store/layers"))?.flatten().collect();
    ensure!(left.is_empty() && node.ok(&["image", "ls"])?.lines().count() == 1, "left: {left:?}");
    // Links lead to nowhere outside.
    let links = node.dir().join("link.tar");
    ensure!(Command::new("python3").args(["-c", HOSTILE, "link"]).arg(&links).status()?.success(), "no archive");
    node.ok(&["image", "import", &links.to_string_lossy(), "--name", "links"])?;
    ensure!(!Path::new("/var/tmp/escaped").exists() && !Path::new("/escaped").exists(), "it got out");
    node.ok(&["image", "rm", "links"])?;
    ensure!(node.ok(&["image", "prune"])? == "removed 1 layer\n", "a layer stays");
    let answer = node.pando(&["image", "import", "/nonexistent.tar"])?;
    ensure!(answer.code != 0 && answer.stderr.contains("/nonexistent.tar"), "{answer}");
    Ok(())
}

fn shared(node: &mut Node) -> Result<()> {
    let source = root(node, "shared")?;
    script("mkdir -p $1/1; echo one > $1/1/own", &[&source])?;
    import(node, "save", &source, "one.tar")?;
    script("echo two > $1/1/own", &[&source])?;
    import(node, "layout", &source, "two.tar")?;
    let layers = || -> Result<usize> { Ok(std::fs::read_dir(node.state.join("image-store/layers"))?.count()) };
    ensure!(layers()? == 3, "{} layers", layers()?);
    node.ok(&["template", "build", "one", "--image", "example/app:1.0"])?;
    node.ok(&["image", "rm", "example/app:1.0", "example/app:2.0"])?;
    // A template stands on two.
    ensure!(node.ok(&["image", "prune"])? == "removed 1 layer\n" && layers()? == 2, "{} layers", layers()?);
    let id = node.ok(&["create", "one", "-q"])?.trim().to_owned();
    ensure!(node.ok(&["exec", &id, "--", "/bin/cat", "/own"])? == "one\n", "another file");
    ensure!(node.ok(&["image", "prune"])? == "removed 0 layers\n", "the sandbox stands on them");
    node.ok(&["kill", &id])?;
    node.ok(&["template", "rm", "one"])?;
    ensure!(node.ok(&["image", "prune"])? == "removed 2 layers\n" && layers()? == 0, "{} layers", layers()?);
    Ok(())
}

fn bound(node: &mut Node) -> Result<()> {
    let source = root(node, "bound")?;
    script("mkdir -p $1/1; echo one > $1/1/own", &[&source])?;
    import(node, "save", &source, "one.tar")?;
    node.ok(&["template", "build", "one", "--image", "example/app:1.0"])?;
    let id = node.ok(&["create", "one", "-q"])?.trim().to_owned();
    node.ok(&["checkpoint", &id, "--name", "kept"])?;
    node.ok(&["pause", &id])?;
    node.ok(&["template", "rm", "one"])?;
    script("echo two > $1/1/own", &[&source])?;
    import(node, "save", &source, "two.tar")?;
    let own = |id: &str| node.ok(&["exec", id, "--", "/bin/cat", "/own"]);
    let start = |template: &str| -> Result<String> { Ok(node.ok(&["create", template, "-q"])?.trim().to_owned()) };
    // The name has other files now.
    node.ok(&["template", "build", "two", "--image", "example/app:1.0"])?;
    ensure!(own(&start("two")?)? == "two\n", "not the new image");
    ensure!(node.ok(&["image", "prune"])? == "removed 0 layers\n", "a paused sandbox stands on them");
    node.ok(&["resume", &id])?;
    let other = start("kept")?;
    ensure!(own(&id)? == "one\n" && own(&other)? == "one\n", "{} {}", own(&id)?, own(&other)?);
    node.ok(&["kill", &id, &other])?;
    node.ok(&["template", "rm", "kept"])?;
    ensure!(node.ok(&["image", "prune"])? == "removed 1 layer\n", "the earlier image stays");
    let lost = node.pando(&["create", "kept"])?;
    ensure!(lost.code == 4 && lost.stderr.contains("example/app:1.0@sha256:"), "{lost}");
    // By its content, whatever its name.
    node.ok(&["image", "import", &node.dir().join("one.tar").to_string_lossy(), "--name", "again"])?;
    ensure!(own(&start("kept")?)? == "one\n", "not the image of the checkpoint");
    // The same archive is the same image on any node.
    let tarball = node.dir().join("plain.tar");
    script("tar -C $1/0 -cf $2 .", &[&source, &tarball])?;
    let digest = || -> Result<String> {
        node.ok(&["image", "import", &tarball.to_string_lossy(), "--name", "plain"])?;
        let shown = node.ok(&["image", "inspect", "plain"])?;
        Ok(shown.lines().find(|line| line.starts_with("digest")).context("it has no digest")?.to_owned())
    };
    ensure!(digest()? == digest()?, "two imports of an archive differ");
    Ok(())
}
