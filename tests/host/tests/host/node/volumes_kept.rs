//! Checkpoints of sandboxes that write volumes: they have what was in them in the same instant, for as long as they are there, on any node.

use std::{
    fs,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Error, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use testkit::{node::Node, runner::Case};

use super::{
    volumes::{
        BEGIN_WRITING, expect_whole_journal, fails, run_with, scribe_case, with_scribe, write_by_mapping, writing,
    },
    volumes_faults::two_nodes,
};

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, body| scribe_case(&format!("volumes_kept::{name}"), "3", body);
    vec![
        case("a_checkpoint_has_the_volumes_of_its_instant", of_its_instant),
        case("a_checkpoint_keeps_what_its_volumes_held", kept),
        case("other_volumes_can_be_in_the_place_of_those_of_a_checkpoint", instead),
        case("what_is_mounted_read_only_is_not_kept", read_only),
        case("a_pause_does_not_care_for_mount_points_without_a_volume", without),
        case("an_interrupted_run_leaves_no_volumes", interrupted),
        killed("in_a_cut_forgets_what_it_took_for_it", cut_short),
        killed("in_starts_removes_volumes_of_copies_that_do_not_run", starts_cut_short),
        killed("in_a_transfer_removes_what_carried_volumes", transfers_cut_short),
        case("a_file_of_a_checkpoint_has_its_volumes", by_file),
        two_nodes("volumes_kept::a_checkpoint_takes_its_volumes_to_another_node", elsewhere),
    ]
}

fn killed(name: &str, body: fn(&mut Node) -> Result<()>) -> Case {
    Case::new(format!("volumes_kept::a_node_that_was_killed_{name}"), move || {
        with_scribe(&["--pool", "1", "--ahead", "0"], body)
    })
}

/// Starts sandboxes of a checkpoint; their ids.
fn run(node: &Node, checkpoint: &str, count: usize) -> Result<Vec<String>> {
    let response = node.json(&["create", checkpoint, "-n", &count.to_string(), "--json"])?;
    let sandboxes = response["sandboxes"].as_array().context("no sandboxes")?;
    ensure!(sandboxes.len() == count, "{response}");
    let id = |sandbox: &Value| Ok(sandbox["id"].as_str().context("no id")?.to_owned());
    sandboxes.iter().map(id).collect()
}

pub(crate) fn volumes(node: &Node) -> Result<Vec<String>> {
    let volumes = node.json(&["volume", "ls", "--json"])?;
    let name = |volume: &Value| Ok(volume["name"].as_str().context("no name")?.to_owned());
    volumes.as_array().context("no list")?.iter().map(name).collect()
}

fn remove_all(node: &Node) -> Result<()> {
    node.ok(&["kill", "--all", "--force"])?;
    for volume in volumes(node)? {
        node.ok(&["volume", "rm", &volume])?;
    }
    Ok(())
}

fn forget(node: &Node, checkpoint: &str) -> Result<()> {
    node.ok(&["template", "rm", checkpoint])?;
    node.ok(&["checkpoint", "rm", checkpoint]).map(drop)
}

/// That many files of an earlier checkpoint are no more than garbage by now.
fn collect(node: &Node) -> Result<()> {
    node.ok(&["store", "gc", "--grace", "0s"]).map(drop)
}

