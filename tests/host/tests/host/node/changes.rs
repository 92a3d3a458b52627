//! What sandboxes change in their root filesystems: a copy goes on with the very files of its source.

use std::{fs, os::unix::fs::symlink, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

use super::shared::{arguments, with_node};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("changes::copies_go_on_with_the_files_of_their_source", || with_layers("btrfs", own_files)),
        Case::new("changes::a_resumed_sandbox_goes_on_with_its_files", || with_layers("btrfs", resumed)),
        Case::new("changes::without_snapshots_files_are_copied", || with_layers("copy", copied)),
        Case::new("changes::a_copy_that_is_made_ahead_misses_no_write", || with_layers("copy", ahead)),
        Case::new("changes::they_outlive_a_killed_node", || with_layers("btrfs", killed)),
        Case::new("changes::after_a_boot_of_the_host_they_come_from_the_store", || with_layers("btrfs", booted)),
        Case::new("changes::a_full_image_refuses_by_name_and_leaves_all_roots_writable", full_image),
        Case::new("changes::a_full_host_leaves_all_roots_writable", full_host),
        Case::new("changes::a_disk_limit_holds_for_each_sandbox", || with_layers("btrfs", limited)),
        Case::new("changes::the_image_grows_while_a_sandbox_writes", grows),
        Case::new("changes::the_image_grows_before_btrfs_counts_what_is_written", grows_early),
    ]
}

/// A program with files in states that a copied file cannot have: a database in rollback mode, which compares inode numbers; hard links; views of a
/// file that is written in another way; directories at long paths, which are to be moved.
const PROGRAM: &str = r#"
import http.server, json, mmap, os, sqlite3
db = sqlite3.connect('/tmp/x.db', check_same_thread=False, isolation_level=None)
db.execute('create table t(n)'); db.execute('insert into t values(0)')
open('/tmp/a', 'w').write('first\n'); os.link('/tmp/a', '/tmp/b')
def new(path): open(path, 'wb').write(b'o' * 8192)
new('/tmp/c'); w = os.open('/tmp/c', os.O_RDWR); written = mmap.mmap(w, 8192, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE); os.close(w)
r = os.open('/tmp/c', os.O_RDONLY); read = mmap.mmap(r, 8192, mmap.MAP_SHARED, mmap.PROT_READ); os.close(r)
new('/tmp/d'); r = os.open('/tmp/d', os.O_RDONLY); other = mmap.mmap(r, 8192, mmap.MAP_SHARED, mmap.PROT_READ); w = os.open('/tmp/d', os.O_RDWR)
deep = '/tmp/deep/' + '/'.join(['a-directory-with-a-name-of-more-than-seventy-characters-as-pnpm-makes-them-0'] * 4)
for n in range(20): os.makedirs(f'{deep}/p{n}')
inodes = {path: os.stat(path).st_ino for path in ('/tmp/a', '/tmp/x.db', '/tmp', deep)}
rounds = 0
def look():
    global rounds
    rounds += 1
    db.execute('update t set n = n + 1')
    open('/tmp/a', 'a').write('more\n')
    letter = bytes([65 + rounds % 26]); written[0:1] = letter; os.pwrite(w, letter, 0)
    os.rename(f'{deep}/p{rounds}', f'/tmp/moved{rounds}')
    return {
        'rows': db.execute('select n from t').fetchone()[0],
        'rounds': rounds,
        'linked': open('/tmp/a').read() == open('/tmp/b').read() and os.stat('/tmp/a').st_nlink == 2,
        'seen': read[:1] == letter and other[:1] == letter,
        'moved': sorted(name for name in os.listdir('/tmp') if name.startswith('moved')) == sorted(f'moved{n}' for n in range(1, rounds + 1)),
        'inodes': all(os.stat(path).st_ino == inode for path, inode in inodes.items()),
    }
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        try: answer = look()
        except Exception as error: answer = {'error': repr(error)}
        body = json.dumps(answer).encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *arguments): pass
http.server.HTTPServer(('127.0.0.1', 8080), Handler).serve_forever()
"#;

