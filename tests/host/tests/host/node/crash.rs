//! kill -9 of any process of the node at any moment: nothing leaks, the next command works, and its message says what happened.

use std::{
    collections::BTreeSet,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use api::{Sandbox, SandboxState};
use rustix::process::{Pid, Signal, kill_process};
use testkit::{
    node::{Answer, Node, Running, Setting},
    runner::Case,
};

/// A service that is warm within 0.2 s.
const SMALL: [&str; 4] = ["--nidx", "2", "--hotels", "2000"];

const ROUNDS_DEFAULT: u64 = 4;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("crash::a_new_server_adopts_what_runs", || case(server_adopts)),
        Case::new("crash::a_stopped_node_keeps_its_sandboxes", || case(stopped_node)),
        Case::new("crash::a_node_that_is_told_to_stop_while_it_starts_leaves_orderly", || case(stopped_at_once)),
        Case::new("crash::a_node_that_cannot_start_its_own_program_says_so_and_ends", || case(no_program)),
        Case::new(
            "crash::an_ephemeral_node_that_cannot_start_its_own_program_removes_no_sandbox",
            no_program_for_these,
        ),
        Case::new("crash::a_build_that_died_with_its_node_leaves_nothing", || case(built_halfway)),
        Case::new("crash::a_new_keeper_adopts_what_runs_and_the_zygote_is_built_again", || case(keeper_adopts)),
        Case::new("crash::server_and_keeper_at_once", || case(both)),
        Case::new("crash::a_lost_zygote_is_built_again_and_run_says_so", || case(zygote)),
        Case::new("crash::a_killed_copy_is_listed_as_killed", || case(copy)),
        Case::new("crash::a_killed_pid_1_ends_its_sandbox_only", || case(init)),
    ];
    cases.push(Case::new("crash::any_process_at_any_moment", any_process_at_any_moment));
    cases
}