fn of_its_instant(node: &Node) -> Result<()> {
    let writer = writing(node)?;
    for round in 0..3 {
        let text = format!("round {round}");
        write_by_mapping(node, &writer, &text)?;
        let taken = node.json(&["checkpoint", &writer, "--name", "warm", "--replace", "--json"])?;
        ensure!(taken["volumes"][0]["volume"] == "ws" && taken["volumes"][0]["path"] == "/workspace", "{taken}");
        write_by_mapping(node, &writer, "written later")?;
        let copies = run(node, "warm", 2)?;
        for id in &copies {
            ensure!(node.shell(id, "head -c 7 /workspace/page")? == text, "{id}: what was written through a mapping");
            expect_whole_journal(node, id)?;
            node.shell(id, "echo mine > /workspace/mine")?;
            ensure!(node.ok(&["volume", "cat", &format!("ws-{id}"), "mine"])? == "mine\n");
        }
        node.shell(&writer, "test -e /workspace/go -a ! -e /workspace/mine").context("the original's volume")?;
        let copies: Vec<&str> = copies.iter().map(String::as_str).collect();
        // In the second round some are left: they run on when the checkpoint has been replaced, and the next run takes what it is now.
        node.ok(&[&["kill"], &copies[usize::from(round == 1)..]].concat())?;
    }
    let left = node.ps()?.into_iter().map(|sandbox| sandbox.id.to_string()).find(|id| *id != writer);
    let left = left.context("none is left")?;
    node.shell(&left, "test $(wc -l < /workspace/journal) -gt 1 -a $(cat /workspace/mine) = mine")?;
    node.ok(&["kill", &left])?;
    node.ok(&["template", "rm", "warm"])?;
    ensure!(node.json(&["volume", "log", "ws", "--json"])?.as_array().is_some_and(Vec::is_empty), "snapshots are left");
    ensure!(volumes(node)?.len() == 7, "volumes outlive sandboxes");
    expect_whole_journal(node, &writer)?;
    ensure!(node.ok(&["checkpoint", "inspect", "warm"])?.contains("/workspace"));
    node.ok(&["checkpoint", "verify", "warm"])?;
    node.ok(&["checkpoint", "rm", "warm"])?;
    remove_all(node)
}

fn kept(node: &Node) -> Result<()> {
    let writer = writing(node)?;
    node.ok(&["checkpoint", &writer, "--name", "warm"])?;
    // Nothing else is left of the volume.
    remove_all(node)?;
    collect(node)?;
    let copy = run(node, "warm", 1)?.remove(0);
    expect_whole_journal(node, &copy)?;
    node.ok(&["volume", "fork", "ws", "again", "--checkpoint", "warm"])?;
    ensure!(node.ok(&["volume", "cat", "again", "journal"])?.starts_with("0\n1\n"));
    fails(node, &["volume", "fork", "other", "again2", "--checkpoint", "warm"], 2, "has no volume other")?;
    // One of a copy stands by itself.
    node.shell(&copy, "touch /workspace/go; sleep 0.2")?;
    node.ok(&["checkpoint", &copy, "--name", "second"])?;
    remove_all(node)?;
    forget(node, "warm")?;
    collect(node)?;
    fails(node, &["create", "warm"], 4, "warm")?;
    let copy = run(node, "second", 1)?.remove(0);
    expect_whole_journal(node, &copy)?;
    remove_all(node)?;
    // The template that was restored from it is not enough.
    node.ok(&["checkpoint", "rm", "second"])?;
    fails(node, &["create", "second"], 4, "no checkpoint second")?;
    fails(node, &["create", "second"], 4, "no checkpoint second")?;
    ensure!(volumes(node)?.is_empty() && node.ps()?.is_empty(), "something is left of the failed start");
    node.ok(&["template", "rm", "second"]).map(drop)
}

fn instead(node: &Node) -> Result<()> {
    let writer = writing(node)?;
    node.ok(&["checkpoint", &writer, "--name", "warm"])?;
    node.ok(&["kill", &writer])?;
    node.ok(&["volume", "create", "other"])?;
    // On the volume itself, and with one more.
    let arguments = ["create", "warm", "--volume", "ws:/workspace", "--volume", "other:/data", "--json"];
    let started = node.json(&arguments)?;
    let id = started["sandboxes"][0]["id"].as_str().context("not started")?;
    node.shell(id, "echo text > /data/a; echo text > /workspace/a")?;
    ensure!(node.ok(&["volume", "cat", "other", "a"])? == "text\n");
    ensure!(node.ok(&["volume", "cat", "ws", "a"])? == "text\n" && volumes(node)?.len() == 2);
    let with_data = node.json(&["create", "warm", "--volume", "other:/data", "--json"])?;
    let id = with_data["sandboxes"][0]["id"].as_str().context("not started")?;
    ensure!(node.shell(id, "cat /data/a; ls /workspace/a 2>&1 | grep -c 'No such'")? == "text\n1\n");
    expect_whole_journal(node, id)?;
    ensure!(volumes(node)?.len() == 3);
    remove_all(node)?;
    forget(node, "warm")
}

