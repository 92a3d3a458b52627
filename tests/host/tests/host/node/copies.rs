//! Copies of sandboxes whose origin is not there any more, or is another one by now.

use std::{fs::File, io::Write, path::Path};

use anyhow::{Context, Result, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use testkit::{node::Node, runner::Case};

use super::{
    checkpoint::take,
    shared::{Shared, with_geo},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("copies::a_fork_of_one_resumed_without_its_template_is_used_and_kept", || with_geo(without_template)),
        Case::new("copies::a_sandbox_keeps_its_description_when_its_template_gets_another", || with_geo(rebuilt)),
        Case::new("copies::one_with_a_long_description_and_many_small_files_is_kept_and_paused", long_description),
        Case::new("copies::run_starts_what_a_checkpoint_was_replaced_by", || with_geo(replaced)),
        Case::new("copies::run_beside_replacements_starts_none_older_than_itself", || with_geo(replaced_beside_runs)),
    ]
}

fn write(node: &Node, id: &str, value: &str) -> Result<()> {
    node.ask(id, &format!("POST /write?key=note&value={value}")).map(drop)
}

fn expect(node: &Node, id: &str, value: &str) -> Result<()> {
    let state = node.ask(id, "GET /state")?;
    ensure!(state["values"]["note"] == value && state["hostname"] == id, "{id} is not of {value}: {state}");
    Ok(())
}

fn run(node: &Node, name: &str) -> Result<String> {
    Ok(node.run(name, 1)?[0].id.to_string())
}

