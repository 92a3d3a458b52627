//! Snapshots and templates of `pando serve`, by plain HTTP.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::{node::Node, runner::Case};

use super::serve::{Server, case, kill_unanswered, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("serve::a_snapshot_that_a_kill_broke_off_is_swept", || case(broken_off)),
        Case::new("serve::reading_notes_no_template", || case(reading)),
    ]
}

/// Holds the database's one writer until its input ends.
const LOCK: &str = r#"
import sqlite3, sys
sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10).execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"#;

/// What a user of the node calls as the server might.
const OF_USER: &str = "snapshot-0123456789abcdef";

/// The names of the node's checkpoints.
fn checkpoints(node: &Node) -> Result<Vec<String>> {
    let all: Value = serde_json::from_str(&node.ok(&["checkpoint", "ls", "--json"])?)?;
    let all = all.as_array().context("no list")?;
    let mut names = all.iter().map(|one| text(one, "name").map(str::to_owned)).collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// The server dies when the store has a snapshot and the database does not know it.
fn broken_off(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let sandbox = server.create(json!({}))?;
    let id = text(&sandbox, "sandboxID")?;
    node.ok(&["checkpoint", id, "--name", OF_USER])?;
    let path = format!("/sandboxes/{id}/snapshots");
    let kept = server.api("POST", &path, Some(json!({"name": "kept"})))?.expect(201)?.json()?;
    let before = checkpoints(node)?;
    ensure!(before.len() == 2, "{before:?}");
    let noted = node.state.join("snapshots");
    ensure!(fs::read_dir(&noted)?.next().is_none(), "what has a row has no note");
    // As if the server had been killed after the row was there.
    let named = before.iter().find(|name| *name != OF_USER).context("no snapshot")?;
    fs::write(noted.join(named), "")?;
    let mut lock = Command::new("python3");
    lock.args(["-c", LOCK]).arg(node.state.join("control.db")).stdin(Stdio::piped()).stdout(Stdio::piped());
    thread::scope(|scope| -> Result<()> {
        let mut lock = lock.spawn().context("python3 is missing")?;
        let said = BufReader::new(lock.stdout.take().context("no output")?).lines().next();
        ensure!(said.context("it is not locked")?? == "locked");
        let taking = scope.spawn(|| server.api("POST", &path, Some(json!({}))));
        let deadline = Instant::now() + Duration::from_secs(20);
        while checkpoints(node)?.len() == before.len() {
            ensure!(Instant::now() < deadline, "no snapshot is taken");
            thread::sleep(Duration::from_millis(10));
        }
        kill_unanswered(node, lock, taking)
    })?;
    node.start_server()?;
    let again = Server::of(node)?;
    ensure!(checkpoints(node)? == before, "{:?} instead of {before:?}", checkpoints(node)?);
    ensure!(fs::read_dir(&noted)?.next().is_none(), "a note stays");
    ensure!(node.log()?.contains(OF_USER), "nothing is said of what has no row");
    let copy = again.create(json!({"templateID": text(&kept, "snapshotID")?}))?;
    for id in [text(&copy, "sandboxID")?, id] {
        again.api("DELETE", &format!("/sandboxes/{id}"), None)?.expect(204)?;
    }
    Ok(())
}

/// The server itself notes templates of the node, each once. A name that is not found adds nothing.
fn reading(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let found = |name: &str| server.api("GET", &format!("/templates/aliases/{name}"), None);
    let deadline = Instant::now() + Duration::from_secs(20);
    while found("plain")?.0 != 200 {
        ensure!(Instant::now() < deadline, "it is not noted");
        thread::sleep(Duration::from_millis(20));
    }
    let sandbox = server.create(json!({}))?;
    let id = text(&sandbox, "sandboxID")?;
    for name in ["kept", OF_USER] {
        node.ok(&["checkpoint", id, "--name", name])?;
        let created = node.ok(&["create", name])?;
        let copy = created.lines().last().and_then(|line| line.split_whitespace().next()).context("no copy")?;
        node.ok(&["kill", copy])?;
        ensure!(node.ok(&["template", "ls"])?.contains(name), "it was restored");
    }
    for name in ["nobody%2Fplain", "kept", OF_USER] {
        let status = found(name)?.0;
        ensure!(matches!(status, 403 | 404), "{name}: {status}");
    }
    for name in ["plain:nope", "kept", OF_USER] {
        server.api("POST", "/v2/sandboxes", Some(json!({"templateID": name})))?.expect(404).context(name)?;
    }
    ensure!(builds(node)? == 1, "{} builds", builds(node)?);
    server.api("DELETE", &format!("/sandboxes/{id}"), None)?.expect(204)?;
    for name in ["kept", OF_USER] {
        node.ok(&["checkpoint", "rm", name])?;
        node.ok(&["template", "rm", name])?;
    }
    Ok(())
}

/// How many builds the database has.
fn builds(node: &Node) -> Result<u64> {
    const COUNT: &str = r#"
import sqlite3, sys
print(sqlite3.connect(sys.argv[1], timeout=10).execute("SELECT COUNT(*) FROM template_builds").fetchone()[0])
"#;
    let counted = Command::new("python3").args(["-c", COUNT]).arg(node.state.join("control.db")).output()?;
    ensure!(counted.status.success(), "{counted:?}");
    Ok(String::from_utf8_lossy(&counted.stdout).trim().parse()?)
}
