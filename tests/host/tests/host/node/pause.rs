//! Pausing and resuming: the same sandbox goes on, on this node or another, whatever ends in between.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use api::{PausedSandbox, SandboxState};
use rustix::process::Signal;
use testkit::{
    engine::wait_until,
    node::{Answer, Node},
    runner::Case,
};

use super::{
    crash::number,
    files_only::begin_unforkable,
    images::root,
    shared::{Shared, with_geo},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("pause::the_same_sandbox_goes_on_where_it_was", || with_geo(same)),
        Case::new("pause::nothing_happens_after_the_kept_instant", || with_geo(nothing_after)),
        Case::new("pause::a_paused_sandbox_says_what_can_be_done_with_it", || with_geo(errors)),
        Case::new("pause::what_cannot_be_paused_is_refused_and_goes_on", || with_geo(refused)),
        Case::new("pause::as_many_mappings_as_are_captured_are_served", || with_geo(many_ranges)),
        Case::new("pause::what_no_restore_could_serve_is_refused_before", || with_geo(too_many_addresses)),
        Case::new("pause::removed_it_leaves_nothing", || with_geo(removed)),
        Case::new("pause::it_survives_its_node_and_is_paused_again_and_again", || with_geo(restarts)),
        Case::new("pause::another_node_resumes_it_and_its_own_one_knows", || with_geo(another_node)),
        Case::new("pause::on_another_node_its_owners_are_the_same", || with_geo(owners)),
        Case::new("pause::of_two_nodes_that_resume_it_one_does", || with_geo(race)),
        Case::new("pause::a_node_killed_in_between_leaves_it_running_or_paused", || with_geo(killed))
            .slow("it kills a node again and again"),
        Case::new("pause::copies_of_a_paused_sandbox_start_on_any_node_and_it_stays_paused", || with_geo(forked)),
        Case::new("pause::without_a_store_the_sandbox_goes_on", || with_geo(no_store)),
    ]
}

/// Names in the database that no longer should be there.
fn heads(node: &Node) -> Result<u64> {
    node.json(&["store", "stats", "--json"])?["heads"].as_u64().context("no figure")
}

/// A sandbox with a value in memory and one in a file.
fn marked(node: &Node) -> Result<String> {
    let id = node.run("geo", 1)?[0].id.to_string();
    node.ask(&id, "POST /write?key=note&value=kept")?;
    node.shell(&id, "echo kept > /home/user/note; mkdir /home/user/d; ln -s ../note /home/user/d/link")?;
    Ok(id)
}

fn expect_marked(node: &Node, id: &str) -> Result<()> {
    let state = node.ask(id, "GET /state")?;
    ensure!(state["values"]["note"] == "kept" && state["hostname"] == id, "{state}");
    ensure!(node.ask(id, "GET /verify")?["intact"] == true, "{id} is not intact");
    ensure!(node.shell(id, "cat /home/user/d/link")? == "kept\n", "{id}: files");
    Ok(())
}

/// What a sandbox is known by.
fn identity(node: &Node, id: &str) -> Result<String> {
    node.shell(id, "hostname; cat /etc/machine-id /run/pando/generation /run/pando/boot_id")
}

fn state(node: &Node, id: &str) -> Result<Option<SandboxState>> {
    Ok(node.ps()?.into_iter().find(|sandbox| sandbox.id.as_str() == id).map(|sandbox| sandbox.state))
}

fn expect_state(node: &Node, id: &str, expected: SandboxState) -> Result<()> {
    let found = state(node, id)?;
    ensure!(found == Some(expected), "{id} is {found:?}, not {expected:?}");
    Ok(())
}

