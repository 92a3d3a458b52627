//! The three example services: warmed, forked, asked, written to, looked at, removed.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::{node::Node, runner::Case};

const COPIES: usize = 4;

pub(crate) fn cases() -> Vec<Case> {
    let services: [(&str, &[&str]); 3] =
        [("geo.py", &["/usr/bin/python3"]), ("geo-go", &[]), ("server.js", &["/usr/bin/node"])];
    services
        .into_iter()
        .map(|(service, interpreter)| {
            Case::new(format!("services::{service}_keeps_its_state_in_every_copy"), move || {
                let node = Node::start()?;
                whole_life(&node, service, interpreter).with_context(|| node.log_tail())?;
                node.finish()
            })
            .slow("it makes many copies of a program of full size, and compares what each answers")
        })
        .collect()
}

fn whole_life(node: &Node, service: &str, interpreter: &[&str]) -> Result<()> {
    let program = node.program(service);
    let mut build = vec!["template", "build", "service", "--json", "--"];
    build.extend(interpreter);
    build.push(&program);
    let template = node.json(&build)?;
    ensure!(template["state"] == "ready", "{template}");
    let copies = node.run("service", COPIES)?;
    let ids: Vec<&str> = copies.iter().map(|copy| copy.id.as_str()).collect();
    let states: Vec<Value> = ids.iter().map(|id| node.ask(id, "GET /state")).collect::<Result<_>>()?;
    expect_intact(node, &ids, &states, &template)?;
    expect_ticking(node, &ids, &states)?;
    expect_separate_writes(node, &ids)?;
    expect_exec_and_logs(node, &ids)?;
    expect_listed(node, &ids)?;
    node.ok(&["kill", ids[0]])?;
    let gone = node.pando(&["inspect", ids[0]])?;
    ensure!(gone.code == 4, "a removed sandbox: {gone}");
    node.ask(ids[1], "GET /health")?;
    Ok(())
}

fn expect_intact(node: &Node, ids: &[&str], states: &[Value], template: &Value) -> Result<()> {
    for (id, state) in ids.iter().zip(states) {
        ensure!(state["digest"] == states[0]["digest"], "digests differ: {states:?}");
        // Go starts further threads whenever it likes.
        let threads = template["facts"]["threads"].as_u64();
        ensure!(state["threads"].as_u64() >= threads, "{id} lost one of {threads:?} threads: {state}");
        ensure!(state["hostname"] == *id, "{id} has another's host name: {state}");
        ensure!(state["writes"] == 0 && state["values"].as_object().is_some_and(serde_json::Map::is_empty), "{state}");
        let verified = node.ask(id, "GET /verify")?;
        ensure!(verified["intact"] == true && verified["digest"] == state["digest"], "{id}: {verified}");
        node.ask(id, "GET /nearby?lat=48.1&lon=11.6")?;
    }
    let namespaces: BTreeSet<_> = ids.iter().map(|id| network_namespace(node, id)).collect::<Result<_>>()?;
    ensure!(namespaces.len() == ids.len(), "copies share a network namespace: {namespaces:?}");
    Ok(())
}

fn network_namespace(node: &Node, id: &str) -> Result<std::path::PathBuf> {
    let main = node.inspect(id)?.sandbox.main_pid;
    let own = std::fs::read_link("/proc/self/ns/net")?;
    let found = std::fs::read_link(format!("/proc/{main}/ns/net"))?;
    ensure!(found != own, "{id} is in the host's network namespace");
    Ok(found)
}

fn expect_ticking(node: &Node, ids: &[&str], states: &[Value]) -> Result<()> {
    std::thread::sleep(std::time::Duration::from_millis(600));
    for (id, before) in ids.iter().zip(states) {
        let after = node.ask(id, "GET /state")?;
        ensure!(after["ticks"].as_i64() > before["ticks"].as_i64(), "{id}: threads or timers stand still: {after}");
    }
    Ok(())
}

fn expect_separate_writes(node: &Node, ids: &[&str]) -> Result<()> {
    for id in ids {
        node.ask(id, &format!("POST /write?key=own&value={id}"))?;
    }
    node.ask(ids[0], "POST /write?key=first&value=only")?;
    for id in ids {
        let state = node.ask(id, "GET /state")?;
        let first = *id == ids[0];
        ensure!(state["values"]["own"] == *id && state["values"]["first"].is_string() == first, "{id}: {state}");
        ensure!(state["writes"] == if first { 2 } else { 1 }, "{id}: {state}");
    }
    let later = node.run("service", 1)?;
    let state = node.ask(later[0].id.as_str(), "GET /state")?;
    ensure!(state["writes"] == 0, "a later start sees a write to an earlier copy: {state}");
    node.ok(&["kill", later[0].id.as_str()])?;
    Ok(())
}

fn expect_exec_and_logs(node: &Node, ids: &[&str]) -> Result<()> {
    let id = ids[0];
    let printed = node.shell(id, "id -u; hostname; echo from exec > /tmp/exec; cat /tmp/exec")?;
    ensure!(printed == format!("1000\n{id}\nfrom exec\n"), "{printed:?}");
    ensure!(!node.shell(ids[1], "ls /tmp")?.contains("exec"), "a file in /tmp of {id} is seen in {}", ids[1]);
    let failing = node.pando(&["exec", id, "--", "/bin/sh", "-c", "echo to stderr >&2; exit 43"])?;
    ensure!((failing.code, failing.stderr.as_str()) == (43, "to stderr\n"), "{failing}");
    let killed = node.pando(&["exec", id, "--", "/bin/sh", "-c", "kill -TERM $$"])?;
    ensure!(killed.code == 143, "{killed}");
    let environment = node.ok(&[
        "exec",
        id,
        "--env",
        "GREETING=hello",
        "--cwd",
        "/tmp",
        "--",
        "/bin/sh",
        "-c",
        "echo $GREETING; pwd",
    ])?;
    ensure!(environment == "hello\n/tmp\n", "{environment:?}");
    // What the program printed before it was forked belongs to the template; a copy begins with nothing.
    let logs = node.ok(&["logs", id])?;
    ensure!(!logs.contains("ready on"), "the copy's log has the original's output: {logs:?}");
    Ok(())
}

fn expect_listed(node: &Node, ids: &[&str]) -> Result<()> {
    let listed: BTreeSet<String> = node.ps()?.into_iter().map(|sandbox| sandbox.id.to_string()).collect();
    ensure!(listed == ids.iter().map(|id| (*id).to_owned()).collect(), "ps: {listed:?}, started: {ids:?}");
    for id in ids {
        let detail = node.inspect(id)?;
        ensure!(detail.sandbox.state == api::SandboxState::Running, "{detail:?}");
        ensure!(detail.processes.len() == 2, "pid 1 and the program: {detail:?}");
        ensure!(detail.processes.iter().any(|process| process.pid == detail.sandbox.main_pid), "{detail:?}");
        ensure!(detail.pss_bytes > 0 && detail.rss_bytes >= detail.pss_bytes, "{detail:?}");
    }
    ensure!(node.ok(&["ls"])?.lines().count() == ids.len() + 1, "ps as a table");
    Ok(())
}
