//! Commands that outlive their clients, the node, and either process that holds them.

mod place;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::{EndReason, ExitStatus};
use testkit::{node::Node, runner::Case};

use super::checkpoint::kill;
use place::{Attached, command, commands, holders, pid_of, signal, start, until_ended};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("held::two_clients_attach_by_pid_and_tag_after_the_first_left", || case(two_clients)),
        Case::new("held::a_slow_client_is_told_what_it_missed", || case(slow)),
        Case::new("held::input_from_several_clients_arrives_and_ends_once", || case(input)),
        Case::new("held::a_terminal_has_the_last_of_twenty_sizes", || case(terminal)),
        Case::new("held::a_kill_ends_the_children_too", || case(killed)),
        Case::new("held::what_ended_is_listed_and_bounded", || case(ended)),
        Case::new("held::a_pause_keeps_commands_that_run_and_forgets_ended_ones", || case(paused)),
        Case::new("held::requests_that_make_no_sense_are_refused", || case(refused)),
        Case::new("held::a_time_limit_survives_the_node", time_limit),
        Case::new("held::commands_outlive_kills_of_any_process", any_process),
        Case::new("held::a_status_is_known_although_server_and_keeper_were_killed", status_of_orphans),
        Case::new("held::when_both_holders_die_their_commands_end", || case(both)),
        Case::new("held::an_orderly_restart_keeps_commands", restart),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start()?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// A sandbox of a program that only waits.
fn sandbox(node: &Node) -> Result<String> {
    node.ok(&["template", "build", "sleeper", "--ready", "true", "--", "/bin/sleep", "1000000"])?;
    Ok(node.run("sleeper", 1)?[0].id.to_string())
}

/// How many lines [`COUNT`] prints.
const LINES: usize = 120;
/// Lines one by one, for a while.
const COUNT: &str = "i=0; while [ $i -lt 120 ]; do echo line $i; i=$((i+1)); sleep 0.01; done; exit 7";

fn counted(lines: usize) -> String {
    (0..lines).map(|line| format!("line {line}\n")).collect()
}

fn two_clients(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let pid = start(node, &id, command(COUNT, serde_json::json!({"tag": "counter"})))?;
    // The client that started it has gone.
    let (one, two) = (Attached::new(node, &id, &pid)?, Attached::new(node, &id, "tag:counter")?);
    ensure!(commands(node, &id)?[0].status.is_none(), "it runs");
    for client in [one, two] {
        let seen = client.all()?;
        ensure!(seen.stdout == counted(LINES).as_bytes(), "{} bytes", seen.stdout.len());
        ensure!(seen.status == Some(ExitStatus::Code(7)), "{:?}", seen.status);
    }
    // After the end, too.
    let again = Attached::new(node, &id, &pid)?.all()?;
    ensure!(
        again.stdout == counted(LINES).as_bytes() && again.status == Some(ExitStatus::Code(7)),
        "{:?}",
        again.status
    );
    node.ok(&["kill", &id]).map(drop)
}

fn slow(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    // In parts that one who reads keeps up with, also where others have the processors.
    let script = "read go; for part in $(seq 20); do head -c 1000000 /dev/zero; sleep 0.05; done; \
                  head -c 1048576 /dev/zero >&2";
    let pid = start(node, &id, command(script, serde_json::json!({"stdin": true})))?;
    let mut slow = Attached::new(node, &id, &pid)?;
    let mut fast = Attached::new(node, &id, &pid)?;
    fast.input(b"go\n")?;
    let fast = fast.rest()?;
    ensure!(fast.stdout.len() == 20_000_000 && fast.stderr.len() == 1 << 20, "{} bytes", fast.stdout.len());
    ensure!(fast.notices.is_empty() && fast.status == Some(ExitStatus::Code(0)), "{:?}", fast.notices);
    let mut missed = 0u64;
    let seen = slow.rest()?;
    for notice in &seen.notices {
        missed += notice.split(' ').next().unwrap_or_default().parse::<u64>().context("no number")?;
    }
    ensure!(missed > 0, "the slow one missed nothing");
    let all = seen.stdout.len() as u64 + seen.stderr.len() as u64 + missed;
    ensure!(all == 20_000_000 + (1 << 20), "{all} bytes with {missed} missed");
    node.ok(&["kill", &id]).map(drop)
}

