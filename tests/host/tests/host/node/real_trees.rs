//! Real programs of many processes are forked, kept and paused while they work: databases with clients, servers with workers, a browser, terminals.
//!
//! Three of them go the whole way in each run, the others only with `PANDO_ROUNDS` (`make soak-node`): without it they are forked, and a copy of each
//! is forked again.

mod databases;
mod servers;
mod terminals;

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use testkit::{
    node::Node,
    runner::{self, Case},
};

use super::{
    files_only::{fork, with_idle},
    shared::Shared,
};

pub(crate) fn cases() -> Vec<Case> {
    let case = |program: &'static Program| {
        let body = || with_idle(|shared, node| goes_on(shared, node, program));
        let case = Case::new(format!("real_trees::{}", program.name), body);
        case.slow("a program of full size goes on in copies, and on other nodes")
    };
    [databases::ALL, servers::ALL, terminals::ALL].into_iter().flatten().map(case).collect()
}

/// A program of several processes. Each text is one for `sh`.
struct Program {
    name: &'static str,
    /// What has to be installed.
    needs: &'static [&'static str],
    /// Whether each run goes the whole way.
    always_whole: bool,
    /// Commands, with their tags.
    commands: &'static [(&'static str, &'static str)],
    /// Before the first of them.
    prepare: &'static str,
    /// Succeeds when they work.
    ready: &'static str,
    /// Succeeds if all of it has gone on and goes on.
    check: &'static str,
}

/// `rises FILE`: the file grows within ten seconds.
const RISES: &str = r#"rises() {
    size=$(wc -c < "$1"); n=0
    until test $(wc -c < "$1") -gt $size; do n=$((n+1)); test $n -lt 100 || { echo "$1 stays"; tail -3 "$1"; exit 1; }; sleep 0.1; done
}"#;

/// In two copies, in a copy of one, after a checkpoint and after a pause on another node, and in the source after each of it.
fn goes_on(shared: &Shared, node: &mut Node, program: &Program) -> Result<()> {
    let is_there = |tool: &&&str| std::env::split_paths("/usr/sbin:/usr/bin:/bin").any(|path| path.join(tool).exists());
    if let Some(missing) = program.needs.iter().find(|tool| !is_there(tool)) {
        return runner::skip(format!("{missing} is not installed"));
    }
    let id = node.run("idle", 1)?[0].id.to_string();
    node.shell(&id, program.prepare).context("prepare it")?;
    for (tag, command) in program.commands {
        node.ok(&["exec", "-d", "--tag", tag, &id, "--", "/bin/sh", "-c", command])?;
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while node.shell(&id, program.ready).is_err() {
        ensure!(Instant::now() < deadline, "it is not ready");
        sleep(Duration::from_millis(200));
    }
    let check = |node: &Node, id: &str, what: &str| {
        let check = format!("set -e\n{RISES}\n{}", program.check);
        node.shell(id, &check).map(drop).with_context(|| format!("{what}, sandbox {id}"))
    };
    check(node, &id, "before all")?;
    let copies = fork(node, &["-n", "2", &id])?;
    let next = fork(node, &[&copies[0]])?.remove(0);
    for (id, what) in
        [(&id, "the source"), (&copies[0], "a copy"), (&copies[1], "another"), (&next, "a copy of a copy")]
    {
        check(node, id, what)?;
    }
    for copy in copies.iter().chain([&next]) {
        node.ok(&["kill", copy])?;
    }
    if !program.always_whole && std::env::var_os("PANDO_ROUNDS").is_none() {
        return node.ok(&["kill", &id]).map(drop);
    }
    node.ok(&["checkpoint", &id, "--name", "tree"])?;
    check(node, &id, "the source after a checkpoint")?;
    let other = shared.distant_node()?;
    let restored = other.run("tree", 1)?[0].id.to_string();
    check(&other, &restored, "a start of the checkpoint")?;
    other.ok(&["kill", &restored])?;
    node.ok(&["pause", &id])?;
    other.ok(&["resume", &id])?;
    check(&other, &id, "after a pause, on another node")?;
    other.ok(&["kill", &id])?;
    other.finish()?;
    node.ok(&["checkpoint", "rm", "tree"]).map(drop)
}
