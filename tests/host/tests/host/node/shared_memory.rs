//! /dev/shm: a filesystem in memory that every copy has as the original had it.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

use super::{checkpoint::take, shared::Shared};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("shared_memory::it_is_in_memory_bounded_and_each_sandboxs_own", || case(bounded)),
        Case::new("shared_memory::it_counts_against_the_memory_limit", || case(counted)),
        Case::new("shared_memory::copies_of_a_template_have_what_it_held_also_parked_ones", || case(template)),
        Case::new("shared_memory::a_live_fork_has_what_its_original_holds", || case(fork)),
        Case::new("shared_memory::a_checkpoint_takes_it_to_another_node", || case(checkpoint)),
        Case::new("shared_memory::a_paused_sandbox_finds_it_again", || case(pause)),
        Case::new("shared_memory::files_that_older_layers_have_there_stay_files_of_the_root", older_layers),
        Case::new("shared_memory::a_program_that_is_a_file_in_it_is_refused_by_name", || case(program_file)),
    ]
}

fn case(body: fn(&Shared, &Node) -> Result<()>) -> Result<()> {
    let shared = Shared::new()?;
    let node = shared.node()?;
    let program = node.program("shm.py");
    node.ok(&["template", "build", "shm", "--port", "8080", "--", "/usr/bin/python3", &program])?;
    body(&shared, &node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

fn run(node: &Node, name: &str) -> Result<String> {
    Ok(node.run(name, 1)?[0].id.to_string())
}

/// What the program sees; all ways to one file must show the same, with `value` in the mapped one.
fn look(node: &Node, id: &str, request: &str, value: &str) -> Result<Value> {
    let seen = node.ask(id, request)?;
    let views = &seen["views"];
    let expected = serde_json::json!({
        "shared": [value], "gone": ["gone"], "private": "private",
        "cwd": "/dev/shm/folder/deep True", "events": [0, true],
    });
    ensure!(*views == expected, "{id}: {views}, not {expected}");
    ensure!(seen["files"].as_object().is_some_and(|files| files.len() >= 14), "{id}: {}", seen["files"]);
    Ok(seen)
}

fn expect_same(id: &str, found: &Value, expected: &Value) -> Result<()> {
    let (found, expected) = (found.as_object().context("no files")?, expected.as_object().context("no files")?);
    for path in found.keys().chain(expected.keys()) {
        ensure!(
            found.get(path) == expected.get(path),
            "{id}: {path}: {:?}, not {:?}",
            found.get(path),
            expected.get(path)
        );
    }
    Ok(())
}

/// Has the program write into its mapping, and a command beside it write files. What is there then.
fn change(node: &Node, id: &str, value: &str) -> Result<Value> {
    node.shell(id, &format!("echo {value} > /dev/shm/{value}; rm -f /dev/shm/fifo; mkdir /dev/shm/more-{value}"))?;
    Ok(look(node, id, &format!("GET /write?value={value}"), value)?["files"].clone())
}

fn bounded(_: &Shared, node: &Node) -> Result<()> {
    let (id, other) = (run(node, "shm")?, run(node, "shm")?);
    ensure!(
        node.shell(&id, "stat -f -c %T /dev/shm; stat -c '%a %U' /dev/shm")? == "tmpfs\n1777 root\n",
        "another kind"
    );
    let full = "head -c 300M /dev/zero 2>&1 > /dev/shm/full; df -B1M --output=size,avail /dev/shm | tail -1 | xargs";
    let said = node.shell(&id, full)?;
    ensure!(said.contains("No space left on device") && said.ends_with("256 0\n"), "not bounded: {said}");
    let many = "rm /dev/shm/full; cd /dev/shm; mkdir n; cd n; seq 20000 | xargs touch 2>&1 | tail -1; ls | wc -l; rm -r /dev/shm/n";
    let said = node.shell(&id, many)?;
    let count: u64 = said.lines().last().context("nothing said")?.parse()?;
    ensure!(said.contains("No space left on device") && (16_000..=16_384).contains(&count), "not bounded: {said}");
    ensure!(node.shell(&other, "ls /dev/shm")? == node.shell(&id, "ls /dev/shm")?, "not its own");
    look(node, &id, "GET /", "first").map(drop)
}

fn counted(_: &Shared, node: &Node) -> Result<()> {
    let sleeper = ["--memory", "128M", "--ready", "true", "--", "/bin/sleep", "1000"];
    node.ok(&[&["template", "build", "small"][..], &sleeper].concat())?;
    let (id, other) = (run(node, "small")?, run(node, "small")?);
    let fill = "head -c 200M /dev/zero > /dev/shm/full && echo all of it";
    let answer = node.pando(&["exec", &id, "--", "/bin/sh", "-c", fill])?;
    ensure!(!answer.stdout.contains("all of it"), "200 MiB of 128: {answer}");
    ensure!(answer.code == 137 || answer.stderr.contains("Killed"), "{answer}");
    ensure!(node.shell(&other, "ls /dev/shm")?.is_empty(), "the other sandbox has it");
    Ok(())
}

fn template(_: &Shared, node: &Node) -> Result<()> {
    for _ in 0..3 {
        let id = run(node, "shm")?;
        let seen = look(node, &id, "GET /", "first")?;
        expect_same(&id, &seen["files"], &seen["born"])?;
        change(node, &id, "own")?;
        // It is learned from when it goes.
        node.ok(&["kill", &id])?;
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while node.info()?.pool.ahead == 0 {
        ensure!(Instant::now() < deadline, "no copy is forked ahead");
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = run(node, "shm")?;
    let seen = look(node, &id, "GET /", "first")?;
    expect_same(&id, &seen["files"], &seen["born"])
}

fn fork(_: &Shared, node: &Node) -> Result<()> {
    let id = run(node, "shm")?;
    let held = change(node, &id, "changed")?;
    let forked = node.json(&["fork", &id, "-n", "2", "--json"])?;
    let copy = |n: usize| forked["sandboxes"][n]["id"].as_str().context("no copy").map(str::to_owned);
    for copy in [copy(0)?, copy(1)?] {
        expect_same(&copy, &look(node, &copy, "GET /", "changed")?["files"], &held)?;
        change(node, &copy, "copied!")?;
    }
    expect_same(&id, &look(node, &id, "GET /", "changed")?["files"], &held)?;
    // A fork of a fork, whose zygote is a branch.
    let again =
        node.json(&["fork", &copy(0)?, "--json"])?["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
    look(node, &again, "GET /", "copied!").map(drop)
}

fn checkpoint(shared: &Shared, node: &Node) -> Result<()> {
    let id = run(node, "shm")?;
    let held = change(node, &id, "kept")?;
    take(node, &id, "warm")?;
    change(node, &id, "later")?;
    let other = shared.node()?;
    let restored = (|| {
        for _ in 0..2 {
            let copy = run(&other, "warm")?;
            expect_same(&copy, &look(&other, &copy, "GET /", "kept")?["files"], &held)?;
            let forked = other.json(&["fork", &copy, "--json"])?;
            let forked = forked["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
            expect_same(&forked, &look(&other, &forked, "GET /", "kept")?["files"], &held)?;
        }
        Ok::<_, anyhow::Error>(())
    })();
    restored.with_context(|| format!("log of the second node:\n{}", other.log_tail()))?;
    other.finish()
}

fn pause(_: &Shared, node: &Node) -> Result<()> {
    let id = run(node, "shm")?;
    for value in ["one", "other"] {
        let held = change(node, &id, value)?;
        node.ok(&["pause", &id])?;
        node.ok(&["resume", &id])?;
        expect_same(&id, &look(node, &id, "GET /", value)?["files"], &held)?;
    }
    Ok(())
}

/// As checkpoints and sandboxes have them that are older than this filesystem.
fn older_layers() -> Result<()> {
    // Without a pool, whose sandboxes have looked at the layers before.
    let arguments = ["--pool", "0", "--layers", "copy"].map(str::to_owned).to_vec();
    let node = Node::start_with(Setting { arguments, ..Setting::default() })?;
    node.build_geo("geo", &["--nidx", "2"])?;
    let mut entries = fs::read_dir(node.state.join("templates/geo"))?.flatten().map(|entry| entry.path());
    let layer = entries.find(|path| path.is_dir()).context("no layer")?;
    for directory in ["dev", "dev/shm"] {
        fs::create_dir_all(layer.join(directory))?;
    }
    fs::set_permissions(layer.join("dev/shm"), Permissions::from_mode(0o1777))?;
    fs::write(layer.join("dev/shm/older"), "older\n")?;
    let id = node.run("geo", 1)?[0].id.to_string();
    node.shell(&id, "echo more > /dev/shm/more")?;
    let forked = node.json(&["fork", &id, "--json"])?;
    let copy = forked["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
    for id in [id, copy] {
        let seen = node.shell(&id, "cat /dev/shm/older /dev/shm/more; stat -f -c %T /dev/shm")?;
        ensure!(seen == "older\nmore\noverlayfs\n", "{id}: {seen}");
    }
    node.finish()
}

fn program_file(_: &Shared, node: &Node) -> Result<()> {
    let command = "cp /usr/bin/sleep /dev/shm/s; exec /dev/shm/s 1000";
    let arguments = ["template", "build", "file", "--ready", "true", "--", "/bin/sh", "-c", command];
    let answer = node.pando(&arguments)?;
    ensure!(answer.code == 5 && answer.stderr.contains("/dev/shm/s"), "{answer}");
    Ok(())
}
