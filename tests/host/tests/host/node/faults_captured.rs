//! Captures of sandboxes whose checkpoint, or whose pager, is not what it was.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testkit::node::Node;

use super::{
    checkpoint::pagers,
    faults::{Away, expect_right, expect_starts, objects, take, without},
    shared::Shared,
};

/// Its memory is all there: nothing of what it was started from is needed.
pub(crate) fn kept_without(shared: &Shared, node: &Node, other: &Node) -> Result<()> {
    take(node, "warm")?;
    let manifest = node.json(&["checkpoint", "inspect", "warm", "--json"])?["manifest"].clone();
    let manifest = manifest.as_str().context("no manifest")?;
    let is_it = |path: &PathBuf| path.to_string_lossy().contains(manifest);
    let object = objects(shared, "manifests")?.into_iter().find(is_it).context("no such object")?;
    let id = other.run("warm", 1)?[0].id.to_string();
    expect_right(other, &id, "warm")?;
    for missing in [true, false] {
        without(&object, missing, || other.ok(&["checkpoint", &id, "--name", "whole", "--replace"]).map(drop))?;
        other.ok(&["checkpoint", "verify", "whole"])?;
        let copy = node.run("whole", 1)?[0].id.to_string();
        expect_right(node, &copy, "warm")?;
        node.ok(&["kill", &copy])?;
        node.ok(&["template", "rm", "whole"])?;
    }
    other.ok(&["kill", "--all", "--force"])?;
    other.ok(&["template", "rm", "warm"]).map(drop)
}

/// Those of the pager's processes that answer and watch are killed, so that nobody can say what has not arrived yet.
pub(crate) fn killed_watchers(store: &dyn Away, node: &Node, other: &Node) -> Result<()> {
    take(node, "warm")?;
    let id = other.run("warm", 1)?[0].id.to_string();
    store.set(true)?;
    let is_single = |pid: &i32| fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() == 1);
    let watchers: Vec<Pid> = pagers(other)?.into_iter().filter(is_single).filter_map(Pid::from_raw).collect();
    ensure!(watchers.len() == 2, "{watchers:?}");
    for signal in [Signal::STOP, Signal::KILL] {
        watchers.iter().try_for_each(|pid| kill_process(*pid, signal))?;
    }
    for command in [vec!["fork", &id], vec!["checkpoint", &id, "--name", "holes"], vec!["pause", &id]] {
        let refused = other.pando(&command)?;
        ensure!(refused.code == 5 && refused.stderr.contains("has not arrived"), "{command:?}: {refused}");
    }
    store.set(false)?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let copy = loop {
        let forked = other.pando(&["fork", &id, "--json"])?;
        if forked.code == 0 {
            break serde_json::from_str::<Value>(&forked.stdout)?["sandboxes"][0]["id"].clone();
        }
        ensure!(Instant::now() < deadline && forked.stderr.contains("has not arrived"), "{forked}");
    };
    expect_right(other, copy.as_str().context("no copy")?, "warm")?;
    expect_right(other, &id, "warm")?;
    other.ok(&["kill", "--all", "--force"])?;
    other.ok(&["template", "rm", "warm"])?;
    // With other processes in the place of those.
    expect_starts(other, "warm")
}
