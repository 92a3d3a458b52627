//! Captures of files alone: of sandboxes without a program, and of others whose memory is not wanted.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use api::SandboxState;
use rustix::process::{Pid, Signal, kill_process};
use testkit::{
    node::{Node, Running, Setting},
    runner::Case,
};

use super::{
    crash::number,
    shared::{Shared, with_geo},
    volumes::{fails, scribe_case, writing},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("files_only::forks_of_an_idle_sandbox_have_its_files_each_its_own", || with_idle(forked)),
        Case::new("files_only::an_idle_sandbox_with_processes_is_refused_or_forked_without_them", || {
            with_idle(crowded)
        }),
        Case::new("files_only::a_checkpoint_of_files_starts_on_any_node", || with_idle(anywhere)),
        Case::new("files_only::a_replaced_checkpoint_is_what_starts_next", || with_idle(replaced)),
        Case::new("files_only::a_checkpoint_of_files_goes_as_a_file_into_another_store", || with_idle(by_file)),
        Case::new("files_only::an_idle_sandbox_is_paused_and_resumed_as_the_same_machine", || with_idle(paused)),
        Case::new("files_only::a_pause_without_memory_boots_the_same_machine_anew", || with_geo(rebooted)),
        Case::new("files_only::a_whole_pause_can_be_resumed_without_memory", || with_geo(resumed_without)),
        Case::new("files_only::a_checkpoint_without_memory_leaves_all_going_on", || with_geo(goes_on)),
        Case::new("files_only::a_node_killed_in_between_leaves_it_running_or_paused", || with_idle(killed))
            .slow("it kills a node again and again"),
        Case::new("files_only::a_keeper_killed_in_between_leaves_it_going_on", || with_idle(keeper_killed)),
        scribe_case("files_only::volumes_are_of_the_same_instant", "0", volumes),
    ]
}

/// Runs `body` with a node that has a template `idle` without a start command.
pub(super) fn with_idle(body: impl FnOnce(&Shared, &mut Node) -> Result<()>) -> Result<()> {
    let shared = Shared::new()?;
    let mut node = shared.node()?;
    build_idle(&node)?;
    body(&shared, &mut node).with_context(|| format!("log of the first node:\n{}", node.log_tail()))?;
    node.finish()
}

fn build_idle(node: &Node) -> Result<()> {
    let spec =
        br#"{"name":"idle","image":"host","command":[],"cwd":"/home/user","ready":"listening","ready_timeout_ms":1000}"#;
    let (status, body) = node.api("POST /v1/templates", spec)?;
    ensure!(status == 200 && body.contains("done"), "{status} {body}");
    Ok(())
}

/// An idle sandbox with a few files.
fn marked(node: &Node) -> Result<String> {
    let id = node.run("idle", 1)?[0].id.to_string();
    mark(node, &id)?;
    Ok(id)
}

fn mark(node: &Node, id: &str) -> Result<()> {
    node.shell(id, "echo kept > /home/user/note; mkdir /home/user/d; ln -s ../note /home/user/d/link").map(drop)
}

fn expect_marked(node: &Node, id: &str) -> Result<()> {
    ensure!(node.shell(id, "cat /home/user/d/link")? == "kept\n", "{id}: files");
    ensure!(node.shell(id, "hostname")?.trim_end() == id, "{id}: its host name");
    Ok(())
}

/// What stays whenever a sandbox goes on.
fn machine(node: &Node, id: &str) -> Result<String> {
    node.shell(id, "hostname; cat /etc/machine-id /run/pando/generation")
}

fn boot(node: &Node, id: &str) -> Result<String> {
    let shown = node.shell(id, "cat /run/pando/boot_id /proc/sys/kernel/random/boot_id")?;
    let (own, kernel) = shown.trim_end().split_once('\n').context("no boot ids")?;
    ensure!(own == kernel, "the kernel says {kernel}, the sandbox {own}");
    Ok(own.to_owned())
}

fn state(node: &Node, id: &str) -> Result<Option<SandboxState>> {
    Ok(node.ps()?.into_iter().find(|sandbox| sandbox.id.as_str() == id).map(|sandbox| sandbox.state))
}