fn input(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let pid = start(node, &id, command("cat; echo end", serde_json::json!({"stdin": true})))?;
    let (mut one, mut two) = (Attached::new(node, &id, &pid)?, Attached::new(node, &id, &pid)?);
    one.input(b"one\n")?;
    one.expect(b"one\n")?;
    two.input(b"two\n")?;
    two.expect(b"one\ntwo\n")?;
    drop(one);
    two.end_input()?;
    let seen = two.rest()?;
    ensure!(seen.stdout.ends_with(b"end\n") && seen.status == Some(ExitStatus::Code(0)), "{:?}", seen.status);
    // Without input it reads end of file at once.
    let pid = start(node, &id, command("cat; echo end", serde_json::json!({})))?;
    let seen = Attached::new(node, &id, &pid)?.all()?;
    ensure!(seen.stdout == b"end\n", "{:?}", String::from_utf8_lossy(&seen.stdout));
    node.ok(&["kill", &id]).map(drop)
}

fn terminal(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let extra = serde_json::json!({"terminal": {"rows": 24, "columns": 80}});
    let script = "stty -echo; echo ready; while read line; do echo got $line; stty size; done; exit 3";
    let pid = start(node, &id, command(script, extra))?;
    let mut client = Attached::new(node, &id, &pid)?;
    client.expect(b"ready\r\n")?;
    for size in 1..=20 {
        client.resize(10 + size, 100 + size)?;
        client.input(format!("{size}\n").as_bytes())?;
    }
    client.expect(b"got 20\r\n30 120\r\n")?;
    drop(client);
    let mut again = Attached::new(node, &id, &pid)?;
    again.expect(b"got 20\r\n30 120\r\n")?;
    again.end_input()?;
    let seen = again.rest()?;
    ensure!(seen.status == Some(ExitStatus::Code(3)), "{:?}", seen.status);
    // A kill hangs up first.
    let extra = serde_json::json!({"terminal": {"rows": 24, "columns": 80}});
    let script = "trap 'touch /tmp/hung-up; exit 5' HUP; echo ready; while :; do sleep 0.01; done";
    let pid = start(node, &id, command(script, extra))?;
    let mut client = Attached::new(node, &id, &pid)?;
    client.expect(b"ready\r\n")?;
    signal(node, &id, &pid, "kill")?;
    ensure!(client.rest()?.status == Some(ExitStatus::Code(5)), "the hang-up was not heard");
    node.shell(&id, "test -e /tmp/hung-up")?;
    node.ok(&["kill", &id]).map(drop)
}