fn pause(node: &Node, id: &str) -> Result<()> {
    let paused = node.json(&["pause", id, "--json"])?;
    ensure!(paused["sandbox"]["id"] == id && paused["sandbox"]["state"] == "paused", "{paused}");
    ensure!(paused["stored_memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{paused}");
    expect_state(node, id, SandboxState::Paused)
}

fn resume(node: &Node, id: &str) -> Result<()> {
    let resumed = node.json(&["resume", id, "--json"])?;
    ensure!(resumed["id"] == id && resumed["state"] == "running" && resumed["template"] == "geo", "{resumed}");
    expect_state(node, id, SandboxState::Running)
}

fn expect_conflict(answer: &Answer, says: &str) -> Result<()> {
    ensure!(answer.code == 1 && answer.stderr.contains(says), "{says}: {answer}");
    Ok(())
}

/// Waits until the store has no heads: a resumed sandbox has all its memory then.
fn expect_no_heads(node: &Node) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while heads(node)? > 0 {
        ensure!(Instant::now() < deadline, "heads are left");
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn same(_: &Shared, node: &mut Node) -> Result<()> {
    let id = marked(node)?;
    let (who, log) = (identity(node, &id)?, node.ok(&["logs", &id])?);
    let created = node.inspect(&id)?.sandbox.created_ms;
    pause(node, &id)?;
    let detail = node.inspect(&id)?;
    ensure!(detail.processes.is_empty() && detail.layers.is_empty() && detail.sandbox.main_pid == 0, "{detail:?}");
    ensure!(!node.state.join("sandboxes").join(&id).exists(), "its directory is left");
    ensure!(node.ok(&["logs", &id])?.starts_with(&log), "its output is not kept");
    ensure!(node.json(&["checkpoint", "ls", "--json"])?.as_array().is_some_and(Vec::is_empty), "it is a checkpoint");
    ensure!(node.ok(&["ls"])?.contains("paused"), "ps does not say so");
    resume(node, &id)?;
    expect_marked(node, &id)?;
    ensure!(identity(node, &id)? == who, "it is another one");
    ensure!(node.inspect(&id)?.sandbox.created_ms == created, "it is younger");
    let fork = node.json(&["fork", &id, "--json"])?;
    let copy = fork["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
    ensure!(node.ask(&copy, "GET /state")?["values"]["note"] == "kept", "a fork of it");
    expect_no_heads(node)?;
    node.ok(&["store", "gc", "--grace", "0"])?;
    expect_marked(node, &id)
}

/// A program that counts, says each number, writes it into a file and shows its clock.
const COUNTER: &str = "import time\nn = 0\nwhile True:\n    n += 1\n    print(n, flush=True)\n    \
    open('/home/user/count', 'w').write(f'{n} {time.monotonic()}')\n    open('/tmp/ready', 'w')\n    time.sleep(0.005)";

fn nothing_after(_: &Shared, node: &mut Node) -> Result<()> {
    let arguments = ["--ready-file", "/tmp/ready", "--", "/usr/bin/python3", "-c", COUNTER];
    node.ok(&[&["template", "build", "count"], &arguments[..]].concat())?;
    let id = node.run("count", 1)?[0].id.to_string();
    sleep(Duration::from_millis(300));
    node.ok(&["pause", &id])?;
    let said = node.ok(&["logs", &id])?;
    let last: u64 = said.lines().last().context("no output")?.parse()?;
    sleep(Duration::from_secs(3));
    node.ok(&["resume", &id])?;
    sleep(Duration::from_millis(500));
    let more = node.ok(&["logs", &id])?;
    let numbers: Vec<u64> = more.lines().map(str::parse).collect::<Result<_, _>>()?;
    ensure!(more.starts_with(&said) && numbers.len() > said.lines().count(), "it does not go on");
    // Each number once: nothing was said after the instant that was kept, and nothing is missing.
    let gap = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
    ensure!(gap.is_none(), "a gap or a repetition at {gap:?}, paused after {last}");
    let (count, first) = count_and_clock(node, &id)?;
    ensure!(count > last, "{count} is not after {last}");
    sleep(Duration::from_millis(200));
    let (_, later) = count_and_clock(node, &id)?;
    ensure!(later > first && later - first < 3.0, "its clock went from {first} to {later}");
    Ok(())
}

/// What [`COUNTER`] has written last. The file is empty for a moment each time.
fn count_and_clock(node: &Node, id: &str) -> Result<(u64, f64)> {
    let shown = node.shell(id, "until grep . /home/user/count; do :; done")?;
    let (count, clock) = shown.split_once(' ').context("no count")?;
    Ok((count.parse()?, clock.trim().parse()?))
}

fn errors(_: &Shared, node: &mut Node) -> Result<()> {
    let id = marked(node)?;
    expect_conflict(&node.pando(&["resume", &id])?, "is not paused: it runs")?;
    pause(node, &id)?;
    for arguments in [
        vec!["pause", &id],
        vec!["checkpoint", &id],
        vec!["exec", &id, "--", "true"],
        vec!["create", &id],
        vec!["connect", &id, "8080"],
    ] {
        let answer = node.pando(&arguments)?;
        ensure!(answer.code == 1 && answer.stderr.contains("it is paused"), "{arguments:?}: {answer}");
        ensure!(answer.stderr.contains("resume it first"), "{arguments:?}: {answer}");
    }
    ensure!(node.api(&format!("POST /v1/sandboxes/{id}/pause"), b"")?.0 == 409, "the status");
    node.ok(&["logs", "--follow", &id])?;
    for command in ["pause", "resume"] {
        let missing = node.pando(&[command, "s000000000000"])?;
        ensure!(missing.code == 4, "{command}: {missing}");
    }
    // It needs its template no more.
    node.ok(&["template", "rm", "geo"])?;
    resume(node, &id)?;
    expect_marked(node, &id)?;
    pause(node, &id)
}

fn refused(_: &Shared, node: &mut Node) -> Result<()> {
    let id = marked(node)?;
    let held = begin_unforkable(node, &id)?;
    let answer = node.pando(&["pause", &id])?;
    ensure!(answer.code == 5 && answer.stderr.contains("(python3)"), "{answer}");
    expect_state(node, &id, SandboxState::Running)?;
    expect_marked(node, &id)?;
    held.signal(Signal::INT)?;
    held.end()?;
    pause(node, &id)
}

fn removed(shared: &Shared, node: &mut Node) -> Result<()> {
    let (one, two, three) = (marked(node)?, marked(node)?, marked(node)?);
    pause(node, &one)?;
    pause(node, &two)?;
    pause(node, &three)?;
    node.ok(&["kill", &one])?;
    ensure!(state(node, &one)?.is_none() && heads(node)? == 2, "something is left");
    let missing = node.pando(&["resume", &one])?;
    ensure!(missing.code == 4, "{missing}");
    // A node that knows nothing of it can remove it as well.
    let other = shared.node()?;
    other.ok(&["kill", &two])?;
    other.finish()?;
    let gone = node.pando(&["resume", &two])?;
    ensure!(gone.code == 4 && gone.stderr.contains("another node has resumed or removed it"), "{gone}");
    // Just resumed it still has its head.
    resume(node, &three)?;
    node.ok(&["kill", &three, &two])?;
    ensure!(node.ps()?.is_empty() && heads(node)? == 0, "something is left");
    ensure!(std::fs::read_dir(node.state.join("paused"))?.count() == 0, "records are left");
    Ok(())
}

fn restarts(_: &Shared, node: &mut Node) -> Result<()> {
    let id = marked(node)?;
    let who = identity(node, &id)?;
    for round in 0..3 {
        pause(node, &id)?;
        match round {
            0 => drop(node.stop_server()?),
            _ => node.kill_server()?,
        }
        node.start_server()?;
        expect_state(node, &id, SandboxState::Paused)?;
        resume(node, &id)?;
        if round == 1 {
            node.kill_server()?;
            node.start_server()?;
        }
        expect_marked(node, &id)?;
        ensure!(identity(node, &id)? == who, "round {round}: it is another one");
    }
    let state = node.ask(&id, "GET /state")?;
    ensure!(state["writes"] == 1, "{state}");
    Ok(())
}

fn another_node(shared: &Shared, node: &mut Node) -> Result<()> {
    let id = marked(node)?;
    let who = identity(node, &id)?;
    pause(node, &id)?;
    let other = shared.node()?;
    ensure!(other.ps()?.is_empty(), "it is another node's");
    let known: Vec<PausedSandbox> = serde_json::from_value(other.json(&["ls", "--paused", "--json"])?)?;
    ensure!(matches!(&known[..], [one] if one.id.as_str() == id && one.holder.is_none()), "{known:?}");
    ensure!(other.ok(&["ls", "--paused"])?.contains(&id) && other.ok(&["ls", "--paused", "-q"])? == format!("{id}\n"));
    resume(&other, &id)?;
    // Its memory is not filled in before it is known which pages it touches first: two seconds.
    ensure!(other.ok(&["ls", "--paused"])?.contains("this node") && node.ok(&["ls", "--paused"])?.contains(" node "));
    ensure!(node.ok(&["ls", "--paused", "-q"])?.is_empty(), "it is in the other's hands");
    expect_marked(&other, &id)?;
    ensure!(identity(&other, &id)? == who, "it is another one");
    let twice = node.pando(&["resume", &id])?;
    ensure!(twice.code != 0, "it runs twice: {twice}");
    expect_no_heads(&other)?;
    let known = node.json(&["ls", "--paused", "--json"])?;
    ensure!(known.as_array().is_some_and(Vec::is_empty), "it runs: {known}");
    let gone = node.pando(&["resume", &id])?;
    ensure!(gone.code == 4 && gone.stderr.contains("pando kill"), "{gone}");
    // And back again.
    other.ask(&id, "POST /write?key=elsewhere&value=1")?;
    let taken = other.pando(&["checkpoint", &id, "--name", "of-it"])?;
    ensure!(taken.code == 0, "{taken}");
    other.ok(&["checkpoint", "rm", "of-it"])?;
    pause(&other, &id)?;
    resume(node, &id)?;
    expect_marked(node, &id)?;
    ensure!(node.ask(&id, "GET /state")?["values"]["elsewhere"] == "1", "what it did elsewhere");
    ensure!(identity(node, &id)? == who, "it is another one");
    other.finish()?;
    expect_marked(node, &id)
}

/// Ids of the host are another range there; inside they are what they were, of files and of a program that is root.
fn owners(shared: &Shared, node: &mut Node) -> Result<()> {
    let image = root(node, "owners")?.join("0");
    let image = image.to_string_lossy();
    let program = ["--port", "8080", "--user", "root", "--", "/bin/nc", "-ll", "-p", "8080", "-e", "/bin/cat"];
    node.ok(&[&["template", "build", "rooted", "--image", &image], &program[..]].concat())?;
    let id = node.ok(&["create", "rooted", "-q"])?.trim().to_owned();
    let shell = |node: &Node, script: &str| node.ok(&["exec", &id, "--user", "root", "--", "/bin/sh", "-c", script]);
    shell(node, "echo x > /own; chown 33:44 /own; chmod 4755 /own")?;
    let seen = "stat -c '%u %g %a' /own; stat -c %u /proc/$(cat /program)/root; echo hi | nc 127.0.0.1 8080";
    shell(
        node,
        "for found in /proc/[0-9]*; do case $(cat $found/comm) in nc) echo ${found#/proc/} > /program; esac; done",
    )?;
    ensure!(shell(node, seen)? == "33 44 4755\n0\nhi\n", "{:?}", shell(node, seen));
    let range = shell(node, "cat /proc/self/uid_map")?;
    pause(node, &id)?;
    // They get what it had.
    node.ok(&["create", "rooted", "-n", "3"])?;
    let other = shared.node()?;
    other.ok(&["resume", &id])?;
    let there = shell(&other, "cat /proc/self/uid_map")?;
    ensure!(there != range, "the range is the same: {range}");
    ensure!(shell(&other, seen)? == "33 44 4755\n0\nhi\n", "{:?}", shell(&other, seen));
    other.finish()
}

fn race(shared: &Shared, node: &mut Node) -> Result<()> {
    let other = shared.node()?;
    for round in 0..3 {
        let id = marked(node)?;
        pause(node, &id)?;
        let both = [node.begin(&["resume", &id])?, other.begin(&["resume", &id])?];
        let [here, there] = both.map(|command| command.end());
        let (here, there) = (here?, there?);
        let won = [&here, &there].iter().filter(|answer| answer.code == 0).count();
        ensure!(won == 1, "round {round}: {won} won\n{here}\n{there}");
        let lost = if here.code == 0 { &there } else { &here };
        let known = ["another node was faster", "in the hands of node", "another node has resumed or removed it"];
        ensure!(known.iter().any(|known| lost.stderr.contains(known)) && !lost.stderr.contains("that was"), "{lost}");
        let winner = if here.code == 0 { &*node } else { &other };
        expect_marked(winner, &id)?;
    }
    other.ok(&["kill", "--all", "--force"])?;
    other.finish()
}

fn killed(_: &Shared, node: &mut Node) -> Result<()> {
    let (mut paused, mut running) = (0, 0);
    // In the first milliseconds the program is being captured.
    let rounds = number("PANDO_ROUNDS").unwrap_or(4);
    for round in 0..rounds {
        let id = marked(node)?;
        let command = node.begin(&["pause", &id])?;
        sleep(Duration::from_millis(5 + 880 * round / rounds));
        node.kill_server()?;
        command.end()?;
        node.start_server()?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while state(node, &id)? == Some(SandboxState::Pausing) {
            ensure!(Instant::now() < deadline, "round {round}: nobody knows whether it is paused");
            sleep(Duration::from_millis(20));
        }
        match state(node, &id)? {
            Some(SandboxState::Paused) => {
                paused += 1;
                resume(node, &id)?;
            }
            Some(SandboxState::Running) => running += 1,
            other => anyhow::bail!("round {round}: {other:?}"),
        }
        expect_marked(node, &id)?;
        node.ok(&["kill", &id])?;
        node.expect_only_itself()?;
        ensure!(heads(node)? == 0, "round {round}: a head is left");
    }
    eprintln!("    {running} were running afterwards, {paused} paused");
    Ok(())
}

fn forked(shared: &Shared, node: &mut Node) -> Result<()> {
    let id = marked(node)?;
    let who = identity(node, &id)?;
    pause(node, &id)?;
    let other = shared.node()?;
    for at in [&*node, &other] {
        let forked = at.json(&["fork", "-n", "2", &id, "--json"])?;
        let copies = forked["sandboxes"].as_array().context("no copies")?;
        ensure!(copies.len() == 2 && copies.iter().all(|copy| copy["parent"] == id.as_str()), "{forked}");
        for copy in copies {
            let copy = copy["id"].as_str().context("no id")?;
            expect_marked(at, copy)?;
            at.ask(copy, "POST /write?key=note&value=mine")?;
            at.shell(copy, "echo mine > /home/user/note")?;
        }
        let files = at.json(&["fork", "--files-only", &id, "--json"])?;
        let files = files["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
        ensure!(at.inspect(&files)?.sandbox.main_pid == 0, "it has a program");
        ensure!(at.shell(&files, "cat /home/user/d/link")? == "kept\n", "files");
    }
    expect_state(node, &id, SandboxState::Paused)?;
    let missing = node.pando(&["fork", "s000000000000"])?;
    ensure!(missing.code == 4, "{missing}");
    // What copies lack is kept for them, also when it is resumed and removed.
    resume(node, &id)?;
    expect_marked(node, &id)?;
    ensure!(identity(node, &id)? == who, "it is another one");
    let held = other.pando(&["fork", &id])?;
    ensure!(held.code != 0, "{held}");
    node.ok(&["kill", &id])?;
    node.ok(&["store", "gc", "--grace", "0"])?;
    for at in [&*node, &other] {
        for copy in at.ps()?.into_iter().filter(|copy| copy.main_pid != 0) {
            let id = copy.id.to_string();
            ensure!(at.ask(&id, "GET /verify")?["intact"] == true, "{id} is not intact");
            at.ok(&["fork", &id])?;
        }
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while other.json(&["store", "stats", "--json"])?["leases"] != 0 {
        ensure!(Instant::now() < deadline, "leases are left");
        sleep(Duration::from_millis(100));
    }
    other.finish()
}

fn no_store(shared: &Shared, node: &mut Node) -> Result<()> {
    let id = marked(node)?;
    let (objects, away) = (shared.0.join("objects"), shared.0.join("away"));
    std::fs::rename(&objects, &away)?;
    // No directory can be made in its place.
    std::fs::write(&objects, b"")?;
    let failed = node.pando(&["pause", &id])?;
    ensure!(failed.code == 1, "{failed}");
    expect_state(node, &id, SandboxState::Running)?;
    expect_marked(node, &id)?;
    std::fs::remove_file(&objects)?;
    std::fs::rename(&away, &objects)?;
    pause(node, &id)?;
    resume(node, &id)?;
    expect_marked(node, &id)
}

/// More mappings with holes between them than the pager once served (8,192): a pause that freed them could never be resumed.
fn many_ranges(_: &Shared, node: &mut Node) -> Result<()> {
    let program = node.program("many_ranges");
    node.ok(&[
        "template",
        "build",
        "ranges",
        "--ready-file",
        "/tmp/ready",
        "--",
        &program,
        "--ready-file",
        "/tmp/ready",
    ])?;
    let id = node.run("ranges", 1)?[0].id.to_string();
    node.ok(&["pause", &id])?;
    node.ok(&["resume", &id])?;
    node.shell(&id, "touch /tmp/go")?;
    let printed = || node.ok(&["logs", &id]).is_ok_and(|log| log.contains("ranges 9000, wrong 0"));
    wait_until("the program finds its memory", Duration::from_secs(20), printed)?;
    node.ok(&["kill", &id]).map(drop)
}

/// One page of memory in each of five mappings of 60 GiB.
fn too_many_addresses(_: &Shared, node: &mut Node) -> Result<()> {
    let script = "import mmap,time\nregions=[mmap.mmap(-1,60<<30,flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS|0x4000) for _ in range(5)]\n\
                  for region in regions: region[0]=1\nopen('/tmp/ready','w')\ntime.sleep(1000)";
    node.ok(&["template", "build", "wide", "--ready-file", "/tmp/ready", "--", "/usr/bin/python3", "-c", script])?;
    let id = node.run("wide", 1)?[0].id.to_string();
    for command in [vec!["pause", &id], vec!["checkpoint", &id, "--name", "wide-1"]] {
        let answer = node.pando(&command)?;
        ensure!(answer.code == 5 && answer.stderr.contains("reserve smaller mappings"), "{command:?}: {answer}");
    }
    // It runs on, and a live fork needs no pager.
    node.ok(&["fork", &id])?;
    node.shell(&id, "true").map(drop)
}
