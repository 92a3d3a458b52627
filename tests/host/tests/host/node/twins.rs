//! The same program on two nodes: memory page by page, and everything once more, round after round.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use base::id::Arena;
use serde_json::Value;
use testkit::{
    node::{Node, StoppedKeeper},
    runner::Case,
    twins::{self, Compared},
};

use super::{
    checkpoint::{FILLED, take},
    shared::Shared,
};

pub(crate) fn cases() -> Vec<Case> {
    let all = PROGRAMS.iter().map(|program| {
        Case::new(format!("twins::{}_has_every_page_of_its_source_on_another_node", program.name), || memory(program))
            .slow("every page of a program of full size is compared")
    });
    let all = all.collect::<Vec<_>>();
    all.into_iter()
        .chain([Case::new("twins::every_service_goes_on_on_a_distant_node_round_after_round", rounds)
            .slow("three services go on on another node, one after the other")])
        .collect()
}

/// A service and what runs it.
struct Program {
    name: &'static str,
    service: &'static str,
    before: &'static [&'static str],
    after: &'static [&'static str],
}

const PROGRAMS: [Program; 3] = [
    Program { name: "cpython", service: "geo.py", before: &["/usr/bin/python3"], after: &["--nidx", "4"] },
    Program { name: "go", service: "geo-go", before: &[], after: &["--port", "8080"] },
    Program { name: "node", service: "server.js", before: &["/usr/bin/node"], after: &["--port", "8080"] },
];

impl Program {
    fn build(&self, node: &Node) -> Result<()> {
        let service = node.program(self.service);
        let mut command = vec!["template", "build", self.name, "--port", "8080", "--"];
        command.extend(self.before);
        command.push(&service);
        command.extend(self.after);
        node.ok(&command).map(drop)
    }
}

/// The still of which a checkpoint is made is kept until the checkpoint is restored elsewhere, and compared with that.
fn memory(program: &Program) -> Result<()> {
    let shared = Shared::new()?;
    let node = shared.node()?;
    program.build(&node)?;
    let id = node.run(program.name, 1)?[0].id.to_string();
    node.ask(&id, "POST /write?key=k&value=v")?;
    let template = zygote_of_only_template(&node)?;
    let taking = node.begin(&["checkpoint", &id, "--name", "kept", "--json"])?;
    let held = Held::hold(&node, template)?;
    let other = shared.distant_node()?;
    let compared = on_another(&node, &other, held.zygote);
    drop(held);
    let compared = compared.with_context(|| format!("log of the second node:\n{}", other.log_tail()))?;
    println!("    {}: {} pages, {} of them not zeros", program.name, compared.pages, compared.filled);
    let taken = taking.end()?;
    ensure!(taken.code == 0, "the checkpoint: {taken}");
    other.finish()?;
    node.finish()
}

fn on_another(node: &Node, other: &Node, held: i32) -> Result<Compared> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let warmed = other.pando(&["template", "warm", "kept"])?;
        if warmed.code == 0 {
            break;
        }
        ensure!(Instant::now() < deadline, "{warmed}; log of the first node:\n{}", node.log_tail());
        std::thread::sleep(Duration::from_millis(100));
    }
    let compared = filled(held, zygote_of_only_template(other)?)?;
    ensure!(compared.filled > 500, "a program has more memory: {compared:x?}");
    ensure!(compared.differing.is_empty() && compared.unshared.is_empty(), "not the same: {compared:x?}");
    Ok(compared)
}

/// Compares them when the second has all its pages: of one that still lacks some, `/proc/PID/mem` gives an error instead of a page.
fn filled(first: i32, second: i32) -> Result<Compared> {
    let deadline = Instant::now() + Duration::from_secs(60);
    std::thread::sleep(FILLED);
    loop {
        match twins::compare(first, second, &[ARENAS]) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(500)),
            ended => return ended,
        }
    }
}

fn zygote_of_only_template(node: &Node) -> Result<i32> {
    let templates = node.json(&["template", "ls", "--json"])?;
    let zygote = templates[0]["facts"]["zygote_pid"].as_i64().with_context(|| format!("no zygote: {templates}"))?;
    Ok(i32::try_from(zygote)?)
}

