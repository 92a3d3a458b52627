//! Copies that are forked ahead: a start only lets one go, and nobody can tell from the sandbox.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use testkit::{
    engine::wait_until,
    node::{Node, Setting},
    runner::Case,
};

/// Copies that the node of a case forks ahead.
const AHEAD: usize = 4;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("ahead::a_start_lets_a_waiting_copy_go_with_an_identity_and_state_of_its_own", || case(identity)),
        Case::new("ahead::a_waiting_copy_has_no_privilege_in_force_and_has_run_none_of_the_program", || {
            case(unprivileged)
        }),
        Case::new("ahead::a_waiting_copy_that_was_killed_is_replaced_and_the_start_works", || case(killed)),
        Case::new("ahead::waiting_copies_end_with_their_keeper_and_the_next_start_works", || case(keeper_killed)),
        Case::new("ahead::a_removed_or_rebuilt_template_takes_its_waiting_copies_with_it", || case(removed)),
        Case::new("ahead::none_when_the_node_is_told_so", none),
        Case::new("ahead::a_node_that_stops_while_it_fills_its_pool_finds_no_leftovers", half_filled),
    ]
}

fn node(arguments: &[&str]) -> Result<Node> {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    Node::start_with(Setting { arguments, ..Setting::default() })
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = node(&["--pool", "6", "--ahead", "4"])?;
    node.build_geo("geo", &["--nidx", "4"])?;
    teach(&node, "geo").and_then(|()| body(&node)).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// Uses the template until the node forks copies ahead.
fn teach(node: &Node, template: &str) -> Result<()> {
    for _ in 0..3 {
        let id = node.run(template, 1)?[0].id.to_string();
        node.ask(&id, "GET /health")?;
        node.ok(&["kill", &id])?;
    }
    wait_for_ahead(node)
}

/// The pool counts a copy as soon as it exists; a case wants all of them at their gates.
fn wait_for_ahead(node: &Node) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let pool = node.info()?.pool;
        let at_gate = waiting(node)?.iter().filter(|(pid, _)| is_at_gate(*pid)).count();
        if pool.ahead == AHEAD && at_gate == AHEAD && pool.ready == pool.limit {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{AHEAD} copies ahead were expected, {at_gate} are at their gates: {pool:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process waits in `read`, for what opens its gate.
fn is_at_gate(pid: i32) -> bool {
    const READ: &str = "0 ";
    fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|call| call.starts_with(READ))
}

/// The waiting copies: the keeper's children that have become the program's user.
fn waiting(node: &Node) -> Result<Vec<(i32, String)>> {
    let keeper = node.info()?.keeper_pid.context("no keeper")?;
    let mut waiting = Vec::new();
    for pid in fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"))?.split_ascii_whitespace() {
        let pid: i32 = pid.parse()?;
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let own = testkit::ids::program(pid).is_ok_and(|own| field(&status, "Uid").starts_with(&own.to_string()));
        if own {
            waiting.push((pid, status));
        }
    }
    Ok(waiting)
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map_or("", str::trim)
}

fn identity(node: &Node) -> Result<()> {
    let waiting: Vec<i32> = waiting(node)?.into_iter().map(|(pid, _)| pid).collect();
    ensure!(waiting.len() == AHEAD, "waiting: {waiting:?}");
    let sandboxes = node.run("geo", 8)?;
    let taken = sandboxes.iter().filter(|sandbox| waiting.contains(&sandbox.main_pid)).count();
    ensure!(taken == AHEAD, "{taken} of {AHEAD} waiting copies were taken for 8 starts");
    let mut generations = Vec::new();
    for sandbox in &sandboxes {
        let id = sandbox.id.as_str();
        let state = node.ask(id, "GET /state")?;
        ensure!(state["hostname"] == *id && state["writes"] == 0, "{id}: {state}");
        ensure!(node.ask(id, "GET /verify")?["intact"] == true, "{id} is not intact");
        node.ask(id, &format!("POST /write?key=own&value={id}"))?;
        generations.push(node.shell(id, "cat /run/pando/generation")?);
    }
    for sandbox in &sandboxes {
        let state = node.ask(sandbox.id.as_str(), "GET /state")?;
        ensure!(state["values"]["own"] == *sandbox.id.as_str(), "{state}");
    }
    generations.sort_unstable();
    generations.dedup();
    ensure!(generations.len() == sandboxes.len(), "two sandboxes have one generation");
    // A live fork of a copy that waited is a fork like any other.
    let fork = node.json(&["fork", sandboxes[0].id.as_str(), "--json"])?;
    let copy = fork["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
    ensure!(node.ask(&copy, "GET /state")?["values"]["own"] == *sandboxes[0].id.as_str(), "not of the fork's moment");
    Ok(())
}

fn unprivileged(node: &Node) -> Result<()> {
    for (pid, status) in waiting(node)? {
        for set in ["CapInh", "CapEff", "CapBnd", "CapAmb"] {
            ensure!(field(&status, set) == "0000000000000000", "{set} of waiting copy {pid}: {}", field(&status, set));
        }
        // Not in force: CAP_SYS_ADMIN for its time namespace, CAP_CHECKPOINT_RESTORE for its threads' numbers.
        ensure!(field(&status, "CapPrm") == "0000010000200000", "{pid}: {}", field(&status, "CapPrm"));
        ensure!(field(&status, "NoNewPrivs") == "1", "{status}");
        // It still has its zygote's socket: no other process of its user may look into it, so its entries are root's.
        ensure!(owner(pid)? == (0, 0), "waiting copy {pid} is dumpable");
        // All but what cannot be blocked.
        ensure!(field(&status, "SigBlk") == "fffffffffffbfeff", "{}", field(&status, "SigBlk"));
    }
    ensure!(node.ps()?.is_empty(), "a waiting copy is listed");
    let keeper = node.info()?.keeper_pid.context("no keeper")?;
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"))?;
    let zygotes =
        children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).filter(|pid| named(*pid, "pando-zygote"));
    let zygotes: Vec<i32> = zygotes.collect();
    ensure!(!zygotes.is_empty(), "no zygote");
    for zygote in zygotes {
        // Its group is the program's.
        ensure!(owner(zygote)? == (0, 0), "zygote {zygote} is dumpable");
    }
    // Once it was let go it has none at all.
    for sandbox in node.run("geo", AHEAD)? {
        let status = fs::read_to_string(format!("/proc/{}/status", sandbox.main_pid))?;
        ensure!(field(&status, "CapPrm") == "0000000000000000" && field(&status, "Seccomp") == "2", "{status}");
        // It becomes dumpable as the last thing before the program goes on.
        let user = testkit::ids::program(sandbox.main_pid)?;
        let own = || owner(sandbox.main_pid).is_ok_and(|owner| owner == (user, user));
        wait_until("a program can look at itself", Duration::from_secs(10), own)?;
    }
    Ok(())
}

/// Who may look at a process: its own user and group if it is dumpable, else root (proc(5)).
fn owner(pid: i32) -> Result<(u32, u32)> {
    let entry = fs::metadata(format!("/proc/{pid}/environ"))?;
    Ok((entry.uid(), entry.gid()))
}

fn named(pid: i32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
}

fn killed(node: &Node) -> Result<()> {
    for (pid, _) in waiting(node)? {
        let pid = rustix::process::Pid::from_raw(pid).context("no pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    }
    for sandbox in node.run("geo", AHEAD + 2)? {
        ensure!(node.ask(sandbox.id.as_str(), "GET /verify")?["intact"] == true, "not intact");
    }
    node.ok(&["kill", "--all", "--force"])?;
    wait_for_ahead(node)
}

fn keeper_killed(node: &Node) -> Result<()> {
    let before: Vec<i32> = waiting(node)?.into_iter().map(|(pid, _)| pid).collect();
    let keeper = node.info()?.keeper_pid.and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
    rustix::process::kill_process(keeper.context("no keeper")?, rustix::process::Signal::KILL)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while before.iter().any(|pid| fs::exists(format!("/proc/{pid}")).unwrap_or(true)) {
        ensure!(Instant::now() < deadline, "waiting copies of a dead keeper still live");
        std::thread::sleep(Duration::from_millis(20));
    }
    let sandboxes = node.run("geo", 2)?;
    ensure!(node.ask(sandboxes[0].id.as_str(), "GET /health").is_ok(), "no answer");
    Ok(())
}

fn removed(node: &Node) -> Result<()> {
    let before: Vec<i32> = waiting(node)?.into_iter().map(|(pid, _)| pid).collect();
    node.build_geo("geo", &["--nidx", "4"])?;
    let after = waiting(node)?;
    ensure!(!after.iter().any(|(pid, _)| before.contains(pid)), "copies of the old zygote wait");
    ensure!(node.info()?.pool.ahead == 0, "nothing is known of the new zygote yet");
    teach(node, "geo")?;
    node.ok(&["template", "rm", "geo"])?;
    ensure!(waiting(node)?.is_empty(), "copies of a removed template wait");
    Ok(())
}

fn none() -> Result<()> {
    let node = node(&["--pool", "2", "--ahead", "0"])?;
    node.build_geo("geo", &["--nidx", "4"])?;
    for _ in 0..5 {
        let id = node.run("geo", 1)?[0].id.to_string();
        node.ok(&["kill", &id])?;
    }
    std::thread::sleep(Duration::from_millis(600));
    let pool = node.info()?.pool;
    ensure!(pool.ahead == 0 && waiting(&node)?.is_empty(), "{pool:?}");
    node.finish()
}

fn half_filled() -> Result<()> {
    let mut node = node(&["--pool", "500"])?;
    node.build_geo("geo", &["--nidx", "4"])?;
    let ready = node.info()?.pool.ready;
    ensure!(ready < 500, "the pool was filled before the node could be stopped");
    node.stop_server()?;
    let log = node.log()?;
    ensure!(!log.contains("no record claims") && !log.contains(" WARN "), "{ready} were ready:\n{log}");
    node.set_arguments(&["--pool", "4"]);
    node.start_server()?;
    node.finish()
}
