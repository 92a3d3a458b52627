//! Forks and checkpoints of a sandbox in which commands write files all the while.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use pando_host_tests::{
    node::{Node, Running},
    runner::Case,
};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("beside_commands::files_of_copies_are_of_one_instant_while_commands_write", || case(one_instant)),
        Case::new("beside_commands::a_builder_killed_while_all_stands_still_leaves_all_going_on", || {
            case(killed_builder)
        }),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start()?;
    node.build_geo("geo", &["--nidx", "2"])?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// Among many files, one that is always there under one of two names, one that never is there for long, and two that grow by turns. Ends when
/// it finds /tmp/stop; an error of any call ends it with one.
const WRITER: &str = "
import os
for d in 'amz': os.makedirs('/tmp/' + d, exist_ok=True)
for k in range(1500): open('/tmp/m/%d' % k, 'w').write('x')
open('/tmp/a/token', 'w').write('t')
one, two = open('/tmp/a/one', 'ab', 0), open('/tmp/z/two', 'ab', 0)
print('ready', flush=True)
n = 0
while not os.path.exists('/tmp/stop'):
    os.rename('/tmp/a/token', '/tmp/z/token'); open('/tmp/m/short', 'w').close(); os.unlink('/tmp/m/short')
    one.write(b'.'); two.write(b'.')
    os.rename('/tmp/z/token', '/tmp/a/token')
    n += 1
print(n)
";

fn begin_writer(node: &Node, id: &str) -> Result<Running> {
    let writer = node.begin(&["exec", id, "--", "/usr/bin/python3", "-c", WRITER])?;
    ensure!(writer.first_line()? == "ready", "the writer did not begin");
    Ok(writer)
}

fn end_writer(node: &Node, id: &str, writer: Running) -> Result<()> {
    let before = written(node, id)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while written(node, id)? == before {
        ensure!(Instant::now() < deadline, "the writer stands still");
    }
    node.shell(id, "touch /tmp/stop")?;
    let answer = writer.end()?;
    ensure!(answer.code == 0, "the writer: {answer}");
    Ok(())
}

fn written(node: &Node, id: &str) -> Result<u64> {
    Ok(node.shell(id, "stat -c %s /tmp/a/one")?.trim().parse()?)
}

/// What a copy has of the files.
fn expect_whole(node: &Node, copy: &str) -> Result<()> {
    let seen = node.shell(
        copy,
        "ls /tmp/a /tmp/z | grep -c token; ls /tmp/m | grep -c '^[0-9]*$'; stat -c %s /tmp/a/one /tmp/z/two | xargs",
    )?;
    let [tokens, others, sizes] = seen.lines().collect::<Vec<_>>()[..] else { anyhow::bail!("{copy}: {seen:?}") };
    let sizes: Vec<u64> = sizes.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    ensure!(tokens == "1" && others == "1500", "{copy}: {tokens} tokens, {others} other files");
    ensure!(matches!(sizes[..], [one, two] if one == two || one == two + 1), "{copy}: {sizes:?} of one instant");
    Ok(())
}

fn one_instant(node: &Node) -> Result<()> {
    let id = node.run("geo", 1)?[0].id.to_string();
    node.ask(&id, "POST /write?key=note&value=kept")?;
    let writer = begin_writer(node, &id)?;
    for _ in 0..8 {
        let forked = node.json(&["fork", &id, "--json"])?;
        let copy = forked["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
        expect_whole(node, &copy)?;
        ensure!(node.ask(&copy, "GET /state")?["values"]["note"] == "kept", "{copy}: another memory");
        node.ok(&["rm", &copy])?;
    }
    for round in 0..2 {
        let name = format!("kept{round}");
        node.ok(&["checkpoint", &id, "--name", &name])?;
        let copy = node.run(&name, 1)?[0].id.to_string();
        expect_whole(node, &copy)?;
        ensure!(node.ask(&copy, "GET /verify")?["intact"] == true, "{copy} is not intact");
        node.ok(&["rm", &copy])?;
        node.ok(&["checkpoint", "rm", &name])?;
    }
    end_writer(node, &id, writer)
}

fn killed_builder(node: &Node) -> Result<()> {
    let sandbox = node.run("geo", 1)?.remove(0);
    let id = sandbox.id.to_string();
    let writer = begin_writer(node, &id)?;
    // So that copying takes a while.
    node.shell(
        &id,
        "for k in $(seq 4000); do echo $k > /tmp/m/x$k; done; rm /tmp/m/x*; head -c 200M /dev/zero > /tmp/large",
    )?;
    let group = node.inspect(&id)?.cgroup;
    let mut killed = 0;
    for _ in 0..4 {
        let fork = node.begin(&["fork", &id])?;
        killed += u32::from(kill_builder(sandbox.main_pid, &group)?);
        fork.end()?;
        let before = written(node, &id)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while written(node, &id)? == before {
            ensure!(Instant::now() < deadline, "all stands still");
        }
        node.ask(&id, "GET /state")?;
    }
    ensure!(killed > 0, "no builder was met while all stood still");
    eprintln!("    {killed} of 4 builders were killed while all stood still");
    end_writer(node, &id, writer)
}

/// Kills the builder that captures a program as soon as the group is frozen; false if that was missed.
fn kill_builder(main: i32, group: &str) -> Result<bool> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        let status = fs::read_to_string(format!("/proc/{main}/status"))?;
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")?.trim().parse::<i32>().ok());
        let frozen =
            || fs::read_to_string(format!("{group}/cgroup.events")).is_ok_and(|text| text.contains("frozen 1"));
        if let Some(builder) = tracer.and_then(Pid::from_raw)
            && frozen()
        {
            return Ok(kill_process(builder, Signal::KILL).is_ok());
        }
    }
    Ok(false)
}