fn case(body: fn(&mut Node) -> Result<()>) -> Result<()> {
    let mut node = Node::start()?;
    node.build_geo("geo", &SMALL)?;
    body(&mut node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

fn kill(pid: i32) -> Result<()> {
    Ok(kill_process(Pid::from_raw(pid).context("no pid")?, Signal::KILL)?)
}

fn ids(sandboxes: &[Sandbox]) -> Vec<String> {
    sandboxes.iter().map(|sandbox| sandbox.id.to_string()).collect()
}

/// The node starts and the copies in it have the state of the template.
fn expect_works(node: &Node, count: usize) -> Result<Answer> {
    let answer = node.pando(&["create", "geo", "-n", &count.to_string(), "--json"])?;
    ensure!(answer.code == 0, "the next `pando create`: {answer}");
    let response: api::RunResponse = serde_json::from_str(&answer.stdout)?;
    ensure!(response.sandboxes.len() == count, "{answer}");
    for id in ids(&response.sandboxes) {
        ensure!(node.ask(&id, "GET /verify")?["intact"] == true, "{id} is not intact");
        node.ok(&["kill", &id])?;
    }
    Ok(answer)
}

/// Sandboxes with a value of their own in each.
fn marked(node: &Node, count: usize) -> Result<Vec<String>> {
    let ids = ids(&node.run("geo", count)?);
    for id in &ids {
        node.ask(id, &format!("POST /write?key=me&value={id}"))?;
    }
    Ok(ids)
}

fn expect_marked(node: &Node, ids: &[String]) -> Result<()> {
    let running: BTreeSet<String> = node
        .ps()?
        .into_iter()
        .filter(|sandbox| sandbox.state == SandboxState::Running)
        .map(|sandbox| sandbox.id.to_string())
        .collect();
    for id in ids {
        ensure!(running.contains(id), "{id} is not listed as running");
        let state = node.ask(id, "GET /state")?;
        ensure!(state["values"]["me"] == *id.as_str(), "{id} is not what it was: {state}");
        ensure!(node.shell(id, "hostname")?.trim_end() == id, "exec in {id}");
    }
    Ok(())
}

fn server_adopts(node: &mut Node) -> Result<()> {
    let ids = marked(node, 3)?;
    node.kill_server()?;
    let down = node.pando(&["ls"])?;
    ensure!(down.code == 3 && down.stderr.contains("cannot be reached"), "{down}");
    node.start_server()?;
    expect_marked(node, &ids)?;
    let fork = node.json(&["fork", &ids[0], "--json"])?;
    let copy = fork["sandboxes"][0]["id"].as_str().context("no copy of an adopted sandbox")?.to_owned();
    ensure!(node.ask(&copy, "GET /state")?["values"]["me"] == *ids[0].as_str(), "fork of an adopted sandbox");
    node.ok(&["kill", &copy])?;
    let answer = expect_works(node, 2)?;
    ensure!(answer.stderr.contains("note:"), "run does not say that the zygote had to be built again: {answer}");
    for id in &ids {
        node.ok(&["kill", id])?;
    }
    ensure!(node.ps()?.is_empty(), "sandboxes are left after rm");
    Ok(())
}

fn stopped_node(node: &mut Node) -> Result<()> {
    let ids = marked(node, 3)?;
    let code = node.stop_server()?;
    ensure!(code == Some(0), "the node ended with {code:?}");
    node.start_server()?;
    expect_marked(node, &ids)
}

fn stopped_at_once(node: &mut Node) -> Result<()> {
    let ids = marked(node, 3)?;
    node.stop_server()?;
    for _ in 0..5 {
        let code = node.start_and_stop_server()?;
        ensure!(code == Some(0), "the node ended with {code:?}");
    }
    node.start_server()?;
    expect_marked(node, &ids)
}

fn no_program(node: &mut Node) -> Result<()> {
    node.stop_server()?;
    let code = node.start_server_of_a_removed_program()?;
    let log = node.log()?;
    // The first of it that a node starts.
    ensure!(code == Some(1) && log.contains("cannot start the self-test"), "the node ended with {code:?}:\n{log}");
    node.expect_stopped()?;
    node.start_server()?;
    expect_works(node, 1).map(drop)
}

fn no_program_for_these() -> Result<()> {
    let mut node = Node::start_with(Setting { arguments: vec!["--ephemeral".to_owned()], ..Setting::default() })?;
    node.build_geo("geo", &SMALL)?;
    let ids = marked(&node, 2)?;
    node.kill_server()?;
    let code = node.start_server_of_a_removed_program()?;
    ensure!(code == Some(1), "the node ended with {code:?}:\n{}", node.log()?);
    node.start_server()?;
    expect_marked(&node, &ids)?;
    node.finish()
}

fn built_halfway(node: &mut Node) -> Result<()> {
    let ids = marked(node, 1)?;
    let directory = node.state.join("templates/other");
    let build = begin(node, Moment::Build, &ids[0])?.context("no build")?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !directory.exists() {
        ensure!(Instant::now() < deadline, "the build does not begin");
        sleep(Duration::from_millis(1));
    }
    node.kill_server()?;
    build.end()?;
    node.start_server()?;
    ensure!(!directory.exists() || node.ok(&["template", "ls"])?.contains("other"), "what was built halfway stays");
    remove_other_template(node)?;
    expect_marked(node, &ids)
}

fn keeper_adopts(node: &mut Node) -> Result<()> {
    let ids = marked(node, 3)?;
    let before = node.info()?;
    kill(before.keeper_pid.context("no keeper")? as i32)?;
    let answer = expect_works(node, 2)?;
    ensure!(answer.stderr.contains("note:"), "run does not say that the zygote had to be built again: {answer}");
    let after = node.info()?;
    ensure!(after.keeper_restarts == before.keeper_restarts + 1, "{after:?}");
    expect_marked(node, &ids)
}

fn both(node: &mut Node) -> Result<()> {
    let ids = marked(node, 3)?;
    let keeper = node.info()?.keeper_pid.context("no keeper")? as i32;
    kill(keeper)?;
    node.kill_server()?;
    node.start_server()?;
    expect_marked(node, &ids)?;
    expect_works(node, 2).map(drop)
}

fn zygote_pid(node: &Node) -> Result<Option<i32>> {
    Ok(node.json(&["template", "inspect", "geo", "--json"])?["facts"]["zygote_pid"].as_i64().map(|pid| pid as i32))
}

fn zygote(node: &mut Node) -> Result<()> {
    let ids = marked(node, 2)?;
    kill(zygote_pid(node)?.context("no zygote")?)?;
    let answer = expect_works(node, 2)?;
    ensure!(answer.stderr.contains("note:"), "run does not say that the zygote had to be built again: {answer}");
    expect_marked(node, &ids)
}

fn copy(node: &mut Node) -> Result<()> {
    let ids = marked(node, 3)?;
    kill(node.inspect(&ids[0])?.sandbox.main_pid)?;
    expect_state(node, &ids[0], |state| state == SandboxState::Exited(api::ExitStatus::Signal(9)))?;
    let fork = node.pando(&["fork", &ids[0]])?;
    ensure!(fork.code == 1 && fork.stderr.contains("was killed by signal 9"), "{fork}");
    // Its files can still be looked at.
    ensure!(node.shell(&ids[0], "hostname")?.trim_end() == ids[0], "exec in a sandbox whose program has ended");
    expect_marked(node, &ids[1..])?;
    expect_works(node, 2).map(drop)
}

fn init(node: &mut Node) -> Result<()> {
    let ids = marked(node, 3)?;
    let detail = node.inspect(&ids[0])?;
    let init = detail.processes.iter().find(|process| process.inner_pid == 1).context("no pid 1")?;
    kill(init.pid)?;
    expect_state(node, &ids[0], |state| state != SandboxState::Running)?;
    let exec = node.pando(&["exec", &ids[0], "--", "/bin/true"])?;
    ensure!(exec.code == 1 && exec.stderr.contains(&format!("sandbox {} does not run", ids[0])), "{exec}");
    expect_marked(node, &ids[1..])?;
    expect_works(node, 2).map(drop)
}

fn expect_state(node: &Node, id: &str, wanted: impl Fn(SandboxState) -> bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let found = node.ps()?.into_iter().find(|sandbox| sandbox.id.as_str() == id).context("not listed")?;
        if wanted(found.state) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{found:?}");
        sleep(Duration::from_millis(5));
    }
}

/// Reproducible choices (xorshift64*).
pub(crate) struct Choices(u64);

impl Choices {
    /// From PANDO_SEED, or a seed that is printed.
    pub(crate) fn new(what: &str, rounds: u64) -> Self {
        let seed = number("PANDO_SEED").unwrap_or_else(|| {
            let mut bytes = [0; 4];
            base::id::fill_random(&mut bytes);
            u64::from(u32::from_le_bytes(bytes))
        });
        println!("{what}: {rounds} rounds, PANDO_SEED={seed}");
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

#[derive(Debug, Clone, Copy)]
enum Victim {
    Server,
    Keeper,
    Zygote,
    Copy,
    Init,
}

#[derive(Debug, Clone, Copy)]
enum Moment {
    Idle,
    Run,
    Build,
    Fork,
}

const VICTIMS: [Victim; 5] = [Victim::Server, Victim::Keeper, Victim::Zygote, Victim::Copy, Victim::Init];
const MOMENTS: [(Moment, u64); 4] = [(Moment::Idle, 5), (Moment::Run, 250), (Moment::Build, 900), (Moment::Fork, 250)];

pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn any_process_at_any_moment() -> Result<()> {
    let rounds = number("PANDO_ROUNDS").unwrap_or(ROUNDS_DEFAULT);
    let mut choices = Choices::new("crash::any_process_at_any_moment", rounds);
    let mut node = Node::start()?;
    node.build_geo("geo", &SMALL)?;
    for round in 0..rounds {
        let victim = VICTIMS[choices.below(VICTIMS.len() as u64) as usize];
        let (moment, delay_max_ms) = MOMENTS[choices.below(MOMENTS.len() as u64) as usize];
        let delay = Duration::from_micros(choices.below(delay_max_ms * 1000));
        let what = format!("round {round}: {victim:?} after {delay:?} in {moment:?}");
        let result = crash_round(&mut node, victim, moment, delay);
        result.with_context(|| format!("{what}\nlog of the node:\n{}", node.log_tail()))?;
    }
    node.finish()
}

fn crash_round(node: &mut Node, victim: Victim, moment: Moment, delay: Duration) -> Result<()> {
    let standing = marked(node, 2)?;
    let detail = node.inspect(&standing[0])?;
    let init = detail.processes.iter().find(|process| process.inner_pid == 1).context("no pid 1")?.pid;
    let target = match victim {
        Victim::Server => node.server_pid()?,
        Victim::Keeper => node.info()?.keeper_pid.context("no keeper")? as i32,
        Victim::Zygote => zygote_pid(node)?.context("no zygote")?,
        Victim::Copy => detail.sandbox.main_pid,
        Victim::Init => init,
    };
    let request = begin(node, moment, &standing[0])?;
    sleep(delay);
    match victim {
        Victim::Server => node.kill_server()?,
        Victim::Keeper | Victim::Zygote | Victim::Copy | Victim::Init => kill(target)?,
    }
    if let Some(request) = request {
        let answer = request.end()?;
        let source_died = matches!((victim, moment), (Victim::Copy | Victim::Init, Moment::Fork));
        let explained: &[i32] = if source_died { &[0, 1, 5] } else { &[0, 1, 3] };
        ensure!(explained.contains(&answer.code), "an exit code that the failure does not explain: {answer}");
        ensure!(answer.code == 0 || answer.stderr.contains("pando: "), "it does not say what happened: {answer}");
    }
    if matches!(victim, Victim::Server) {
        let down = node.pando(&["ls"])?;
        ensure!(down.code == 3, "without a server: {down}");
        node.start_server()?;
    }
    expect_works(node, 2)?;
    let surviving = if matches!(victim, Victim::Copy | Victim::Init) { &standing[1..] } else { &standing[..] };
    expect_marked(node, surviving)?;
    for sandbox in node.ps()?.iter().filter(|sandbox| sandbox.state == SandboxState::Running) {
        node.ask(sandbox.id.as_str(), "GET /health").with_context(|| format!("listed as running: {sandbox:?}"))?;
    }
    node.ok(&["kill", "--all", "--force"])?;
    ensure!(node.ps()?.is_empty(), "sandboxes are left after rm --all");
    remove_other_template(node)?;
    node.expect_only_itself()
}

fn begin(node: &Node, moment: Moment, source: &str) -> Result<Option<Running>> {
    let service = node.program("geo.py");
    let mut build = vec!["template", "build", "other", "--port", "8080", "--", "/usr/bin/python3", &service];
    build.extend(SMALL);
    Ok(match moment {
        Moment::Idle => None,
        Moment::Run => Some(node.begin(&["create", "geo", "-n", "50"])?),
        Moment::Build => Some(node.begin(&build)?),
        Moment::Fork => Some(node.begin(&["fork", source, "-n", "10"])?),
    })
}

fn remove_other_template(node: &Node) -> Result<()> {
    let answer = node.pando(&["template", "rm", "other"])?;
    ensure!(matches!(answer.code, 0 | 4), "template rm: {answer}");
    Ok(())
}
