//! The store behind checkpoints: what is damaged is named, what nobody needs goes, and a checkpoint moves to another store as a file.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Write,
    os::unix::{
        fs::{FileExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use testkit::{node::Node, runner::Case};

use super::shared::Shared;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("store::what_removed_checkpoints_leave_is_collected_and_nothing_else", || case(garbage)),
        Case::new("store::every_kind_of_damage_is_named_with_whom_it_harms", || case(damage)),
        Case::new("store::a_checkpoint_goes_as_a_file_into_a_store_with_other_keys", || case(by_file)),
        Case::new("store::damaged_files_are_refused_and_leave_only_garbage", || case(damaged_files)),
        Case::new("store::transfers_that_are_broken_off_leave_only_garbage", broken_off),
        Case::new("store::the_master_key_is_rotated_and_the_old_one_is_not_needed", rotated),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start()?;
    node.build_geo("geo", &["--nidx", "2"])?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// A checkpoint of a new sandbox, which has `note` in memory and in a file.
fn take(node: &Node, name: &str, note: &str) -> Result<()> {
    let id = node.run("geo", 1)?[0].id.to_string();
    node.ask(&id, &format!("POST /write?key=note&value={note}"))?;
    node.shell(&id, &format!("echo {note} > /home/user/note; ln -s note /home/user/link; mkfifo /home/user/pipe"))?;
    node.ok(&["checkpoint", &id, "--name", name])?;
    node.ok(&["kill", &id]).map(drop)
}

/// Runs a checkpoint and looks whether it is the one that [`take`] took.
fn expect(node: &Node, name: &str, note: &str) -> Result<()> {
    let id = node.run(name, 1)?[0].id.to_string();
    let state = node.ask(&id, "GET /state")?;
    ensure!(state["values"]["note"] == note, "{name}: {state}");
    ensure!(node.ask(&id, "GET /verify")?["intact"] == true, "{name} is not intact");
    ensure!(node.shell(&id, "cat /home/user/link")?.trim_end() == note, "{name}: files");
    node.ok(&["kill", &id]).map(drop)
}

/// All manifests or segments, by their keys.
fn objects(node: &Node, kind: &str) -> Result<BTreeSet<PathBuf>> {
    let folder = node.state.join("store/objects/realms/default").join(kind);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.path())).collect()
}

fn number(value: &Value, pointer: &str) -> Result<u64> {
    value.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("no {pointer} in {value}"))
}

fn gc(node: &Node, arguments: &[&str]) -> Result<Value> {
    node.json(&[&["store", "gc", "--json"], arguments].concat())
}

/// Nothing is in the store, after the garbage has gone.
fn expect_empty_after_gc(node: &Node) -> Result<()> {
    gc(node, &["--grace", "0"])?;
    let stats = node.json(&["store", "stats", "--json"])?;
    for what in ["/heads", "/leases", "/manifests/objects", "/segments/objects", "/unknown/objects"] {
        ensure!(number(&stats, what)? == 0, "{what}: {stats}");
    }
    Ok(())
}

fn garbage(node: &Node) -> Result<()> {
    take(node, "kept", "a")?;
    let kept: BTreeSet<PathBuf> = objects(node, "segments")?;
    take(node, "gone", "b")?;
    let stats = node.json(&["store", "stats", "--json"])?;
    ensure!(number(&stats, "/heads")? == 2 && number(&stats, "/leases")? == 0, "{stats}");
    let all = number(&stats, "/manifests/bytes")? + number(&stats, "/segments/bytes")?;
    ensure!(number(&stats, "/kept/bytes")? == all && all > 0, "all is needed: {stats}");
    node.ok(&["checkpoint", "rm", "gone"])?;
    let young = gc(node, &[])?;
    ensure!(number(&young, "/garbage/objects")? == 0 && number(&young, "/young/objects")? >= 2, "{young}");
    let dry = gc(node, &["--grace", "0", "--dry-run"])?;
    let (objects_before, found) = (objects(node, "segments")?, number(&dry, "/garbage/objects")?);
    ensure!(found >= 2 && objects_before.len() > kept.len(), "a manifest and a segment: {dry}");
    ensure!(dry["garbage_keys"].as_array().is_some_and(|keys| keys.len() as u64 == found), "{dry}");
    let removed = gc(node, &["--grace", "0"])?;
    ensure!(removed["garbage"] == dry["garbage"] && removed["dry_run"] == false, "{removed}");
    ensure!(objects(node, "segments")? == kept, "what is needed stays, and nothing else");
    ensure!(number(&gc(node, &["--grace", "0"])?, "/garbage/objects")? == 0, "nothing is left to remove");
    let said = node.ok(&["store", "verify"])?;
    ensure!(said.contains("read 1 heads") && said.contains("all of it is sound"), "{said}");
    ensure!(node.ok(&["store", "gc", "--dry-run"])?.contains("would remove 0 objects"), "for people");
    ensure!(node.ok(&["store", "stats"])?.contains("segments"), "for people");
    expect(node, "kept", "a")?;
    node.ok(&["template", "rm", "kept"])?;
    node.ok(&["checkpoint", "rm", "kept"])?;
    expect_empty_after_gc(node)
}