fn fork(node: &Node, id: &str) -> Result<String> {
    let forked = node.json(&["fork", id, "--json"])?;
    Ok(forked["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned())
}

fn without_template(_: &Shared, node: &mut Node) -> Result<()> {
    let id = run(node, "geo")?;
    write(node, &id, "kept")?;
    node.ok(&["pause", &id])?;
    node.ok(&["template", "rm", "geo"])?;
    node.ok(&["resume", &id])?;
    let first = fork(node, &id)?;
    node.ok(&["kill", &id])?;
    for copy in [fork(node, &first)?, first] {
        expect(node, &copy, "kept")?;
        ensure!(node.shell(&copy, "echo fine")? == "fine\n", "{copy}: exec");
        // A node that is started again knows it from its record.
        node.kill_server()?;
        node.start_server()?;
        take(node, &copy, "of-it")?;
        let started = run(node, "of-it")?;
        expect(node, &started, "kept")?;
        node.ok(&["kill", &started])?;
        node.ok(&["template", "rm", "of-it"])?;
        node.ok(&["checkpoint", "rm", "of-it"])?;
        node.ok(&["pause", &copy])?;
        node.ok(&["resume", &copy])?;
        expect(node, &copy, "kept")?;
    }
    Ok(())
}

fn rebuilt(_: &Shared, node: &mut Node) -> Result<()> {
    let build = |value: &str| {
        let variable = format!("WHICH={value}");
        let service = node.program("geo.py");
        let command = ["--port", "8080", "--env", &variable, "--", "/usr/bin/python3", &service, "--nidx", "4"];
        node.ok(&[&["template", "build", "which"], &command[..]].concat())
    };
    build("first")?;
    let id = run(node, "which")?;
    build("second")?;
    for of_first in [fork(node, &id)?, id] {
        ensure!(node.shell(&of_first, "echo $WHICH")? == "first\n", "{of_first} has the description of a later build");
    }
    ensure!(node.shell(&run(node, "which")?, "echo $WHICH")? == "second\n", "a sandbox of the second");
    Ok(())
}

/// Description and layers each fit into a manifest, and not all of them together.
fn long_description() -> Result<()> {
    let shared = Shared::new()?;
    let node = shared.node()?;
    let service = node.program("geo.py");
    let variables: Vec<String> = (0..4).map(|n| format!("LONG{n}={}", "x".repeat(120 << 10))).collect();
    let mut command = vec!["template", "build", "long", "--port", "8080"];
    variables.iter().for_each(|variable| command.extend(["--env", variable]));
    command.extend(["--", "/usr/bin/python3", &service, "--nidx", "2"]);
    node.ok(&command)?;
    let mut id = run(&node, "long")?;
    for _ in 0..2 {
        node.shell(&id, "head -c 190000 /dev/urandom > /home/user/$(date +%s%N)")?;
        id = fork(&node, &id)?;
    }
    write(&node, &id, "kept")?;
    node.shell(&id, "head -c 190000 /dev/urandom > /home/user/last; cat /home/user/* | md5sum > /tmp/sum")?;
    let right = |id: &str| node.shell(id, "cat /home/user/* | md5sum | cmp - /tmp/sum && env | grep -c LONG");
    take(&node, &id, "warm")?;
    let started = run(&node, "warm")?;
    expect(&node, &started, "kept")?;
    ensure!(right(&started)? == "4\n", "{started}: files or description");
    node.ok(&["pause", &id])?;
    node.ok(&["resume", &id])?;
    expect(&node, &id, "kept")?;
    ensure!(right(&id)? == "4\n", "{id}: files or description");
    node.finish()
}

fn replaced(shared: &Shared, node: &mut Node) -> Result<()> {
    let source = run(node, "geo")?;
    write(node, &source, "first")?;
    take(node, &source, "warm")?;
    let old = run(node, "warm")?;
    write(node, &source, "second")?;
    let taken = node.pando(&["checkpoint", &source, "--name", "warm", "--replace"])?;
    ensure!(taken.code == 0 && !taken.stderr.contains("template rm"), "{taken}");
    ensure!(!node.ok(&["checkpoint", "ls"])?.contains("hidden"), "it is what runs");
    let started = node.json(&["create", "warm", "--json"])?;
    ensure!(
        started["notices"][0].as_str().is_some_and(|notice| notice.contains("was replaced")),
        "not told: {started}"
    );
    let new = started["sandboxes"][0]["id"].as_str().context("not started")?.to_owned();
    expect(node, &new, "second")?;
    // What began with the old one goes on, with all that it can do.
    expect(node, &old, "first")?;
    let copy = fork(node, &old)?;
    expect(node, &copy, "first")?;
    ensure!(node.ask(&copy, "GET /verify")?["intact"] == true && node.shell(&old, "echo fine")? == "fine\n", "old");
    // Also if it takes the place of what it was itself started from.
    write(node, &new, "third")?;
    node.ok(&["checkpoint", &new, "--name", "warm", "--replace"])?;
    expect(node, &run(node, "warm")?, "third")?;
    // And by a file.
    write(node, &new, "fourth")?;
    take(node, &new, "other")?;
    let file = shared.0.join("other.pando").display().to_string();
    node.ok(&["checkpoint", "export", "other", &file])?;
    import_beside_a_replacement(shared, node, &file, &new)?;
    expect(node, &run(node, "warm")?, "fourth")?;
    node.ok(&["kill", &old, &copy])?;
    node.ok(&["kill", "--all"])?;
    let last = run(node, "warm")?;
    let directory = node.state.join("templates/warm");
    let used = node.inspect(&last)?.layers.iter().filter(|layer| Path::new(layer).starts_with(&directory)).count();
    let there = std::fs::read_dir(&directory)?.flatten();
    let there = there.filter(|entry| entry.file_name().to_string_lossy().starts_with("layer-")).count();
    ensure!(there == used, "{there} layers are there, and {used} of them are in use");
    node.kill_server()?;
    node.start_server()?;
    expect(node, &run(node, "warm")?, "fourth")
}

/// Whoever runs it after a replacement was answered gets that or a later one.
/// What it takes the place of is replaced while half of the file is read.
fn import_beside_a_replacement(shared: &Shared, node: &Node, file: &str, id: &str) -> Result<()> {
    let bytes = std::fs::read(file)?;
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let pipe = shared.0.join("arriving.pando");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    let name = pipe.display().to_string();
    let import = node.begin(&["checkpoint", "import", &name, "--name", "warm", "--replace"])?;
    let mut pipe = File::options().write(true).open(pipe)?;
    pipe.write_all(first)?;
    node.ok(&["checkpoint", id, "--name", "warm", "--replace"])?;
    pipe.write_all(second)?;
    drop(pipe);
    let answer = import.end()?;
    ensure!(answer.code == 0, "{answer}");
    Ok(())
}

fn replaced_beside_runs(_: &Shared, node: &mut Node) -> Result<()> {
    let source = run(node, "geo")?;
    write(node, &source, "0")?;
    take(node, &source, "warm")?;
    let mut runs = Vec::new();
    for round in 1..=4u64 {
        // Restores and starts of the one before are under way meanwhile.
        runs.push((round - 1, node.begin(&["create", "warm", "--json"])?));
        write(node, &source, &round.to_string())?;
        runs.push((round - 1, node.begin(&["create", "warm", "--json"])?));
        node.ok(&["checkpoint", &source, "--name", "warm", "--replace"])?;
        runs.push((round, node.begin(&["create", "warm", "--json"])?));
    }
    for (at_least, run) in runs {
        let answer = run.end()?;
        ensure!(answer.code == 0, "a run of {at_least}: {answer}");
        let answer: serde_json::Value = serde_json::from_str(&answer.stdout)?;
        let id = answer["sandboxes"][0]["id"].as_str().with_context(|| format!("not started: {answer}"))?.to_owned();
        let value: u64 = node.ask(&id, "GET /state")?["values"]["note"].as_str().context("no value")?.parse()?;
        ensure!(value >= at_least, "{id} has {value}, and {at_least} was there before it was asked for");
    }
    Ok(())
}
