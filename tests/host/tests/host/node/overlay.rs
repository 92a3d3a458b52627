//! Where overlayfs differs from a filesystem of one piece: what a program sees of files of the image that are changed (docs/sandbox.md).

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::PathBuf,
};

use anyhow::{Context, Result, ensure};
use rustix::fs::{XattrFlags, setxattr};
use serde_json::Value;
use testkit::{node::Node, runner::Case};

use super::shared::{Shared, arguments, with_node};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("overlay::files_of_an_image_are_changed_as_docs_say", || with_layers("btrfs")),
        Case::new("overlay::files_of_an_image_are_changed_as_docs_say_without_snapshots", || with_layers("copy")),
        Case::new("overlay::directories_are_moved_over_three_checkpoints", moved),
    ]
}

/// Opens, maps, locks and watches files of the image, waits for a word, and then changes them in another way.
const PROGRAM: &str = r#"
import ctypes, fcntl, http.server, json, mmap, os, subprocess, sys
place, libc = sys.argv[1], ctypes.CDLL(None)
reader = open(f'{place}/read', 'rb', buffering=0)
view = mmap.mmap(os.open(f'{place}/mapped', os.O_RDONLY), 4096, mmap.MAP_SHARED, mmap.PROT_READ)
locked = open(f'{place}/locked', 'rb'); fcntl.flock(locked, fcntl.LOCK_EX)
watch = libc.inotify_init1(os.O_NONBLOCK); libc.inotify_add_watch(watch, f'{place}/watched'.encode(), 2)
def events():
    try: return len(os.read(watch, 4096)) > 0
    except BlockingIOError: return False
def change():
    seen = {}
    with open(f'{place}/read', 'r+b') as file: file.write(b'new')
    seen['read'] = os.pread(reader.fileno(), 3, 0).decode()
    before = view[:3]
    with open(f'{place}/mapped', 'r+b') as file: file.write(b'new')
    seen['mapped'] = view[:3].decode()
    other = open(f'{place}/locked', 'r+b')
    try: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB); seen['locked'] = False
    except BlockingIOError: seen['locked'] = True
    other.write(b'new'); other.flush()
    try: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB); seen['locked after a write'] = False
    except BlockingIOError: seen['locked after a write'] = True
    with open(f'{place}/watched', 'r+b') as file: file.write(b'new')
    seen['watched'] = events()
    with open(f'{place}/link1', 'r+b') as file: file.write(b'new')
    seen['linked'] = open(f'{place}/link2', 'rb').read(3).decode()
    os.chmod(f'{place}/sticky', 0o755 | 0o4000)
    seen['capability'] = len(os.getxattr(f'{place}/capable', 'security.capability'))
    os.utime(f'{place}/capable')
    seen['capability after a change'] = len(os.getxattr(f'{place}/capable', 'security.capability'))
    return seen
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        try: answer = change()
        except Exception as error: answer = {'error': repr(error)}
        body = json.dumps(answer).encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *arguments): pass
http.server.HTTPServer(('127.0.0.1', 8080), Handler).serve_forever()
"#;

/// `cap_net_raw+ep`, version 2.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Files that sandboxes see as those of their image.
fn image_files(node: &Node) -> Result<PathBuf> {
    let place = node.programs.join("image");
    fs::create_dir(&place)?;
    for name in ["read", "mapped", "locked", "watched", "link1", "capable", "sticky"] {
        fs::write(place.join(name), vec![b'o'; 4_096])?;
    }
    fs::hard_link(place.join("link1"), place.join("link2"))?;
    for name in ["read", "mapped", "locked", "watched", "link1", "capable", "sticky", "."] {
        chown(place.join(name), Some(1000), Some(1000))?;
    }
    fs::set_permissions(place.join("capable"), fs::Permissions::from_mode(0o755))?;
    // After the owner, whose change would remove it.
    setxattr(place.join("capable"), "security.capability", &CAPABILITY, XattrFlags::empty())?;
    Ok(place)
}