fn damage(node: &Node) -> Result<()> {
    take(node, "good", "a")?;
    let others = objects(node, "segments")?;
    take(node, "bad", "b")?;
    let sound = node.json(&["checkpoint", "verify", "bad", "--json"])?;
    ensure!(sound["damage"].as_array().is_some_and(Vec::is_empty), "{sound}");
    for seen in ["/segments", "/chunks", "/pages", "/files"] {
        ensure!(number(&sound, seen)? > 0, "{seen}: {sound}");
    }
    let own: Vec<PathBuf> = objects(node, "segments")?.difference(&others).cloned().collect();
    ensure!(!own.is_empty(), "it has segments of its own");
    let manifest = node.state.join("store/objects/realms/default/manifests").join(text(&sound["manifest"])?);
    for segment in &own {
        let name = segment.file_name().and_then(|name| name.to_str()).context("no name")?;
        let length = fs::metadata(segment)?.len();
        for at in [0, length / 3, length / 2, length - 1] {
            harmed(segment, |file| flip(file, at), || names_damage(node, &format!("segment {name}")))
                .with_context(|| format!("byte {at} of {length}"))?;
        }
        harmed(segment, |file| Ok(file.set_len(length / 2)?), || names_damage(node, &format!("segment {name}")))?;
        let away = segment.with_extension("away");
        fs::rename(segment, &away)?;
        let named = names_damage(node, &format!("segment {name}"));
        fs::rename(&away, segment)?;
        named.context("a missing segment")?;
    }
    harmed(&manifest, |file| flip(file, 40), || names_damage(node, "manifest"))?;
    node.ok(&["store", "verify"])?;
    ensure!(node.ok(&["checkpoint", "verify", "bad"])?.contains("all of it is sound"), "it was repaired");
    let missing = node.pando(&["checkpoint", "verify", "nobody"])?;
    ensure!(missing.code == 4, "{missing}");
    expect(node, "bad", "b")
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().with_context(|| format!("no text: {value}"))
}

/// Damages a file for as long as `look` looks.
fn harmed(path: &Path, harm: impl FnOnce(&File) -> Result<()>, look: impl FnOnce() -> Result<()>) -> Result<()> {
    let whole = fs::read(path)?;
    harm(&File::options().read(true).write(true).open(path)?)?;
    let looked = look();
    fs::write(path, whole)?;
    looked
}

fn flip(file: &File, at: u64) -> Result<()> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    Ok(file.write_all_at(&[byte[0] ^ 0x10], at)?)
}

/// The part is named where it is looked at, and nothing else is blamed.
fn names_damage(node: &Node, part: &str) -> Result<()> {
    let one = node.pando(&["checkpoint", "verify", "bad", "--json"])?;
    let seen: Value = serde_json::from_str(&one.stdout)?;
    ensure!(one.code == 1, "{one}");
    let parts = seen["damage"].as_array().context("no list")?;
    ensure!(parts.iter().any(|found| found["part"] == part), "{part}: {one}");
    let all = node.pando(&["store", "verify", "--json"])?;
    let seen: Value = serde_json::from_str(&all.stdout)?;
    ensure!(all.code == 1, "{all}");
    let harmed = |found: &Value| found["heads"] == serde_json::json!(["checkpoint/bad"]);
    ensure!(seen["damage"].as_array().is_some_and(|found| !found.is_empty() && found.iter().all(harmed)), "{all}");
    ensure!(node.pando(&["checkpoint", "verify", "good"])?.code == 0, "the other one is sound");
    Ok(())
}