fn expect_idle(node: &Node, id: &str) -> Result<()> {
    let detail = node.inspect(id)?;
    ensure!(detail.sandbox.state == SandboxState::Running && detail.sandbox.main_pid == 0, "{detail:?}");
    ensure!(detail.processes.len() == 1, "more than its pid 1 runs: {detail:?}");
    Ok(())
}

fn heads(node: &Node) -> Result<u64> {
    node.json(&["store", "stats", "--json"])?["heads"].as_u64().context("no figure")
}

fn expect_no_heads(node: &Node) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while heads(node)? > 0 {
        ensure!(Instant::now() < deadline, "heads are left");
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

pub(super) fn fork(node: &Node, arguments: &[&str]) -> Result<Vec<String>> {
    let forked = node.json(&[&["fork", "--json"], arguments].concat())?;
    let sandboxes = forked["sandboxes"].as_array().context("no copies")?;
    sandboxes.iter().map(|sandbox| Ok(sandbox["id"].as_str().context("no id")?.to_owned())).collect()
}

fn forked(_: &Shared, node: &mut Node) -> Result<()> {
    let id = marked(node)?;
    let copies = fork(node, &["-n", "3", &id])?;
    ensure!(copies.len() == 3, "{copies:?}");
    node.shell(&id, "echo later > /home/user/note")?;
    for copy in &copies {
        expect_idle(node, copy)?;
        expect_marked(node, copy)?;
        ensure!(machine(node, copy)? != machine(node, &id)? && boot(node, copy)? != boot(node, &id)?, "{copy}");
        node.shell(copy, "echo mine > /home/user/mine; rm -r /home/user/d")?;
    }
    node.shell(&id, "test ! -e /home/user/mine -a -e /home/user/d/link")?;
    // A file that was removed stays removed in a fork of a fork.
    let second = fork(node, &[&copies[0]])?.remove(0);
    node.shell(&second, "test ! -e /home/user/d; test $(cat /home/user/mine) = mine")?;
    node.ok(&["kill", &id, &copies[0], &copies[1], &copies[2]])?;
    node.shell(&second, "test $(cat /home/user/note) = kept")?;
    node.ok(&["kill", &second]).map(drop)
}

fn crowded(_: &Shared, node: &mut Node) -> Result<()> {
    let id = marked(node)?;
    let held = begin_unforkable(node, &id)?;
    for command in [vec!["fork", &id], vec!["pause", &id], vec!["checkpoint", &id]] {
        let answer = node.pando(&command)?;
        let says = ["(python3)", "a pipe", "--files-only"];
        ensure!(answer.code == 5 && says.iter().all(|part| answer.stderr.contains(part)), "{command:?}: {answer}");
    }
    let copy = fork(node, &["--files-only", &id])?.remove(0);
    expect_idle(node, &copy)?;
    expect_marked(node, &copy)?;
    ensure!(node.inspect(&id)?.processes.len() == 2, "the command does not go on");
    held.signal(Signal::INT)?;
    held.end()?;
    let copy = fork(node, &[&id])?.remove(0);
    expect_marked(node, &copy)
}

/// A command that has what cannot be forked: a pipe with an end that was opened twice.
pub(super) fn begin_unforkable(node: &Node, id: &str) -> Result<Running> {
    let script = "import os, time\nr, w = os.pipe()\nos.open(f'/proc/self/fd/{w}', os.O_WRONLY)\nprint('begun', flush=True)\ntime.sleep(1000000)";
    let command = node.begin(&["exec", id, "--", "/usr/bin/python3", "-c", script])?;
    ensure!(command.first_line()? == "begun", "the command did not begin");
    Ok(command)
}

fn anywhere(shared: &Shared, node: &mut Node) -> Result<()> {
    let id = marked(node)?;
    let taken = node.json(&["checkpoint", &id, "--name", "warm", "--json"])?;
    ensure!(taken["memory"] == false && taken["memory_bytes"] == 0 && taken["command"] == serde_json::json!([]));
    node.shell(&id, "echo later > /home/user/note")?;
    node.ok(&["kill", &id])?;
    node.ok(&["store", "gc", "--grace", "0"])?;
    node.ok(&["checkpoint", "verify", "warm"])?;
    let other = shared.node()?;
    for at in [&*node, &other] {
        let ids: Vec<String> = at.run("warm", 3)?.into_iter().map(|sandbox| sandbox.id.to_string()).collect();
        for id in &ids {
            expect_idle(at, id)?;
            expect_marked(at, id)?;
            at.shell(id, "echo mine > /home/user/note")?;
        }
        // Of what was restored, another one can be taken.
        at.ok(&["checkpoint", &ids[0], "--name", "next", "--replace"])?;
        let next = at.run("next", 1)?[0].id.to_string();
        ensure!(at.shell(&next, "cat /home/user/d/link")? == "mine\n", "the next one");
        at.ok(&["kill", "--all", "--force"])?;
    }
    other.finish()?;
    // After a restart the node restores the checkpoint anew.
    node.kill_server()?;
    node.start_server()?;
    let id = node.run("warm", 1)?[0].id.to_string();
    expect_marked(node, &id)?;
    node.ok(&["kill", &id])?;
    for name in ["warm", "next"] {
        node.ok(&["template", "rm", name])?;
        node.ok(&["checkpoint", "rm", name])?;
        fails(node, &["create", name], 4, name)?;
    }
    ensure!(heads(node)? == 0, "a head is left");
    Ok(())
}

fn replaced(_: &Shared, node: &mut Node) -> Result<()> {
    let id = marked(node)?;
    for text in ["one", "two", "three"] {
        node.shell(&id, &format!("echo {text} > /home/user/note"))?;
        node.ok(&["checkpoint", &id, "--name", "warm", "--replace"])?;
        let started = node.run("warm", 1)?[0].id.to_string();
        ensure!(node.shell(&started, "cat /home/user/note")? == format!("{text}\n"), "not what it is now");
    }
    node.ok(&["kill", "--all", "--force"])?;
    node.ok(&["template", "rm", "warm"]).map(drop)
}

fn by_file(_: &Shared, node: &mut Node) -> Result<()> {
    let id = marked(node)?;
    node.ok(&["checkpoint", &id, "--name", "warm"])?;
    let file = node.dir().join("warm.pando").display().to_string();
    node.ok(&["checkpoint", "export", "warm", &file])?;
    let other = Node::start_with(Setting::default())?;
    other.ok(&["checkpoint", "import", &file])?;
    other.ok(&["checkpoint", "verify", "warm"])?;
    let copy = other.run("warm", 1)?[0].id.to_string();
    expect_idle(&other, &copy)?;
    expect_marked(&other, &copy)?;
    other.ok(&["kill", &copy])?;
    other.finish()
}

fn paused(shared: &Shared, node: &mut Node) -> Result<()> {
    let id = marked(node)?;
    let (who, boot_id) = (machine(node, &id)?, boot(node, &id)?);
    let other = shared.node()?;
    for (from, to) in [(&*node, &*node), (&*node, &other), (&other, &*node)] {
        from.ok(&["pause", &id])?;
        let copy = fork(to, &[&id])?.remove(0);
        expect_idle(to, &copy)?;
        expect_marked(to, &copy)?;
        to.ok(&["kill", &copy])?;
        ensure!(state(from, &id)? == Some(SandboxState::Paused), "it is not paused");
        fails(from, &["exec", &id, "--", "true"], 1, "it is paused")?;
        ensure!(!from.state.join("sandboxes").join(&id).exists(), "its directory is left");
        to.ok(&["resume", &id])?;
        expect_idle(to, &id)?;
        expect_marked(to, &id)?;
        ensure!(machine(to, &id)? == who && boot(to, &id)? == boot_id, "it is another one");
        expect_no_heads(to)?;
        to.shell(&id, "echo again >> /home/user/rounds")?;
        if !std::ptr::eq(from, to) {
            from.ok(&["kill", &id])?;
        }
    }
    ensure!(node.shell(&id, "wc -l < /home/user/rounds")?.trim_end() == "3", "a round is missing");
    other.finish()?;
    node.ok(&["pause", &id])?;
    node.kill_server()?;
    node.start_server()?;
    ensure!(state(node, &id)? == Some(SandboxState::Paused), "it is not paused any more");
    node.ok(&["resume", &id])?;
    expect_marked(node, &id)?;
    let copy = fork(node, &[&id])?.remove(0);
    expect_marked(node, &copy)
}

fn rebooted(shared: &Shared, node: &mut Node) -> Result<()> {
    let id = node.run("geo", 1)?[0].id.to_string();
    mark(node, &id)?;
    let (who, boot_id) = (machine(node, &id)?, boot(node, &id)?);
    let command = begin_unforkable(node, &id)?;
    fails(node, &["pause", &id], 5, "a pipe")?;
    let paused = node.json(&["pause", "--files-only", &id, "--json"])?;
    ensure!(paused["sandbox"]["state"] == "paused" && paused["memory_bytes"] == 0, "{paused}");
    ensure!(command.end()?.code != 0, "the command goes on");
    let other = shared.node()?;
    for at in [&*node, &other] {
        at.ok(&["resume", &id])?;
        expect_idle(at, &id)?;
        expect_marked(at, &id)?;
        ensure!(machine(at, &id)? == who && boot(at, &id)? != boot_id, "it is not the same machine booted anew");
        expect_no_heads(at)?;
        at.ok(&["pause", "--files-only", &id])?;
    }
    node.ok(&["resume", &id])?;
    expect_marked(node, &id)?;
    other.ok(&["kill", &id])?;
    other.finish()?;
    let copy = fork(node, &[&id])?.remove(0);
    expect_marked(node, &copy)?;
    node.ok(&["kill", &id, &copy]).map(drop)
}

fn resumed_without(_: &Shared, node: &mut Node) -> Result<()> {
    let id = node.run("geo", 1)?[0].id.to_string();
    mark(node, &id)?;
    let (who, boot_id) = (machine(node, &id)?, boot(node, &id)?);
    node.ok(&["pause", &id])?;
    node.ok(&["resume", "--files-only", &id])?;
    expect_idle(node, &id)?;
    expect_marked(node, &id)?;
    ensure!(machine(node, &id)? == who && boot(node, &id)? != boot_id, "it is not the same machine booted anew");
    expect_no_heads(node)?;
    // From now on it has files only.
    let boot_id = boot(node, &id)?;
    node.ok(&["pause", &id])?;
    node.ok(&["resume", &id])?;
    ensure!(boot(node, &id)? == boot_id, "a whole pause keeps the boot id");
    expect_idle(node, &id)
}

fn goes_on(_: &Shared, node: &mut Node) -> Result<()> {
    let id = node.run("geo", 1)?[0].id.to_string();
    mark(node, &id)?;
    node.ask(&id, "POST /write?key=note&value=kept")?;
    let held = node.hold(&["exec", &id, "--", "/bin/cat"])?;
    sleep(Duration::from_millis(300));
    let taken = node.json(&["checkpoint", "--files-only", &id, "--name", "warm", "--json"])?;
    ensure!(taken["memory"] == false && taken["layer_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{taken}");
    ensure!(node.ask(&id, "GET /state")?["values"]["note"] == "kept", "its program does not go on");
    held.release()?;
    let started = node.run("warm", 1)?[0].id.to_string();
    expect_idle(node, &started)?;
    expect_marked(node, &started)?;
    let copy = fork(node, &["--files-only", &id])?.remove(0);
    expect_idle(node, &copy)?;
    ensure!(node.ask(&id, "GET /verify")?["intact"] == true, "its program is not intact");
    node.ok(&["kill", &id, &started, &copy])?;
    node.ok(&["template", "rm", "warm"]).map(drop)
}

/// So many files that a copy of them takes a while.
fn many_files(node: &Node) -> Result<String> {
    let id = marked(node)?;
    node.shell(&id, "cd /home/user; seq 4000 | xargs touch; seq 8000 > lines")?;
    Ok(id)
}

fn settled(node: &Node, id: &str) -> Result<SandboxState> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match state(node, id)?.context("it is gone")? {
            SandboxState::Pausing => ensure!(Instant::now() < deadline, "it stays between running and paused"),
            state => return Ok(state),
        }
        sleep(Duration::from_millis(20));
    }
}

