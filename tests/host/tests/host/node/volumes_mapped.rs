//! Programs that have files of a volume mapped and locked: forked, kept and paused in the middle of their work.

use anyhow::{Context, Result, ensure};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

use super::volumes::fails;

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn(&Node) -> Result<()>| {
        Case::new(format!("volumes_mapped::{name}"), move || {
            let node =
                Node::start_with(Setting { arguments: vec!["--pool".into(), "3".into()], ..Setting::default() })?;
            build_mapper(&node)?;
            body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
            node.finish()
        })
    };
    vec![
        case("live_forks_map_and_lock_files_of_their_own", forked),
        case("a_checkpoint_maps_and_locks_files_of_its_own", kept),
        case("a_pause_keeps_mappings_and_locks", paused),
        case("a_program_that_is_a_file_of_a_volume_is_refused", program),
    ]
}

fn build_mapper(node: &Node) -> Result<()> {
    let mapper = node.program("mapper.py");
    let build = ["template", "build", "mapper", "--mount-point", "/workspace", "--cwd", "/workspace", "--port", "8080"];
    node.ok(&[&build[..], &["--", "/usr/bin/python3", &mapper]].concat()).map(drop)
}

/// A sandbox in the middle of its work, on volume `ws`.
fn working(node: &Node) -> Result<String> {
    node.ok(&["volume", "create", "ws"])?;
    let started = node.json(&["create", "mapper", "--volume", "ws:/workspace", "--json"])?;
    let id = started["sandboxes"][0]["id"].as_str().context("not started")?.to_owned();
    node.shell(&id, "touch work; sleep 1")?;
    expect_in_step(node, &id)?;
    Ok(id)
}

/// The program goes on: what it finds in files, mappings and memory is equal each time. Its locks are its own: as long as it has the
/// database open, nobody else takes it out of WAL mode, and others read and write beside it.
fn expect_in_step(node: &Node, id: &str) -> Result<()> {
    const LOOK: &str = "
import sqlite3, time
database = sqlite3.connect('/workspace/numbers.db', isolation_level=None, timeout=5)
rows = lambda: database.execute('select count(*) from numbers').fetchone()[0]
before = rows()
time.sleep(0.5)
assert rows() > before + 5, f'it stands still at {rows()}'
assert database.execute('pragma integrity_check').fetchone() == ('ok',)
database.execute('create table if not exists others (name text)')
try:
    print('not locked:', database.execute('pragma journal_mode = delete').fetchone())
except sqlite3.OperationalError as error:
    print(error)
";
    let said = node
        .ok(&["exec", id, "--", "/usr/bin/python3", "-c", LOOK])
        .with_context(|| format!("{id}; its log: {}", node.ok(&["logs", id]).unwrap_or_default()))?;
    ensure!(said.trim() == "database is locked", "{id}: {said}");
    Ok(())
}

fn remove_all(node: &Node) -> Result<()> {
    node.ok(&["kill", "--all", "--force"])?;
    let volumes = node.json(&["volume", "ls", "--json"])?;
    for volume in volumes.as_array().context("no volumes")? {
        node.ok(&["volume", "rm", volume["name"].as_str().context("no name")?])?;
    }
    Ok(())
}

fn forked(node: &Node) -> Result<()> {
    let original = working(node)?;
    let mut source = original.clone();
    for round in 0..3 {
        let forked = node.json(&["fork", &source, "-n", "2", "--json"])?;
        let copies = forked["sandboxes"].as_array().context("no copies")?;
        ensure!(copies.len() == 2, "{forked}");
        eprintln!("    the source stood still for {} us", forked["pause_us"]);
        for copy in copies {
            expect_in_step(node, copy["id"].as_str().context("no id")?).with_context(|| format!("round {round}"))?;
        }
        expect_in_step(node, &original).context("the original")?;
        // The next ones are copies of a copy.
        source = copies[1]["id"].as_str().context("no id")?.to_owned();
    }
    remove_all(node)
}

fn kept(node: &Node) -> Result<()> {
    let original = working(node)?;
    node.ok(&["checkpoint", &original, "--name", "warm"])?;
    expect_in_step(node, &original).context("the original")?;
    node.ok(&["checkpoint", "verify", "warm"])?;
    let started = node.json(&["create", "warm", "-n", "3", "--json"])?;
    for copy in started["sandboxes"].as_array().context("not started")? {
        expect_in_step(node, copy["id"].as_str().context("no id")?)?;
    }
    remove_all(node)?;
    node.ok(&["template", "rm", "warm"])?;
    node.ok(&["checkpoint", "rm", "warm"]).map(drop)
}

fn paused(node: &Node) -> Result<()> {
    let id = working(node)?;
    for _ in 0..3 {
        node.ok(&["pause", &id])?;
        node.ok(&["resume", &id])?;
        expect_in_step(node, &id)?;
    }
    remove_all(node)
}

fn program(node: &Node) -> Result<()> {
    let id = working(node)?;
    node.shell(&id, "cp /usr/bin/python3 program; touch become; sleep 0.5")?;
    for command in [&["fork", &id][..], &["pause", &id], &["checkpoint", &id, "--name", "warm"]] {
        fails(node, command, 5, "/workspace/program, which is on the volume at /workspace")?;
    }
    remove_all(node)
}