fn by_file(node: &Node) -> Result<()> {
    take(node, "warm", "moved")?;
    let file = node.dir().join("warm.pando");
    let path = file.display().to_string();
    node.ok(&["checkpoint", "export", "warm", &path])?;
    ensure!(fs::metadata(&file)?.permissions().mode() & 0o7777 == 0o600, "others can read it");
    let again = node.pando(&["checkpoint", "export", "warm", &path])?;
    ensure!(again.code == 2 && again.stderr.contains("is there already"), "{again}");
    let missing = node.pando(&["checkpoint", "export", "nobody", &format!("{path}.2")])?;
    ensure!(missing.code == 4 && leftovers(node)? == 1, "{missing}");
    let other = Node::start()?;
    let moved = || -> Result<()> {
        ensure!(other.ok(&["checkpoint", "import", &path])?.trim_end() == "warm", "its own name");
        let again = other.pando(&["checkpoint", "import", &path])?;
        ensure!(again.code == 1 && again.stderr.contains("there is a checkpoint warm already"), "{again}");
        let bytes = fs::read(&file)?;
        let piped = other.pando_with_input(&["checkpoint", "import", "-", "--name", "piped"], &bytes)?;
        ensure!(piped.code == 0 && piped.stdout.trim_end() == "piped", "{piped}");
        other.ok(&["checkpoint", "import", &path, "--replace"])?;
        let (here, there) = (
            node.json(&["checkpoint", "inspect", "warm", "--json"])?,
            other.json(&["checkpoint", "inspect", "warm", "--json"])?,
        );
        ensure!(here["memory_bytes"] == there["memory_bytes"] && here["created_ms"] == there["created_ms"], "{there}");
        for name in ["warm", "piped"] {
            let seen = other.json(&["checkpoint", "verify", name, "--json"])?;
            ensure!(number(&seen, "/pages")? * 4096 == number(&here, "/memory_bytes")?, "{seen}");
            expect(&other, name, "moved")?;
        }
        // The same pages in the same order: only the time of export differs, and that is not in it.
        let back = other.dir().join("back.pando");
        other.ok(&["checkpoint", "export", "warm", &back.display().to_string()])?;
        ensure!(fs::read(back)? == bytes, "a file of an imported checkpoint is another one");
        Ok(())
    };
    moved().with_context(|| format!("log of the other node:\n{}", other.log_tail()))?;
    other.finish()
}

/// Files of exports in the node's directory, whole or not.
fn leftovers(node: &Node) -> Result<usize> {
    let names = fs::read_dir(node.dir())?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: Vec<String> = names.collect::<Result<_>>()?;
    Ok(names.iter().filter(|name| name.contains(".pando") || name.starts_with(".tmp")).count())
}

fn export(node: &Node) -> Result<Vec<u8>> {
    take(node, "warm", "a")?;
    let file = node.dir().join("warm.pando");
    node.ok(&["checkpoint", "export", "warm", &file.display().to_string()])?;
    node.ok(&["checkpoint", "rm", "warm"])?;
    Ok(fs::read(file)?)
}

fn damaged_files(node: &Node) -> Result<()> {
    let whole = export(node)?;
    gc(node, &["--grace", "0"])?;
    let end = whole.len();
    let mut wrong: Vec<(String, Vec<u8>)> = [0, 1, 15, 16, 700, end / 3, end / 2, end - 60, end - 48, end - 1]
        .map(|length| (format!("cut to {length} of {end}"), whole[..length].to_vec()))
        .into();
    // Spread over the file, so that every kind of record is hit.
    for at in (0..24).map(|step| step * (end - 1) / 23) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x04;
        wrong.push((format!("byte {at} of {end}"), flipped));
    }
    wrong.push(("something behind its end".into(), [&whole[..], b"x"].concat()));
    wrong.push(("noise".into(), b"not a checkpoint at all".repeat(1000)));
    for (what, bytes) in wrong {
        let refused = node.pando_with_input(&["checkpoint", "import", "-"], &bytes)?;
        ensure!(refused.code == 1 && refused.stderr.contains("no whole checkpoint"), "{what}: {refused}");
    }
    ensure!(node.json(&["checkpoint", "ls", "--json"])?.as_array().is_some_and(Vec::is_empty), "one was taken over");
    expect_empty_after_gc(node)?;
    let back = node.pando_with_input(&["checkpoint", "import", "-"], &whole)?;
    ensure!(back.code == 0, "{back}");
    expect(node, "warm", "a")
}