fn killed(_: &Shared, node: &mut Node) -> Result<()> {
    let (mut paused, mut running) = (0, 0);
    let rounds = number("PANDO_ROUNDS").unwrap_or(4);
    for round in 0..rounds {
        let id = many_files(node)?;
        let command = node.begin(&["pause", "--files-only", &id])?;
        sleep(Duration::from_millis(5 + 720 * round / rounds));
        node.kill_server()?;
        command.end()?;
        node.start_server()?;
        match settled(node, &id)? {
            SandboxState::Paused => {
                paused += 1;
                node.ok(&["resume", &id])?;
            }
            SandboxState::Running => running += 1,
            other => bail!("round {round}: {other:?}"),
        }
        expect_marked(node, &id)?;
        node.shell(&id, "cd /home/user; test $(ls | wc -l) -gt 4000 -a $(wc -l < lines) = 8000")?;
        node.ok(&["kill", &id])?;
        node.expect_only_itself()?;
        ensure!(heads(node)? == 0, "round {round}: a head is left");
    }
    eprintln!("    {running} were running afterwards, {paused} paused");
    Ok(())
}

fn keeper_killed(_: &Shared, node: &mut Node) -> Result<()> {
    let rounds = number("PANDO_ROUNDS").unwrap_or(2);
    for round in 0..rounds {
        let id = many_files(node)?;
        let command = node.begin(&["checkpoint", &id, "--name", "warm"])?;
        sleep(Duration::from_millis(5 + 160 * round / rounds));
        let keeper = node.info()?.keeper_pid.context("no keeper")?;
        kill_process(Pid::from_raw(keeper as i32).context("no pid")?, Signal::KILL)?;
        let taken = command.end()?;
        // It goes on with the next keeper, whatever came of the checkpoint.
        expect_marked(node, &id)?;
        if taken.code == 0 {
            let started = node.run("warm", 1)?[0].id.to_string();
            expect_marked(node, &started)?;
            node.ok(&["kill", &started])?;
            node.ok(&["template", "rm", "warm"])?;
            node.ok(&["checkpoint", "rm", "warm"])?;
        }
        ensure!(heads(node)? == 0, "round {round}: a head is left");
        node.ok(&["kill", &id])?;
        node.expect_only_itself()?;
    }
    Ok(())
}

