//! Captures of processes that end, execute other programs or wait for something while they are captured.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use testkit::{node::Node, runner::Case};

use super::files_only::{fork, with_idle};

pub(crate) fn cases() -> Vec<Case> {
    let storm = |name: &str, way: &'static str| {
        Case::new(format!("changing::{name}"), move || with_idle(|_, node| storm(node, way)))
    };
    vec![
        storm("a_process_that_executes_programs_is_forked", "exec"),
        storm("a_process_that_executes_programs_from_any_thread_is_forked", "thread"),
        storm("processes_that_die_with_their_threads_are_no_obstacle", "crash"),
        Case::new("changing::a_shell_that_runs_commands_is_forked", || with_idle(|_, node| shell(node))),
        Case::new("changing::a_wait_that_nothing_interrupts_is_refused_in_time", || with_idle(|_, node| vfork(node))),
    ]
}

/// Attempts of each storm. How many of them come at a bad moment is chance.
const FORKS: usize = 12;
/// Far below the minute after which a builder that hangs is ended.
const FORK_MAX: Duration = Duration::from_secs(15);

fn begin(node: &Node, way: &str, more: &[&str]) -> Result<String> {
    let id = node.run("idle", 1)?[0].id.to_string();
    let program = node.program("changing");
    let command = [&["exec", "-d", &id, "--", &program, "--ready-file", "/tmp/ready", "--way", way], more].concat();
    node.ok(&command)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while node.shell(&id, "test -e /tmp/ready").is_err() {
        ensure!(Instant::now() < deadline, "it is not ready");
    }
    Ok(id)
}

fn count(node: &Node, id: &str) -> Result<u64> {
    Ok(node.shell(id, "cat /tmp/count")?.trim().parse()?)
}

fn goes_on(node: &Node, id: &str) -> Result<()> {
    let (before, deadline) = (count(node, id)?, Instant::now() + Duration::from_secs(10));
    while count(node, id)? <= before {
        ensure!(Instant::now() < deadline, "{id} stands still");
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// All attempts succeed but those that are refused for what is there at that moment.
fn storm(node: &Node, way: &str) -> Result<()> {
    let id = begin(node, way, &[])?;
    let mut forked = 0;
    for attempt in 0..FORKS {
        let began = Instant::now();
        let answer = node.pando(&["fork", "--json", &id])?;
        ensure!(matches!(answer.code, 0 | 5), "attempt {attempt}: {answer}");
        ensure!(began.elapsed() < FORK_MAX, "attempt {attempt} took {:?}", began.elapsed());
        goes_on(node, &id).context("the source")?;
        if answer.code == 0 {
            let forks: serde_json::Value = serde_json::from_str(&answer.stdout)?;
            let copy = forks["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
            goes_on(node, &copy).context("a copy")?;
            node.ok(&["kill", &copy])?;
            forked += 1;
        }
    }
    ensure!(forked * 2 > FORKS, "{forked} of {FORKS} forks");
    Ok(())
}

fn shell(node: &Node) -> Result<()> {
    let id = node.run("idle", 1)?[0].id.to_string();
    let script = "n=0; while true; do n=$((n+1)); ls /usr > /dev/null; cat /etc/passwd | grep -c root > /dev/null; \
                  echo $n > /tmp/count.new; mv /tmp/count.new /tmp/count; done";
    node.ok(&["exec", "-d", &id, "--", "/bin/sh", "-c", script])?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while count(node, &id).is_err() {
        ensure!(Instant::now() < deadline, "it does not count");
    }
    for _ in 0..FORKS {
        let copy = fork(node, &[&id])?.remove(0);
        goes_on(node, &copy)?;
        goes_on(node, &id)?;
        node.ok(&["kill", &copy])?;
    }
    Ok(())
}

fn vfork(node: &Node) -> Result<()> {
    let id = begin(node, "vfork", &["--for", "20000"])?;
    let began = Instant::now();
    let answer = node.pando(&["fork", &id])?;
    ensure!(answer.code == 5 && answer.stderr.contains("does not stop"), "{answer}");
    ensure!(began.elapsed() < FORK_MAX, "it took {:?}", began.elapsed());
    node.shell(&id, "true").map(drop)
}