fn killed(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let script = "setsid sleep 1000021 & sleep 1000022 & echo started; wait";
    let pid = start(node, &id, command(script, serde_json::json!({"tag": "parent"})))?;
    let mut client = Attached::new(node, &id, &pid)?;
    client.expect(b"started\n")?;
    signal(node, &id, "tag:parent", "kill")?;
    ensure!(client.rest()?.status == Some(ExitStatus::Signal(9)), "killed");
    let deadline = Instant::now() + Duration::from_secs(5);
    while node.shell(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")?.contains("100002") {
        ensure!(Instant::now() < deadline, "children are left");
    }
    let (status, answer) =
        node.api(&format!("POST /v1/sandboxes/{id}/commands/{pid}/signal"), br#"{"signal":"kill"}"#)?;
    ensure!(status == 409 && answer.contains("has ended"), "{status} {answer}");
    // SIGTERM is heard by each process, which may have words of its own.
    let pid = start(
        node,
        &id,
        command("trap 'exit 6' TERM; echo ready; while :; do sleep 0.01; done", serde_json::json!({})),
    )?;
    let mut client = Attached::new(node, &id, &pid)?;
    client.expect(b"ready\n")?;
    signal(node, &id, &pid, "terminate")?;
    ensure!(client.rest()?.status == Some(ExitStatus::Code(6)), "terminated");
    node.ok(&["kill", &id]).map(drop)
}

fn ended(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    for number in 0..40 {
        let pid =
            start(node, &id, command(&format!("exit {number}"), serde_json::json!({"tag": format!("t{number}")})))?;
        until_ended(node, &id, &pid)?;
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while commands(node, &id)?.len() > 32 {
        ensure!(Instant::now() < deadline, "{} commands are kept", commands(node, &id)?.len());
        std::thread::sleep(Duration::from_millis(10));
    }
    let kept = commands(node, &id)?;
    let last = kept.last().context("none is kept")?;
    ensure!(last.status == Some(ExitStatus::Code(39)) && last.tag.as_deref() == Some("t39"), "{last:?}");
    ensure!(kept.len() == 32 && kept[0].status == Some(ExitStatus::Code(8)), "{:?}", kept[0]);
    let forgotten = Attached::new(node, &id, "tag:t0");
    ensure!(forgotten.is_err(), "it is forgotten");
    // What one leaves behind goes on in the sandbox.
    let pid = start(node, &id, command("sleep 1000023 & exit 0", serde_json::json!({})))?;
    until_ended(node, &id, &pid)?;
    ensure!(node.shell(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")?.contains("1000023"), "what was left behind");
    node.ok(&["kill", &id]).map(drop)
}

fn paused(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let pid = start(node, &id, command("sleep 1000027", serde_json::json!({})))?;
    node.ok(&["pause", &id])?;
    node.ok(&["resume", &id])?;
    ensure!(commands(node, &id)?[0].status.is_none(), "the pause ended the command");
    signal(node, &id, &pid, "kill")?;
    until_ended(node, &id, &pid)?;
    node.ok(&["pause", &id])?;
    node.ok(&["resume", &id])?;
    ensure!(commands(node, &id)?.is_empty(), "{:?}", commands(node, &id)?);
    let pid = start(node, &id, command("exit 5", serde_json::json!({})))?;
    ensure!(Attached::new(node, &id, &pid)?.all()?.status == Some(ExitStatus::Code(5)), "after the resume");
    node.ok(&["kill", &id]).map(drop)
}

fn refused(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let path = format!("POST /v1/sandboxes/{id}/commands");
    for (extra, said) in [
        (serde_json::json!({"user": "root"}), "image `host`"),
        (serde_json::json!({"user": "stranger"}), "image `host`"),
        (serde_json::json!({"tag": ""}), "tag"),
        (serde_json::json!({"tag": "x".repeat(257)}), "tag"),
        (serde_json::json!({"timeout_ms": 0}), "time limit"),
    ] {
        let body = command("true", extra).to_string();
        let (status, answer) = node.api(&path, body.as_bytes())?;
        ensure!(status == 400 && answer.contains(said), "{body}: {status} {answer}");
    }
    for which in ["1000", "tag:none"] {
        let (status, answer) =
            node.api(&format!("POST /v1/sandboxes/{id}/commands/{which}/signal"), br#"{"signal":"kill"}"#)?;
        ensure!(status == 404, "{which}: {status} {answer}");
    }
    let (status, _) = node.api("GET /v1/sandboxes/s000000000000/commands", b"")?;
    ensure!(status == 404, "of no sandbox: {status}");
    ensure!(commands(node, &id)?.is_empty(), "{:?}", commands(node, &id)?);
    node.ok(&["kill", &id]).map(drop)
}

fn time_limit() -> Result<()> {
    let mut node = Node::start()?;
    let id = sandbox(&node)?;
    let script = "sleep 1000024 & sleep 1000025";
    let pid = start(&node, &id, command(script, serde_json::json!({"timeout_ms": 3000})))?;
    let began = Instant::now();
    node.kill_server()?;
    node.start_server()?;
    ensure!(commands(&node, &id)?[0].status.is_none(), "it runs: {:?}", commands(&node, &id)?);
    let seen = Attached::new(&node, &id, &pid)?.all()?;
    let took = began.elapsed();
    ensure!(
        seen.status == Some(ExitStatus::Code(124)) && took > Duration::from_millis(2500),
        "{seen:?} after {took:?}"
    );
    ensure!(commands(&node, &id)?[0].reason == Some(EndReason::TimedOut), "{:?}", commands(&node, &id)?);
    ensure!(!node.shell(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")?.contains("100002"), "children are left");
    node.ok(&["kill", &id])?;
    node.finish()
}

fn any_process() -> Result<()> {
    let mut node = Node::start()?;
    let id = sandbox(&node)?;
    for victim in ["holder", "spare", "keeper", "server", "all but the spare"] {
        let pid = start(&node, &id, command(COUNT, serde_json::json!({"tag": victim})))?;
        let attached = Attached::new(&node, &id, &pid)?;
        std::thread::sleep(Duration::from_millis(200));
        let [holder, spare] = holders(&node)?;
        match victim {
            "holder" => kill(holder)?,
            "spare" => kill(spare)?,
            "keeper" => kill(node.info()?.keeper_pid.context("no keeper")? as i32)?,
            "server" => {
                node.kill_server()?;
                node.start_server()?;
            }
            _ => {
                kill(holder)?;
                kill(node.info()?.keeper_pid.context("no keeper")? as i32)?;
                node.kill_server()?;
                node.start_server()?;
            }
        }
        // The stream that was there goes on, if its server lives.
        if matches!(victim, "holder" | "spare" | "keeper") {
            let seen = attached.all()?;
            ensure!(seen.stdout == counted(LINES).as_bytes(), "{victim}: {} bytes", seen.stdout.len());
            ensure!(seen.status == Some(ExitStatus::Code(7)), "{victim}: {:?}", seen.status);
        }
        let seen = Attached::new(&node, &id, &pid)?.all()?;
        ensure!(seen.stdout == counted(LINES).as_bytes(), "{victim}, again: {} bytes", seen.stdout.len());
        ensure!(seen.status == Some(ExitStatus::Code(7)), "{victim}, again: {:?}", seen.status);
        holders(&node)?;
    }
    node.ok(&["kill", &id])?;
    node.finish()
}

/// It ends while neither server nor keeper is there: the kernel keeps the status for those who have a pidfd.
fn status_of_orphans() -> Result<()> {
    let mut node = Node::start()?;
    let id = sandbox(&node)?;
    let pid = start(&node, &id, command("sleep 1; echo words; exit 42", serde_json::json!({})))?;
    kill(node.info()?.keeper_pid.context("no keeper")? as i32)?;
    node.kill_server()?;
    std::thread::sleep(Duration::from_secs(2));
    node.start_server()?;
    let seen = Attached::new(&node, &id, &pid)?.all()?;
    ensure!(seen.stdout == b"words\n" && seen.status == Some(ExitStatus::Code(42)), "{seen:?}");
    node.ok(&["kill", &id])?;
    node.finish()
}

fn both(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let pid = start(node, &id, command("sleep 1000026", serde_json::json!({})))?;
    let attached = Attached::new(node, &id, &pid)?;
    let [holder, spare] = holders(node)?;
    // It must not start another spare in between.
    let stopped = rustix::process::Pid::from_raw(holder).context("no holder")?;
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP)?;
    kill(spare)?;
    kill(holder)?;
    let seen = attached.all()?;
    ensure!(seen.status == Some(ExitStatus::Unknown), "{seen:?}");
    let deadline = Instant::now() + Duration::from_secs(10);
    while node.shell(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")?.contains("1000026") {
        ensure!(Instant::now() < deadline, "the command is left");
    }
    // The next one is held again.
    let pid = start(node, &id, command("exit 8", serde_json::json!({})))?;
    ensure!(Attached::new(node, &id, &pid)?.all()?.status == Some(ExitStatus::Code(8)), "the next one");
    node.ok(&["kill", &id]).map(drop)
}

fn restart() -> Result<()> {
    let mut node = Node::start()?;
    let id = sandbox(&node)?;
    let pid = start(&node, &id, command(COUNT, serde_json::json!({})))?;
    let before = holders(&node)?;
    ensure!(node.stop_server()? == Some(0), "the server did not stop");
    node.start_server()?;
    ensure!(holders(&node)? == before, "the holder was replaced");
    ensure!(pid_of(&commands(&node, &id)?[0]) == pid, "{:?}", commands(&node, &id)?);
    let seen = Attached::new(&node, &id, &pid)?.all()?;
    ensure!(seen.stdout == counted(LINES).as_bytes() && seen.status == Some(ExitStatus::Code(7)), "{:?}", seen.status);
    node.ok(&["kill", &id])?;
    node.finish()
}