fn volumes(node: &Node) -> Result<()> {
    let id = writing(node)?;
    node.shell(&id, "echo kept > /workspace/note; echo kept > /home/user/note")?;
    node.ok(&["checkpoint", "--files-only", &id, "--name", "warm"])?;
    node.shell(&id, "echo later > /workspace/note; echo later > /home/user/note")?;
    let started = node.run("warm", 1)?[0].id.to_string();
    expect_idle(node, &started)?;
    let whole = "awk '$1 != NR - 1 { print NR, $0; exit 1 }' /workspace/journal";
    ensure!(node.shell(&started, &format!("{whole} && cat /workspace/note /home/user/note"))? == "kept\nkept\n");
    let copy = fork(node, &["--files-only", &id])?.remove(0);
    ensure!(node.shell(&copy, &format!("{whole} && cat /workspace/note /home/user/note"))? == "later\nlater\n");
    for one in [&started, &copy] {
        node.shell(one, "echo mine > /workspace/note")?;
    }
    node.ok(&["pause", "--files-only", &id])?;
    let stored = fork(node, &[&id])?.remove(0);
    node.shell(&stored, "echo other > /workspace/note")?;
    node.ok(&["resume", &id])?;
    expect_idle(node, &id)?;
    ensure!(node.shell(&id, &format!("{whole} && cat /workspace/note /home/user/note"))? == "later\nlater\n");
    // Another idle one, paused with all that it has.
    node.ok(&["pause", &started])?;
    node.ok(&["resume", &started])?;
    ensure!(node.shell(&started, "cat /workspace/note /home/user/note")? == "mine\nkept\n");
    node.ok(&["kill", "--all", "--force"])?;
    ensure!(node.json(&["volume", "log", "ws", "--json"])?.as_array().is_some_and(Vec::is_empty), "snapshots are left");
    node.ok(&["template", "rm", "warm"])?;
    node.ok(&["checkpoint", "rm", "warm"])?;
    for volume in super::volumes_kept::volumes(node)? {
        node.ok(&["volume", "rm", &volume])?;
    }
    Ok(())
}