/// Where arenas lie: all the rooms that `crates/process/src/zygote/build.rs` tries from `ROOM_FIRST` on. V8 asks for memory at random
/// addresses and now and then has some of the first room.
const ARENAS: Arena = Arena { start: 0x3f00_0000_0000, end: 0x3f40_0000_0000 };

/// A node's zygote of which a checkpoint is being made. Its keeper stands still, so that the zygote is not ended, until this is dropped.
struct Held {
    _keeper: StoppedKeeper,
    zygote: i32,
}

impl Held {
    /// Waits until the server reads the memory of a zygote that is no template's: of these it learns which pages are written first.
    fn hold(node: &Node, template: i32) -> Result<Self> {
        let descriptors = format!("/proc/{}/fd", node.server_pid()?);
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(zygote) = opened_memory(Path::new(&descriptors))?.filter(|zygote| *zygote != template) {
                return Ok(Self { _keeper: node.stop_keeper()?, zygote });
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        bail!("the server has read nobody's memory")
    }
}

/// Whose memory one of these descriptors is.
fn opened_memory(descriptors: &Path) -> Result<Option<i32>> {
    for entry in std::fs::read_dir(descriptors)?.flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let target = target.to_string_lossy();
        if let Some(pid) = target.strip_prefix("/proc/").and_then(|rest| rest.strip_suffix("/mem")) {
            return Ok(pid.parse().ok());
        }
    }
    Ok(None)
}

/// Each service is checkpointed on one node and goes on on a node that is new in each round: an empty cache, a network of its own, another
/// root. `PANDO_ROUNDS` rounds, one without.
fn rounds() -> Result<()> {
    let rounds: u32 = std::env::var("PANDO_ROUNDS").map_or(Ok(1), |rounds| rounds.parse()).context("PANDO_ROUNDS")?;
    let shared = Shared::new()?;
    let node = shared.node()?;
    PROGRAMS.iter().try_for_each(|program| program.build(&node))?;
    for round in 0..rounds {
        one_round(&shared, &node, round).with_context(|| format!("round {round}"))?;
        println!("    round {round} of {rounds}: {} programs", PROGRAMS.len());
    }
    node.finish()
}

fn one_round(shared: &Shared, node: &Node, round: u32) -> Result<()> {
    let mut sources: Vec<(String, String, Value)> = Vec::new();
    for program in &PROGRAMS {
        let id = node.run(program.name, 1)?[0].id.to_string();
        node.ask(&id, &format!("POST /write?key=round&value={round}"))?;
        node.shell(&id, &format!("echo {round} > /tmp/round"))?;
        let state = node.ask(&id, "GET /state")?;
        let name = format!("{}-{round}", program.name);
        take(node, &id, &name)?;
        sources.push((id, name, state));
    }
    let other = shared.distant_node()?;
    let went_on = sources.iter().try_for_each(|(_, name, before)| goes_on(&other, name, before, round));
    went_on.with_context(|| format!("log of the second node:\n{}", other.log_tail()))?;
    other.finish()?;
    for (id, name, _) in &sources {
        ensure!(node.ask(id, "GET /verify")?["intact"] == true, "the source of {name} is not intact");
        node.ok(&["kill", id])?;
        node.ok(&["checkpoint", "rm", name])?;
    }
    node.ok(&["store", "gc", "--grace", "0"]).map(drop)
}

fn goes_on(other: &Node, name: &str, before: &Value, round: u32) -> Result<()> {
    let id = other.run(name, 1)?[0].id.to_string();
    let state = other.ask(&id, "GET /state")?;
    ensure!(state["values"] == before["values"] && state["digest"] == before["digest"], "{name}: {before} {state}");
    ensure!(state["writes"] == before["writes"] && state["hostname"] == id, "{name}: {before} {state}");
    ensure!(other.ask(&id, "GET /verify")?["intact"] == true, "{name} is not intact");
    ensure!(other.shell(&id, "cat /tmp/round")? == format!("{round}\n"), "{name}: files");
    other.ask(&id, "POST /write?key=own&value=1")?;
    ensure!(other.ask(&id, "GET /state")?["values"]["own"] == "1", "{name} takes no writes");
    Ok(())
}