fn broken_off() -> Result<()> {
    let mut node = Node::start()?;
    node.build_geo("geo", &["--nidx", "2"])?;
    interrupted(&mut node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

fn interrupted(node: &mut Node) -> Result<()> {
    let whole = export(node)?;
    expect_empty_after_gc(node)?;
    // A client that hangs up in the middle.
    drop(half_sent(node, &whole)?);
    let deadline = Instant::now() + Duration::from_secs(10);
    while number(&node.json(&["store", "stats", "--json"])?, "/leases")? > 0 {
        ensure!(Instant::now() < deadline, "an import that was broken off holds its lease");
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(node.json(&["checkpoint", "ls", "--json"])?.as_array().is_some_and(Vec::is_empty), "it was taken over");
    expect_empty_after_gc(node)?;
    // A node that dies in the middle.
    let sending = half_sent(node, &whole)?;
    node.kill_server()?;
    drop(sending);
    node.start_server()?;
    ensure!(node.json(&["checkpoint", "ls", "--json"])?.as_array().is_some_and(Vec::is_empty), "it was taken over");
    node.ok(&["store", "verify"])?;
    node.ok(&["checkpoint", "import", &node.dir().join("warm.pando").display().to_string()])?;
    // An export that is interrupted leaves no file.
    for wait_ms in [0, 5, 20, 60] {
        let path = node.dir().join(format!("{wait_ms}.pando"));
        let exporting = node.begin(&["checkpoint", "export", "warm", &path.display().to_string()])?;
        std::thread::sleep(Duration::from_millis(wait_ms));
        exporting.signal(Signal::INT)?;
        let ended = exporting.end()?;
        match path.exists() {
            true => ensure!(fs::read(&path)? == whole, "a part of a file"),
            false => ensure!(ended.code != 0, "{ended}"),
        }
        let _ = fs::remove_file(path);
        ensure!(leftovers(node)? == 1, "something is left of an export");
    }
    expect(node, "warm", "a")
}

/// Sends half of a file, and waits until the node has stored some of it.
fn half_sent(node: &Node, whole: &[u8]) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(&node.socket)?;
    let head = format!("POST /v1/checkpoints HTTP/1.1\r\nHost: node\r\nContent-Length: {}\r\n\r\n", whole.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(&whole[..whole.len() / 2])?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while number(&node.json(&["store", "stats", "--json"])?, "/leases")? == 0 {
        ensure!(Instant::now() < deadline, "no import has begun");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(stream)
}

/// A key file of these master keys, each named after the digit that it is made of.
fn write_keys(shared: &Shared, digits: &str) -> Result<()> {
    let line = |digit: char| format!("{digit}:{}\n", digit.to_string().repeat(64));
    let path = shared.0.join("master.keys");
    fs::write(&path, digits.chars().map(line).collect::<String>())?;
    Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?)
}

fn rotated() -> Result<()> {
    let shared = Shared::new()?;
    write_keys(&shared, "a")?;
    let mut node = shared.node()?;
    node.build_geo("geo", &["--nidx", "2"])?;
    take(&node, "old", "under-the-old-key")?;
    let running = node.run("geo", 1)?[0].id.to_string();
    rotate(&shared, &mut node, &running).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

fn rotate(shared: &Shared, node: &mut Node, running: &str) -> Result<()> {
    // The new key alone opens nothing: the command says which one is missing, and what to do.
    write_keys(shared, "b")?;
    node.stop_server()?;
    node.start_server()?;
    let refused = node.pando(&["store", "rotate-key"])?;
    ensure!(
        refused.code == 1 && refused.stderr.contains("master key \"a\" is not among the known ones (b)"),
        "{refused}"
    );
    ensure!(refused.stderr.contains("hint: the master keys are read when the node starts"), "{refused}");
    write_keys(shared, "ba")?;
    node.stop_server()?;
    node.start_server()?;
    let segments = sealed(shared, "segments")?;
    let first = node.json(&["store", "rotate-key", "--json"])?;
    ensure!(first == serde_json::json!({"master": "b", "keys": 1, "wrapped": 1}), "{first}");
    let again = node.json(&["store", "rotate-key", "--json"])?;
    ensure!(again == serde_json::json!({"master": "b", "keys": 1, "wrapped": 0}), "{again}");
    ensure!(
        node.ok(&["store", "rotate-key"])?.contains("by master key \"b\", and by no other one: 1 data keys"),
        "for people"
    );
    ensure!(sealed(shared, "segments")? == segments, "data was written again");
    write_keys(shared, "b")?;
    let other = shared.node()?;
    let restored = || -> Result<()> {
        ensure!(other.ok(&["store", "verify"])?.contains("all of it is sound"), "not all opens");
        expect(&other, "old", "under-the-old-key")
    };
    restored().with_context(|| format!("log of the other node:\n{}", other.log_tail()))?;
    other.finish()?;
    write_keys(shared, "a")?;
    let late = shared.node()?;
    let refused = late.pando(&["create", "old"])?;
    ensure!(
        refused.code != 0 && refused.stderr.contains("master key \"b\" is not among the known ones (a)"),
        "{refused}"
    );
    late.finish()?;
    ensure!(node.ask(running, "GET /verify")?["intact"] == true, "a sandbox noticed it");
    take(node, "new", "under-the-new-key")
}

/// The objects of a kind, by their keys, in what nodes share.
fn sealed(shared: &Shared, kind: &str) -> Result<BTreeSet<PathBuf>> {
    let entries = fs::read_dir(shared.0.join("objects/realms/default").join(kind))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}