fn read_only(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws"])?;
    let writer = run_with(node, &["ws:/workspace"])?;
    node.shell(&writer, "echo text > /workspace/a")?;
    let reader = run_with(node, &["ws:/workspace:ro"])?;
    let copy = node.json(&["fork", &reader, "--json"])?["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
    ensure!(node.shell(&copy, "cat /workspace/a")? == "text\n", "a copy has what is mounted read-only");
    // The checkpoint has none of it, and is given others.
    let taken = node.json(&["checkpoint", &reader, "--name", "warm", "--json"])?;
    ensure!(taken["volumes"].is_null(), "{taken}");
    let restored = node.json(&["create", "warm", "--volume", "ws:/data", "--json"])?;
    let restored = restored["sandboxes"][0]["id"].as_str().context("not restored")?;
    ensure!(node.shell(restored, "cat /data/a; ls /workspace")? == "text\n");
    node.ok(&["pause", &reader])?;
    node.ok(&["resume", &reader])?;
    ensure!(
        node.shell(&reader, "cat /workspace/a; (echo > /workspace/a) 2>&1 | grep -o Read-only")? == "text\nRead-only\n"
    );
    remove_all(node)?;
    forget(node, "warm")
}

/// What lies there is the sandbox's own, and a sandbox that is resumed has nothing else there. One of a checkpoint may have.
fn without(node: &Node) -> Result<()> {
    let id = node.run("scribe", 1)?[0].id.to_string();
    node.shell(&id, &format!("{BEGIN_WRITING} && rm go && touch map && sleep 0.3"))?;
    fails(node, &["checkpoint", &id, "--name", "warm"], 5, "/workspace/journal")?;
    for _ in 0..2 {
        node.ok(&["pause", &id])?;
        node.ok(&["resume", &id])?;
    }
    node.shell(&id, "cd /workspace; rm map; touch go; sleep 0.3; rm go; sleep 0.1; test $(wc -l < journal) -gt 10")?;
    remove_all(node)
}

fn interrupted(node: &Node) -> Result<()> {
    let writer = writing(node)?;
    node.ok(&["checkpoint", &writer, "--name", "warm"])?;
    node.ok(&["template", "warm", "warm"])?;
    for round in 0..6 {
        let run = node.begin(&["create", "warm", "-n", "4"])?;
        sleep(Duration::from_millis(4 + 10 * round));
        // It may have ended.
        let _ = run.signal(Signal::INT);
        if run.end()?.code == 0 {
            break;
        }
        wait_until(|| Ok(volumes(node)?.len() == 1 && node.ps()?.len() == 1))
            .with_context(|| format!("round {round}: left: {:?}", volumes(node)))?;
    }
    expect_whole_journal(node, &writer)?;
    remove_all(node)?;
    forget(node, "warm")
}

fn cut_short(node: &mut Node) -> Result<()> {
    let writer = writing(node)?;
    node.ok(&["volume", "snapshot", "ws", "mine"])?;
    let snapshots = |node: &Node| -> Result<Vec<String>> {
        let log = node.json(&["volume", "log", "ws", "--json"])?;
        let name = |snapshot: &Value| Ok(snapshot["snapshot"].as_str().context("no name")?.to_owned());
        let mut names: Vec<_> = log.as_array().context("no list")?.iter().map(name).collect::<Result<_>>()?;
        names.sort();
        Ok(names)
    };
    let is_alone = |node: &Node| Ok::<_, Error>(snapshots(node)? == ["mine"]);
    for _ in 0..4 {
        let deadline = Instant::now() + Duration::from_secs(10);
        let taking = loop {
            let taking = node.begin(&["checkpoint", &writer, "--name", "warm", "--replace"])?;
            let began = Instant::now();
            while is_alone(node)? && began.elapsed() < Duration::from_secs(1) {}
            if !is_alone(node)? {
                break taking;
            }
            // It was over between two looks.
            taking.end()?;
            ensure!(Instant::now() < deadline, "no cut was seen");
        };
        node.kill_server()?;
        taking.end()?;
        node.start_server()?;
        wait_until(|| is_alone(node)).with_context(|| format!("left: {:?}", snapshots(node)))?;
    }
    expect_whole_journal(node, &writer)?;
    remove_all(node)
}

fn starts_cut_short(node: &mut Node) -> Result<()> {
    let writer = writing(node)?;
    node.ok(&["checkpoint", &writer, "--name", "warm"])?;
    let mut cut_short = 0;
    for round in 0..6 {
        node.ok(&["template", "warm", "warm"])?;
        let run = node.begin(&["create", "warm", "-n", "4"])?;
        sleep(Duration::from_millis(4 + 8 * round));
        node.kill_server()?;
        cut_short += usize::from(run.end()?.code != 0);
        node.start_server()?;
        // Copies that ran by then are recorded, and have theirs.
        wait_until(|| Ok(volumes(node)?.len() == node.ps()?.len()))
            .with_context(|| format!("round {round}: left: {:?} {:?}", volumes(node), node.ok(&["ls"])))?;
        for sandbox in node.ps()?.iter().map(|sandbox| sandbox.id.to_string()).filter(|id| *id != writer) {
            node.ok(&["kill", &sandbox])?;
            node.ok(&["volume", "rm", &format!("ws-{sandbox}")])?;
        }
    }
    ensure!(cut_short > 0, "no start was cut short");
    expect_whole_journal(node, &writer)?;
    remove_all(node)?;
    forget(node, "warm")
}

fn transfers_cut_short(node: &mut Node) -> Result<()> {
    let writer = writing(node)?;
    node.shell(&writer, "head -c 64M /dev/urandom > /workspace/much")?;
    node.ok(&["checkpoint", &writer, "--name", "warm"])?;
    let file = node.dir().join("warm.pando").display().to_string();
    node.ok(&["checkpoint", "export", "warm", &file])?;
    let cut = format!("{file}.2");
    for (arguments, carrier) in [
        (&["checkpoint", "export", "warm", &cut][..], "export-"),
        (&["checkpoint", "import", &file, "--name", "second"], "import-"),
    ] {
        let carrying = node.begin(arguments)?;
        wait_until(|| Ok(volumes(node)?.iter().any(|name| name.starts_with(carrier))))
            .with_context(|| format!("{carrier}: nothing carries it"))?;
        node.kill_server()?;
        ensure!(carrying.end()?.code != 0, "{carrier}: it was over");
        node.start_server()?;
        wait_until(|| Ok(volumes(node)? == ["ws"])).with_context(|| format!("{carrier}: left: {:?}", volumes(node)))?;
    }
    fails(node, &["checkpoint", "inspect", "second"], 4, "second")?;
    expect_whole_journal(node, &writer)?;
    remove_all(node)?;
    node.ok(&["checkpoint", "rm", "warm"]).map(drop)
}

fn by_file(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws", "--size", "1G", "--durability", "object"])?;
    node.ok(&["volume", "create", "data"])?;
    let writer = run_with(node, &["ws:/workspace", "data:/data"])?;
    let special =
        "echo text > a; ln a b; ln -s a c; mkfifo d; truncate -s 1M e; mkdir -m 700 f; chmod 4755 a; touch -d @1.5 f";
    node.shell(&writer, &format!("cd /data; {special}; {BEGIN_WRITING}"))?;
    node.ok(&["checkpoint", &writer, "--name", "warm"])?;
    let file = node.dir().join("warm.pando");
    let path = file.display().to_string();
    node.ok(&["checkpoint", "export", "warm", &path])?;
    ensure!(volumes(node)? == ["data", "ws"], "left: {:?}", volumes(node)?);
    let bytes = fs::read(&file)?;
    outlives_its_name(node, &writer)?;
    let other = Node::start()?;
    imported(&other, &path, &bytes).with_context(|| {
        format!(
            "log of the other node:
{}",
            other.log_tail()
        )
    })?;
    other.finish()?;
    remove_all(node)?;
    node.ok(&["checkpoint", "rm", "warm"]).map(drop)
}

/// An export is of what the checkpoint was when it began.
fn outlives_its_name(node: &Node, writer: &str) -> Result<()> {
    let slow = node.dir().join("slow.pando").display().to_string();
    // Files come before volumes, and these are more than fits between the two.
    node.shell(writer, "head -c 16M /dev/urandom > /tmp/much")?;
    node.ok(&["checkpoint", writer, "--name", "warm", "--replace"])?;
    let exporting = node.begin(&["checkpoint", "export", "warm", &slow])?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_arriving(node.dir())? {
        ensure!(Instant::now() < deadline, "nothing is exported");
    }
    exporting.signal(Signal::STOP)?;
    node.ok(&["checkpoint", writer, "--name", "warm", "--replace"])?;
    exporting.signal(Signal::CONT)?;
    let ended = exporting.end()?;
    ensure!(ended.code == 0, "{ended}");
    node.ok(&["checkpoint", "import", &slow, "--name", "slow"])?;
    node.ok(&["checkpoint", "verify", "slow"])?;
    node.ok(&["checkpoint", "rm", "slow"]).map(drop)
}

fn is_arriving(directory: &Path) -> Result<bool> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // It may have got its name, or be gone.
        let length = entry.metadata().map_or(0, |metadata| metadata.len());
        if entry.file_name().to_string_lossy().starts_with(".tmp") && length > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// On a node with another store.
fn imported(other: &Node, path: &str, bytes: &[u8]) -> Result<()> {
    // From the second half on it is archives, but for the end.
    for cut in (1..8).map(|part| bytes.len() - bytes.len() / 16 * part) {
        for broken in [bytes[..cut].to_vec(), [&bytes[..cut], &[!bytes[cut]], &bytes[cut + 1..]].concat()] {
            let answer = other.pando_with_input(&["checkpoint", "import", "-"], &broken)?;
            ensure!(answer.code == 1 && volumes(other)?.is_empty(), "{answer} {:?}", volumes(other)?);
        }
    }
    other.ok(&["checkpoint", "import", path])?;
    ensure!(volumes(other)?.is_empty(), "left: {:?}", volumes(other)?);
    other.ok(&["checkpoint", "verify", "warm"])?;
    collect(other)?;
    for copy in run(other, "warm", 2)? {
        expect_whole_journal(other, &copy)?;
        let look = "cd /data; stat -c '%n %f %h %s %Y' a b c d e f; readlink c; cat b";
        let seen = other.shell(&copy, look)?;
        ensure!(seen.lines().any(|line| line == "e 81a4 1 1048576" || line.starts_with("e 81a4 1 1048576 ")), "{seen}");
        ensure!(seen.contains("a 89ed 2 5 ") && seen.contains("b 89ed 2 5 ") && seen.contains("d 11a4 1 0 "), "{seen}");
        ensure!(seen.contains("f 41c0 2 ") && seen.contains(" 1\n") && seen.ends_with("a\ntext\n"), "{seen}");
        let own = other.json(&["volume", "inspect", &format!("ws-{copy}"), "--json"])?;
        ensure!(own["usage"]["bytes_max"] == 1 << 30 && own["durability"] == "object", "{own}");
    }
    remove_all(other)?;
    forget(other, "warm")
}

pub(crate) fn wait_until(holds: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds()? {
        ensure!(Instant::now() < deadline, "not in time");
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn elsewhere(first: &Node, second: &Node) -> Result<()> {
    let writer = writing(first)?;
    first.ok(&["checkpoint", &writer, "--name", "warm"])?;
    let copies = run(second, "warm", 3)?;
    for copy in &copies {
        expect_whole_journal(second, copy)?;
    }
    first.shell(&writer, "test -e /workspace/go").context("the original's volume")?;
    expect_whole_journal(first, &writer)?;
    // One of there, back here; the one of here is not needed for it.
    second.shell(&copies[0], "touch /workspace/go; sleep 0.2")?;
    second.ok(&["checkpoint", &copies[0], "--name", "back"])?;
    second.ok(&["kill", "--all", "--force"])?;
    forget(second, "warm")?;
    remove_all(first)?;
    collect(first)?;
    let back = run(first, "back", 1)?.remove(0);
    expect_whole_journal(first, &back)?;
    remove_all(first)?;
    forget(first, "back")
}
