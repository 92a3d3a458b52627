//! Ctrl-C: the command ends with 130, and what it had started is gone.

use std::{
    fs,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use api::RunResponse;
use rustix::process::Signal;
use testkit::{node::Node, runner::Case};

const CANCELLED: &str = "interrupted: the build was cancelled";

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("cancel::run_removes_what_it_started", || case(run))
            .slow("a hundred sandboxes and more come and go, beside those of other cases"),
        Case::new("cancel::an_answer_under_way_is_shown_or_undone", || case(answered))
            .slow("the moment between an answer and its client is looked for"),
        Case::new("cancel::fork_removes_what_it_started", || case(fork)),
        Case::new("cancel::template_build_leaves_nothing", || case(build)),
        Case::new("cancel::a_killed_client_is_like_ctrl_c", || case(killed)),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start()?;
    node.build_geo("geo", &["--nidx", "2"])?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// Runs the command and interrupts it after `delay`; true if that was before its end.
fn interrupted(node: &Node, arguments: &[&str], delay: Duration, said: &str) -> Result<bool> {
    let command = node.begin(arguments)?;
    sleep(delay);
    let sent = command.signal(Signal::INT);
    let answer = command.end()?;
    if answer.code == 0 {
        return Ok(false);
    }
    sent?;
    // Before the command has its handler, the signal simply kills it.
    ensure!(answer.code == 130, "after {delay:?}: {answer}");
    // A build first asks what there is.
    let is_told = [said, "nothing was begun"].iter().any(|said| answer.stderr.contains(said));
    ensure!(is_told || answer.stderr.is_empty(), "after {delay:?}: {answer}");
    Ok(true)
}

fn expect_only(node: &Node, expected: &[&str]) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let found: Vec<String> = node.ps()?.into_iter().map(|sandbox| sandbox.id.to_string()).collect();
        if found == expected {
            return node.expect_only_itself();
        }
        ensure!(Instant::now() < deadline, "left: {found:?}, expected {expected:?}");
        sleep(Duration::from_millis(10));
    }
}

fn run(node: &Node) -> Result<()> {
    let standing = node.run("geo", 1)?[0].id.to_string();
    let mut count = 0;
    const DELAYS: [u64; 5] = [20, 80, 10, 40, 1];
    // Beside other work the command may be done, or not begun, whenever it is interrupted: then they are tried again.
    for ms in DELAYS.into_iter().cycle().take(4 * DELAYS.len()) {
        if count > 1 {
            break;
        }
        if interrupted(
            node,
            &["create", "geo", "-n", "50"],
            Duration::from_millis(ms),
            "interrupted: what was started is removed",
        )? {
            count += 1;
        } else {
            let all = node.ps()?;
            let others = all.iter().map(|sandbox| sandbox.id.as_str()).filter(|id| *id != standing);
            let kill: Vec<&str> = std::iter::once("kill").chain(others).collect();
            node.ok(&kill)?;
        }
        expect_only(node, &[&standing])?;
    }
    ensure!(count > 1, "no run was interrupted in time");
    node.ask(&standing, "GET /health").map(drop)
}

/// The client stands still while its answer comes, and is interrupted then.
fn answered(node: &Node) -> Result<()> {
    let mut count = 0;
    // On a busy machine the client is slow.
    for us in (500..10_000).step_by(1_000).chain([20_000, 50_000, 100_000, 200_000, 500_000]) {
        if count > 1 {
            break;
        }
        let command = node.begin(&["create", "geo", "-n", "20", "--json"])?;
        sleep(Duration::from_micros(us));
        command.signal(Signal::STOP)?;
        let deadline = Instant::now() + Duration::from_secs(3);
        while node.ps()?.len() < 20 && Instant::now() < deadline {
            sleep(Duration::from_millis(20));
        }
        // Of a sandbox that is listed it may not be told yet.
        sleep(Duration::from_millis(50));
        let under_way = node.ps()?.len() == 20 && command.signal(Signal::INT).is_ok();
        command.signal(Signal::CONT)?;
        let answer = command.end()?;
        if answer.code == 0 {
            count += i32::from(under_way);
            let started: RunResponse = serde_json::from_str(&answer.stdout)?;
            ensure!(started.sandboxes.len() == 20 && node.ps()?.len() == 20, "{answer}");
            node.ok(&["kill", "--all", "--force"])?;
        } else {
            ensure!(answer.code == 130, "{answer}");
        }
        expect_only(node, &[])?;
    }
    ensure!(count > 0, "no answer was under way");
    Ok(())
}