fn with_layers(kind: &str) -> Result<()> {
    with_node(arguments(&["--layers", kind]), |node| {
        let place = image_files(node)?.display().to_string();
        let build = ["template", "build", "trap", "--port", "8080", "--", "/usr/bin/python3", "-c", PROGRAM, &place];
        node.ok(&build)?;
        let id = node.run("trap", 1)?[0].id.to_string();
        let forks = node.json(&["fork", &id, "--json"])?;
        let copy = forks["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
        for (id, of) in [(&id, "a copy of the template"), (&copy, "a fork")] {
            expect_documented(&node.ask(id, "GET /")?).context(of)?;
        }
        // Nothing of the image has changed.
        let untouched =
            ["read", "mapped", "locked", "watched", "link1"].map(|name| fs::read(format!("{place}/{name}")));
        let is_whole = untouched.into_iter().all(|content| content.is_ok_and(|content| content.starts_with(b"ooo")));
        ensure!(is_whole, "the image has changed");
        Ok(())
    })
}

/// The table of docs/sandbox.md.
fn expect_documented(seen: &Value) -> Result<()> {
    let documented = serde_json::json!({
        // As on any filesystem.
        "read": "new", "locked": true, "locked after a write": true, "watched": true,
        "capability": 20, "capability after a change": 20,
        // Not so.
        "mapped": "ooo", "linked": "ooo",
    });
    ensure!(*seen == documented, "{seen}");
    Ok(())
}

/// Directories that the image and each checkpoint have made are moved into each other, and keep what is in them.
fn moved() -> Result<()> {
    let shared = Shared::new()?;
    let (node, other) = (shared.node()?, shared.node()?);
    let body = || -> Result<()> {
        let place = image_files(&node)?.display().to_string();
        // As root of the host has made it: the program's user may change it.
        fs::create_dir_all(format!("{place}/d0/in"))?;
        fs::write(format!("{place}/d0/in/file"), "0")?;
        for path in ["d0", "d0/in", "d0/in/file"] {
            chown(format!("{place}/{path}"), Some(1000), Some(1000))?;
        }
        node.build_geo("geo", &["--nidx", "2"])?;
        let mut id = node.run("geo", 1)?[0].id.to_string();
        for round in 1..=3 {
            let before = round - 1;
            let make = format!(
                "cd {place} && mkdir d{round} && mv d{before} d{round}/inner && mkdir -p d{round}/in && echo {round} > d{round}/in/file && rm -rf d{before}"
            );
            node.shell(&id, &make)?;
            let name = format!("c{round}");
            node.ok(&["checkpoint", &id, "--name", &name])?;
            id = node.run(&name, 1)?[0].id.to_string();
            let (mut at, mut expected) = (format!("{place}/d{round}"), Vec::new());
            for level in (0..=round).rev() {
                expected.push(format!("{at}/in/file {level}"));
                at += "/inner";
            }
            let list = format!(
                "find {place}/d{round} -type f | sort -r | while read f; do echo $f $(cat $f); done; ls {place} | grep -c ^d"
            );
            let seen = node.shell(&id, &list)?;
            let mut lines: Vec<&str> = seen.lines().collect();
            ensure!(lines.pop() == Some("1"), "round {round}: {seen}");
            lines.sort_unstable();
            expected.sort_unstable();
            ensure!(lines == expected, "round {round}: {seen}, not {expected:?}");
        }
        let elsewhere = other.run("c3", 1)?[0].id.to_string();
        // The image's own directory is the same on both nodes.
        let seen = other.shell(&elsewhere, &format!("cat {place}/d3/inner/inner/inner/in/file {place}/d3/in/file"))?;
        ensure!(seen == "03\n", "on another node: {seen:?}");
        Ok(())
    };
    body().with_context(|| format!("log of the first node:\n{}", node.log_tail()))?;
    other.finish()?;
    node.finish()
}
