//! Forks and checkpoints of a sandbox in which commands write files all the while.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use testkit::{
    node::{Node, Running},
    runner::Case,
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("beside_commands::files_of_copies_are_of_one_instant_while_commands_write", || {
            case(|node| one_instant(node, "/tmp"))
        })
        .slow("it forks again and again beside commands that write"),
        Case::new("beside_commands::files_in_memory_are_of_that_instant_too", || {
            case(|node| one_instant(node, "/dev/shm"))
        })
        .slow("it forks again and again beside commands that write"),
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
/// it finds a file `stop`; an error of any call ends it with one.
const WRITER: &str = "
import os
os.chdir(os.environ['PLACE'])
for d in 'amz': os.makedirs(d, exist_ok=True)
for k in range(1500): open('m/%d' % k, 'w').write('x')
open('a/token', 'w').write('t')
one, two = open('a/one', 'ab', 0), open('z/two', 'ab', 0)
print('ready', flush=True)
n = 0
while not os.path.exists('stop'):
    os.rename('a/token', 'z/token'); open('m/short', 'w').close(); os.unlink('m/short')
    one.write(b'.'); two.write(b'.')
    os.rename('z/token', 'a/token')
    n += 1
print(n)
";

fn begin_writer(node: &Node, id: &str, place: &str) -> Result<Running> {
    let variable = format!("PLACE={place}");
    let writer = ["exec", "-d", "--tag", "writer", "--env", &variable, id, "--", "/usr/bin/python3", "-c", WRITER];
    node.ok(&writer)?;
    let writer = node.begin(&["attach", id, "writer"])?;
    ensure!(writer.first_line()? == "ready", "the writer did not begin");
    Ok(writer)
}

fn end_writer(node: &Node, id: &str, place: &str, writer: Running) -> Result<()> {
    let before = written(node, id, place)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while written(node, id, place)? == before {
        ensure!(Instant::now() < deadline, "the writer stands still");
    }
    node.shell(id, &format!("touch {place}/stop"))?;
    let answer = writer.end()?;
    ensure!(answer.code == 0, "the writer: {answer}");
    Ok(())
}

fn written(node: &Node, id: &str, place: &str) -> Result<u64> {
    Ok(node.shell(id, &format!("stat -c %s {place}/a/one"))?.trim().parse()?)
}

/// What a copy has of the files. Its own writer goes on with them: after its end they must be those that it has written.
fn expect_whole(node: &Node, copy: &str, place: &str) -> Result<()> {
    node.shell(copy, &format!("touch {place}/stop"))?;
    let writer = node.pando(&["attach", copy, "writer"])?;
    let written = writer.stdout.lines().last().and_then(|line| line.parse::<u64>().ok());
    ensure!(writer.code == 0 && written.is_some(), "{copy}: the writer: {writer}");
    let seen = node.shell(
        copy,
        &format!("cd {place}; ls a z | grep -c token; ls m | grep -c '^[0-9]*$'; stat -c %s a/one z/two | xargs"),
    )?;
    let [tokens, others, sizes] = seen.lines().collect::<Vec<_>>()[..] else { anyhow::bail!("{copy}: {seen:?}") };
    let sizes: Vec<u64> = sizes.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    ensure!(tokens == "1" && others == "1500", "{copy}: {tokens} tokens, {others} other files");
    ensure!(sizes.iter().all(|size| Some(*size) == written), "{copy}: {sizes:?} of {written:?} of one instant");
    Ok(())
}

fn one_instant(node: &Node, place: &str) -> Result<()> {
    let id = node.run("geo", 1)?[0].id.to_string();
    node.ask(&id, "POST /write?key=note&value=kept")?;
    let writer = begin_writer(node, &id, place)?;
    for _ in 0..4 {
        let forked = node.json(&["fork", &id, "--json"])?;
        let copy = forked["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
        expect_whole(node, &copy, place)?;
        ensure!(node.ask(&copy, "GET /state")?["values"]["note"] == "kept", "{copy}: another memory");
        node.ok(&["kill", &copy])?;
    }
    for round in 0..2 {
        let name = format!("kept{round}");
        node.ok(&["checkpoint", &id, "--name", &name])?;
        let copy = node.run(&name, 1)?[0].id.to_string();
        expect_whole(node, &copy, place)?;
        ensure!(node.ask(&copy, "GET /verify")?["intact"] == true, "{copy} is not intact");
        node.ok(&["kill", &copy])?;
        node.ok(&["checkpoint", "rm", &name])?;
    }
    end_writer(node, &id, place, writer)
}

fn killed_builder(node: &Node) -> Result<()> {
    let source = node.run("geo", 1)?[0].id.to_string();
    begin_writer(node, &source, "/tmp")?.signal(Signal::INT)?;
    // Whatever runs in a copy has room for scripts. What was started since then may end with a builder: docs/fork-engine/capture.md.
    let forked = node.json(&["fork", &source, "--json"])?;
    let id = forked["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
    node.ok(&["kill", &source])?;
    let writer = node.begin(&["attach", &id, "writer"])?;
    let main = node.inspect(&id)?.sandbox.main_pid;
    // So that copying takes a while.
    node.shell(
        &id,
        "for k in $(seq 4000); do echo $k > /tmp/m/x$k; done; rm /tmp/m/x*; head -c 200M /dev/zero > /tmp/large",
    )?;
    let mut killed = 0;
    for round in 0..8 {
        let fork = node.begin(&["fork", &id])?;
        killed += u32::from(kill_builder(main, Duration::from_millis(3) * round)?);
        fork.end()?;
        let before = written(node, &id, "/tmp")?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while written(node, &id, "/tmp")? == before {
            ensure!(Instant::now() < deadline, "all stands still");
        }
        node.ask(&id, "GET /state")?;
    }
    ensure!(killed > 0, "no builder was met while all stood still");
    eprintln!("    {killed} of 8 builders were killed while all stood still");
    end_writer(node, &id, "/tmp", writer)
}

/// Kills the builder that captures a program so long after it began to trace it; false if that was missed.
fn kill_builder(main: i32, after: Duration) -> Result<bool> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        let status = fs::read_to_string(format!("/proc/{main}/status"))?;
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")?.trim().parse::<i32>().ok());
        if let Some(builder) = tracer.and_then(Pid::from_raw) {
            std::thread::sleep(after);
            return Ok(kill_process(builder, Signal::KILL).is_ok());
        }
    }
    Ok(false)
}