fn with_layers(kind: &str, body: impl FnOnce(&mut Node) -> Result<()>) -> Result<()> {
    with_node(arguments(&["--layers", kind]), body)
}

fn build(node: &Node) -> Result<()> {
    node.ok(&["template", "build", "files", "--port", "8080", "--", "/usr/bin/python3", "-c", PROGRAM]).map(drop)
}

fn start(node: &Node, template: &str) -> Result<String> {
    Ok(node.run(template, 1)?[0].id.to_string())
}

fn forked(node: &Node, id: &str) -> Result<String> {
    let forks = node.json(&["fork", id, "--json"])?;
    Ok(forks["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned())
}

/// Has the program use all its files, for the `round`th time of its life.
fn expect_all_right(node: &Node, id: &str, round: u64) -> Result<()> {
    let answer = node.ask(id, "GET /")?;
    let is_right = ["linked", "seen", "moved", "inodes"].iter().all(|what| answer[what] == true);
    ensure!(is_right && answer["rows"] == round && answer["rounds"] == round, "{id}, round {round}: {answer}");
    Ok(())
}

fn own_files(node: &mut Node) -> Result<()> {
    ensure!(node.info()?.layers == "btrfs", "{}", node.info()?.layers);
    build(node)?;
    let id = start(node, "files")?;
    for round in 1..=3 {
        expect_all_right(node, &id, round).context("a copy of the template")?;
    }
    let copy = forked(node, &id)?;
    let other = forked(node, &copy)?;
    for (id, round) in [(&copy, 4), (&id, 4), (&other, 4), (&copy, 5)] {
        expect_all_right(node, id, round).context("forks")?;
    }
    // What runs beside has the same files.
    let links = node.shell(&other, "stat -c %h /tmp/a; cmp /tmp/a /tmp/b && echo same")?;
    ensure!(links == "2\nsame\n", "{links}");
    // However much was changed, and by whom: nothing of one is seen in another.
    node.shell(&id, "mkdir /tmp/own && echo own > /tmp/own/file && rm /tmp/c && echo x > /etc/x 2>/dev/null; true")?;
    let seen = node.shell(&copy, "ls /tmp/own /tmp/c 2>&1; hostname; cat /etc/hostname")?;
    ensure!(seen.contains("cannot access '/tmp/own'") && seen.contains(&format!("/tmp/c\n{copy}\n{copy}\n")), "{seen}");
    // A template that is built again leaves the sandboxes of before alone, and so does its removal.
    build(node)?;
    expect_all_right(node, &other, 5)?;
    for id in [&id, &copy] {
        node.ok(&["kill", id])?;
    }
    node.ok(&["kill", &other])?;
    let last = start(node, "files")?;
    expect_all_right(node, &last, 1)
}

fn resumed(node: &mut Node) -> Result<()> {
    build(node)?;
    let id = start(node, "files")?;
    for round in 1..=3 {
        expect_all_right(node, &id, round)?;
        node.ok(&["pause", &id])?;
        ensure!(kept(node)?.len() == 1, "{:?}", kept(node)?);
        if round == 2 {
            let copy = forked(node, &id)?;
            expect_all_right(node, &copy, round + 1).context("a fork of the paused sandbox")?;
            node.ok(&["kill", &copy])?;
        }
        node.ok(&["resume", &id])?;
        // The identity that it had, in files that its own root may have changed.
        ensure!(node.shell(&id, "cat /etc/hostname")?.trim() == id);
    }
    node.ok(&["pause", &id])?;
    node.ok(&["kill", &id])?;
    ensure!(kept(node)?.is_empty(), "a removed sandbox left {:?}", kept(node)?);
    Ok(())
}

/// Layers for snapshots that are there, those of templates left out.
pub(super) fn kept(node: &Node) -> Result<Vec<String>> {
    let all = fs::read_dir(format!("/proc/{}/root{}/changes", node.server_pid()?, node.state.display()))?;
    let names = all.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<Vec<_>>>()?;
    let sandboxes = fs::read_dir(node.state.join("sandboxes"))?;
    let known: Vec<_> = sandboxes.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let mut left: Vec<String> = names.into_iter().filter(|name| !known.contains(name)).collect();
    for template in fs::read_dir(node.state.join("templates"))? {
        let record = fs::read(template?.path().join("record"))?;
        let record = String::from_utf8_lossy(&record);
        left.retain(|name| !record.contains(name.as_str()));
    }
    Ok(left)
}

/// The other way: a layer is a copy, and docs/sandbox.md says what differs.
fn copied(node: &mut Node) -> Result<()> {
    ensure!(node.info()?.layers == "copy", "{}", node.info()?.layers);
    let limited = node.pando(&["template", "build", "limited", "--disk", "1G", "--", "/bin/sleep", "1"])?;
    ensure!(limited.code == 2 && limited.stderr.contains("cannot limit what a sandbox writes"), "{limited}");
    node.build_geo("geo", &["--nidx", "2"])?;
    let id = start(node, "geo")?;
    let make = "cd /tmp && mkdir -p d/e && echo deep > d/e/f && ln d/e/f d/e/g && echo gone > gone && chmod 600 d/e/f";
    node.shell(&id, make)?;
    let copy = forked(node, &id)?;
    node.shell(&copy, "rm /tmp/gone && mv /tmp/d/e /tmp/moved && rm -r /tmp/d && mkdir /tmp/d")?;
    node.ok(&["checkpoint", &copy, "--name", "kept"])?;
    node.ok(&["pause", &copy])?;
    node.ok(&["resume", &copy])?;
    let restored = start(node, "kept")?;
    for id in [&copy, &restored, &forked(node, &restored)?] {
        let seen =
            node.shell(id, "cd /tmp && ls -A d; cat moved/f moved/g; stat -c %a:%h moved/f; ls gone 2>&1; true")?;
        ensure!(seen.starts_with("deep\ndeep\n600:2\n") && seen.contains("cannot access"), "{id}: {seen}");
        ensure!(node.ask(id, "GET /verify")?["intact"] == true, "{id}");
    }
    node.ok(&["checkpoint", "rm", "kept"]).map(drop)
}

/// Writes numbers to a file by a mapping and to another by a descriptor, makes, renames and removes files, and tells what is missing. No number is
/// written twice, so a write that a copy misses stays missing.
const WRITER: &str = r#"
import http.server, json, mmap, os, threading, time
lock, count = threading.Lock(), 0
open('/tmp/mapped', 'wb').truncate(8 << 20)
file = os.open('/tmp/mapped', os.O_RDWR); pages = mmap.mmap(file, 8 << 20); os.close(file)
plain = os.open('/tmp/plain', os.O_RDWR | os.O_CREAT)
os.makedirs('/tmp/many/0')
for n in range(3000): open(f'/tmp/many/{n}.txt', 'w').write('x' * 3000)
open('/tmp/large', 'wb').write(os.urandom(1 << 20) * 100)
def write():
    global count
    while True:
        with lock:
            at, data = count * 8, count.to_bytes(8, 'little')
            pages[at:at + 8] = data
            os.pwrite(plain, data, at)
            if count >= 10: os.unlink(f'/tmp/many/n{count - 10}')
            open(f'/tmp/many/new', 'wb').write(data); os.rename('/tmp/many/new', f'/tmp/many/n{count}')
            count += 1
        time.sleep(0.0005)
def missing(read): return [n for n in range(count) if read(n * 8) != n.to_bytes(8, 'little')][:5]
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        with lock:
            again = os.open('/tmp/mapped', os.O_RDONLY)
            answer = {
                'count': count, 'mapped': missing(lambda at: pages[at:at + 8]), 'plain': missing(lambda at: os.pread(plain, 8, at)),
                'again': missing(lambda at: os.pread(again, 8, at)),
                'names': sorted(name for name in os.listdir('/tmp/many') if name[0] == 'n') == sorted(f'n{n}' for n in range(max(0, count - 10), count)),
                'many': len([name for name in os.listdir('/tmp/many') if name.endswith('.txt')]),
            }
            os.close(again)
        body = json.dumps(answer).encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *arguments): pass
threading.Thread(target=write, daemon=True).start()
http.server.HTTPServer(('127.0.0.1', 8080), Handler).serve_forever()
"#;

fn ahead(node: &mut Node) -> Result<()> {
    node.ok(&["template", "build", "writer", "--port", "8080", "--", "/usr/bin/python3", "-c", WRITER])?;
    let mut id = start(node, "writer")?;
    let mut seen = 0;
    for round in 0..6 {
        let answer = node.ask(&id, "GET /")?;
        let is_missing = ["mapped", "plain", "again"].iter().any(|what| answer[what] != serde_json::json!([]));
        ensure!(!is_missing && answer["names"] == true && answer["many"] == 3_000, "round {round}: {answer}");
        let count = answer["count"].as_u64().unwrap_or(0);
        ensure!(count > seen, "it does not go on: {seen}, then {answer}");
        seen = count;
        let copy = forked(node, &id)?;
        node.ok(&["kill", &id])?;
        id = copy;
        if round == 3 {
            node.ok(&["pause", &id])?;
            node.ok(&["resume", &id])?;
        }
    }
    Ok(())
}

fn killed(node: &mut Node) -> Result<()> {
    build(node)?;
    let (id, paused) = (start(node, "files")?, start(node, "files")?);
    expect_all_right(node, &id, 1)?;
    expect_all_right(node, &paused, 1)?;
    node.ok(&["pause", &paused])?;
    node.kill_server()?;
    node.start_server()?;
    expect_all_right(node, &id, 2)?;
    let copy = forked(node, &id)?;
    expect_all_right(node, &copy, 3).context("forked after the crash")?;
    // The node stops in order: what it has mounted is gone, and what runs goes on.
    node.stop_server()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    // But for the network of what runs.
    let own: Vec<&str> = mounts.lines().filter(|line| line.contains(&*node.state.to_string_lossy())).collect();
    ensure!(own.iter().all(|line| line.contains(" - nsfs ")), "{mounts}");
    // It is the same image, also by another path: a second device of it would be a second filesystem in the same bytes.
    let moved = node.state.with_extension("moved");
    fs::rename(&node.state, &moved)?;
    symlink(&moved, &node.state)?;
    node.start_server()?;
    expect_all_right(node, &id, 3)?;
    node.ok(&["resume", &paused])?;
    expect_all_right(node, &paused, 2).context("resumed after two other nodes")?;
    expect_all_right(node, &forked(node, &paused)?, 3)
}

fn booted(node: &mut Node) -> Result<()> {
    node.build_geo("geo", &["--nidx", "2"])?;
    let id = start(node, "geo")?;
    node.shell(&id, "echo mine > /tmp/mine")?;
    // A setting of btrfs, which no other filesystem takes.
    let compressed = "import os; open('/tmp/c', 'w').close(); os.setxattr('/tmp/c', 'btrfs.compression', b'zstd')";
    node.ok(&["exec", &id, "--", "/usr/bin/python3", "-c", compressed])?;
    node.ok(&["pause", &id])?;
    node.stop_server()?;
    // The note of the boot in which the image was made.
    fs::write(node.state.join("changes.boot"), "another boot\n")?;
    node.start_server()?;
    node.ok(&["resume", &id])?;
    ensure!(node.shell(&id, "cat /tmp/mine")? == "mine\n");
    ensure!(node.ask(&id, "GET /verify")?["intact"] == true);
    let copy = start(node, "geo").context("the template's layer was in the earlier image")?;
    ensure!(node.ask(&copy, "GET /verify")?["intact"] == true);
    Ok(())
}

const FILL: &str = "dd if=/dev/zero of=/tmp/fill bs=1M 2>&1; true";

fn full_image() -> Result<()> {
    with_node(arguments(&["--layers", "btrfs", "--layers-max", "256M", "--pool", "0"]), |node| {
        node.build_geo("geo", &["--nidx", "2"])?;
        let ids: Vec<String> = node.run("geo", 2)?.iter().map(|sandbox| sandbox.id.to_string()).collect();
        let (filler, other) = (&ids[0], &ids[1]);
        let printed = node.shell(filler, FILL)?;
        ensure!(printed.contains("No space left on device"), "{printed:?}");
        for id in &ids {
            ensure!(node.ask(id, "GET /verify")?["intact"] == true, "{id} in a full image");
            ensure!(node.shell(id, "hostname")?.trim() == id, "exec in a full image");
        }
        let service = node.program("geo.py");
        let build = ["template", "build", "other", "--", "/usr/bin/python3", &service, "--nidx", "2"];
        for refused in [&["create", "geo"][..], &["fork", other], &build] {
            let answer = node.pando(refused)?;
            let is_named = answer.stderr.contains("too little room is left for what sandboxes change");
            ensure!(answer.code != 0 && is_named, "{refused:?} in a full image: {answer}");
        }
        // What is removed makes room, for all.
        node.shell(filler, "rm /tmp/fill")?;
        wait_for_room(node)?;
        node.shell(other, "echo x > /tmp/x && cat /tmp/x")?;
        let copy = forked(node, other)?;
        ensure!(node.shell(&copy, "cat /tmp/x")? == "x\n");
        Ok(())
    })
}

/// Room comes back when the filesystem has committed.
fn wait_for_room(node: &Node) -> Result<()> {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let answer = node.pando(&["create", "geo"])?;
        if answer.code == 0 {
            return Ok(());
        }
        ensure!(std::time::Instant::now() < deadline, "no room comes back: {answer}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A host whose filesystem is full, not by sandboxes: the room of the image is its own.
fn full_host() -> Result<()> {
    let setting = Setting { state_ext4_mib: Some(1_536), ..arguments(&["--layers", "btrfs"]) };
    with_node(setting, |node| {
        node.build_geo("geo", &["--nidx", "2"])?;
        let id = start(node, "geo")?;
        let state = format!("/proc/{}/root{}", node.server_pid()?, node.state.display());
        let filled = Command::new("dd").args(["if=/dev/zero", "bs=1M", &format!("of={state}/filler")]).output()?;
        ensure!(String::from_utf8_lossy(&filled.stderr).contains("No space left"), "{filled:?}");
        // In what the image has, and beyond.
        let printed = node.shell(
            &id,
            "head -c 100000000 /dev/urandom > /tmp/a && sync /tmp/a && md5sum < /tmp/a > /tmp/sum && echo written",
        )?;
        ensure!(printed == "written\n", "{printed}");
        let printed = node.shell(&id, FILL)?;
        ensure!(printed.contains("No space left on device"), "{printed:?}");
        let printed =
            node.shell(&id, "rm /tmp/fill; md5sum < /tmp/a | cmp - /tmp/sum && touch /tmp/writable && echo whole")?;
        ensure!(printed == "whole\n", "{printed}");
        ensure!(node.ask(&id, "GET /verify")?["intact"] == true);
        fs::remove_file(format!("{state}/filler"))?;
        wait_for_room(node)?;
        let copy = forked(node, &id)?;
        ensure!(node.shell(&copy, "md5sum < /tmp/a | cmp - /tmp/sum && echo whole")? == "whole\n");
        Ok(())
    })
}

fn limited(node: &mut Node) -> Result<()> {
    let service = node.program("geo.py");
    let program = ["--", "/usr/bin/python3", &service, "--nidx", "2"];
    let build = |disk| [&["template", "build", "geo", "--port", "8080", "--disk", disk][..], &program].concat();
    for (wrong, named) in [("1K", "needs 1 MiB of disk at least"), ("2048T", "the limit of disk is")] {
        let answer = node.pando(&build(wrong))?;
        ensure!(answer.code != 0 && answer.stderr.contains(named), "{wrong}: {answer}");
    }
    node.ok(&build("64M"))?;
    let ids: Vec<String> = node.run("geo", 2)?.iter().map(|sandbox| sandbox.id.to_string()).collect();
    let (filler, other) = (&ids[0], &ids[1]);
    let fill = "dd if=/dev/zero of=/tmp/fill bs=1M 2>&1; stat -c %s /tmp/fill";
    let printed = node.shell(filler, fill)?;
    let size: u64 = printed.lines().last().and_then(|line| line.parse().ok()).unwrap_or(0);
    ensure!(printed.contains("Disk quota exceeded") && (50 << 20..64 << 20).contains(&size), "{printed:?}");
    let upload =
        node.pando_with_input(&["exec", "-i", filler, "--", "/bin/sh", "-c", "cat > /tmp/x"], &[0; 200_000])?;
    ensure!(upload.code != 0 && upload.stderr.contains("Disk quota exceeded"), "{upload}");
    let file = node.dir().join("upload");
    fs::write(&file, vec![0; 200_000])?;
    let copied = node.pando(&["cp", &file.display().to_string(), &format!("{filler}:/tmp/z")])?;
    ensure!(copied.code != 0 && copied.stderr.to_lowercase().contains("quota"), "{copied}");
    // The limit is each one's own, and what a copy was forked with does not count.
    ensure!(node.shell(other, "head -c 40000000 /dev/zero > /tmp/x && echo written")? == "written\n");
    let copy = forked(node, filler)?;
    ensure!(node.shell(&copy, "head -c 40000000 /dev/zero > /tmp/y && echo written")? == "written\n");
    ensure!(node.shell(&copy, fill)?.contains("Disk quota exceeded"));
    // As it was removed, room comes back with the next commit, when no other one shares it.
    node.ok(&["kill", &copy])?;
    node.shell(filler, "rm /tmp/fill; for n in $(seq 40); do echo x > /tmp/y && exit 0; sleep 1; done; exit 1")?;
    let usage = node.json(&["stats", other, "--json"])?;
    ensure!(usage.to_string().contains("67108864"), "{usage}");
    Ok(())
}

fn grows() -> Result<()> {
    let setting = Setting { state_ext4_mib: Some(3_072), ..arguments(&["--layers", "btrfs", "--pool", "0"]) };
    with_node(setting, |node| {
        node.build_geo("geo", &["--nidx", "2"])?;
        let id = start(node, "geo")?;
        let image = format!("/proc/{}/root{}/changes.img", node.server_pid()?, node.state.display());
        let before = fs::metadata(&image)?.len();
        // Slower than it grows.
        let write = "for n in 1 2 3 4 5 6 7 8; do head -c 100000000 /dev/zero > /tmp/f$n || exit 1; sleep 0.8; done; echo written";
        ensure!(node.shell(&id, write)? == "written\n");
        let after = fs::metadata(&image)?.len();
        ensure!(after > before, "{before} bytes before, {after} after");
        Ok(())
    })
}

/// Writes back what it writes, without a commit: that has a place on the device and is in no number of statfs(2), for five seconds.
const WRITE_BACK: &str = "
import ctypes, os, sys
kernel = ctypes.CDLL(None, use_errno=True)
place = os.open(sys.argv[1], os.O_RDONLY)
assert kernel.syncfs(place) == 0
file = os.open('written', os.O_RDWR | os.O_CREAT, dir_fd=place)
for _ in range(500):
    os.write(file, bytes(1 << 20))
assert kernel.sync_file_range(file, ctypes.c_long(0), ctypes.c_long(0), 7) == 0
";

fn grows_early() -> Result<()> {
    let setting = Setting { state_ext4_mib: Some(3_072), ..arguments(&["--layers", "btrfs", "--pool", "0"]) };
    with_node(setting, |node| {
        let state = format!("/proc/{}/root{}", node.server_pid()?, node.state.display());
        let (image, changes) = (format!("{state}/changes.img"), format!("{state}/changes"));
        let before = fs::metadata(&image)?.len();
        let written = Command::new("/usr/bin/python3").args(["-c", WRITE_BACK, &changes]).output()?;
        ensure!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
        std::thread::sleep(Duration::from_secs(1));
        let after = fs::metadata(&image)?.len();
        ensure!(after > before, "{before} bytes before, {after} after");
        fs::remove_file(format!("{changes}/written")).map_err(Into::into)
    })
}