fn fork(node: &Node) -> Result<()> {
    let standing = node.run("geo", 1)?[0].id.to_string();
    for ms in [5, 40, 150] {
        if !interrupted(node, &["fork", &standing, "-n", "30"], Duration::from_millis(ms), "interrupted")? {
            for sandbox in node.ps()?.iter().filter(|sandbox| sandbox.id.as_str() != standing) {
                node.ok(&["kill", sandbox.id.as_str()])?;
            }
        }
        expect_only(node, &[&standing])?;
        node.ask(&standing, "GET /health")?;
    }
    Ok(())
}

fn build(node: &Node) -> Result<()> {
    let service = node.program("geo.py");
    let build = ["template", "build", "other", "--port", "8080", "--", "/usr/bin/python3", &service, "--nidx", "16"];
    for ms in [10, 100, 300, 600] {
        if interrupted(node, &build, Duration::from_millis(ms), CANCELLED)? {
            expect_unlisted(node)?;
        } else {
            node.ok(&["template", "rm", "other"])?;
        }
        expect_only(node, &[])?;
    }
    // When its record is written it cannot be cancelled any more, and its client has not been told.
    let directory = node.dir().join("state/templates/other");
    for _ in 0..2 {
        let command = node.begin(&build)?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while !has_record(&directory) {
            ensure!(Instant::now() < deadline, "no record of the build is written");
        }
        command.signal(Signal::INT)?;
        let answer = command.end()?;
        if answer.code == 0 {
            ensure!(answer.stdout.contains("template other is ready"), "{answer}");
            node.ok(&["template", "rm", "other"])?;
        } else {
            ensure!(answer.code == 130 && answer.stderr.contains(CANCELLED), "{answer}");
            expect_unlisted(node)?;
        }
        expect_only(node, &[])?;
    }
    // A template that is built again keeps its older form when that is cancelled.
    let again = ["template", "build", "geo", "--port", "8080", "--", "/usr/bin/python3", &service, "--nidx", "64"];
    ensure!(interrupted(node, &again, Duration::from_millis(500), "interrupted")?, "built within half a second");
    expect_only(node, &[])?;
    let answer = node.pando(&["create", "geo"])?;
    ensure!(answer.code == 0, "the older template: {answer}");
    Ok(())
}

fn expect_unlisted(node: &Node) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while node.ok(&["template", "ls"])?.contains("other") {
        ensure!(Instant::now() < deadline, "a cancelled build is still listed");
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Also one that does not have its name yet.
fn has_record(directory: &Path) -> bool {
    let mut entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().to_string_lossy().contains("record"))
}

fn killed(node: &Node) -> Result<()> {
    for ms in [10, 30, 60] {
        let command = node.begin(&["create", "geo", "-n", "50"])?;
        sleep(Duration::from_millis(ms));
        command.signal(Signal::KILL)?;
        command.end()?;
        // Killed between the node's answer and its own end, it leaves what was asked for: all of it, listed.
        sleep(Duration::from_millis(500));
        if node.ps()?.len() == 50 {
            node.ok(&["kill", "--all", "--force"])?;
        }
        expect_only(node, &[])?;
    }
    let standing = node.run("geo", 1)?[0].id.to_string();
    let exec = node.begin(&["exec", &standing, "--", "/bin/sh", "-c", "echo here; exec sleep 1000"])?;
    exec.first_line()?;
    exec.signal(Signal::KILL)?;
    exec.end()?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while node.inspect(&standing)?.processes.len() > 2 {
        ensure!(Instant::now() < deadline, "the command of a killed exec runs on");
    }
    Ok(())
}
