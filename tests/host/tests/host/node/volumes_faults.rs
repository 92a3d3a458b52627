//! Volumes whose node, worker or guardian is killed, or whose node is not the one that writes them any more: programs that work in them see
//! a pause, or a clear error, and nothing that was promised is lost.

use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::{
    node::Node,
    postgres::Postgres,
    proxy::{Proxy, Weather},
    runner::Case,
};

use super::{
    checkpoint::kill,
    shared::Shared,
    volumes::{BEGIN_WRITING, build_scribe, run_with},
    volumes_kept::{volumes, wait_until},
};

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn(&mut Node) -> Result<()>| {
        Case::new(format!("volumes_faults::{name}"), move || with_writer(body))
    };
    vec![
        case("a_killed_node_is_not_noticed", killed_node),
        case("a_killed_worker_is_not_noticed", |node| killed(node, "worker", 5)),
        case("a_killed_guardian_is_not_noticed", |node| killed(node, "guardian", 3)),
        case("a_sandbox_that_ends_while_the_node_is_away_is_let_go", ended_meanwhile),
        case("a_node_killed_in_a_live_fork_leaves_the_original_writing", |node| killed_in_fork(node, "node"))
            .slow("it kills in one fork after the other"),
        case("a_worker_killed_in_a_live_fork_leaves_the_original_writing", |node| killed_in_fork(node, "worker"))
            .slow("it kills in one fork after the other"),
        two_nodes("volumes_faults::another_node_takes_over_and_the_first_one_is_told", take_over),
        Case::new("volumes_faults::a_node_that_is_cut_off_and_lives_on_takes_nothing_back", cut_off),
        two_nodes("volumes_faults::what_another_node_writes_is_followed_by_those_who_read", followed),
        Case::new("volumes_faults::wrong_clocks_decide_nothing", wrong_clocks),
        two_nodes("volumes_faults::a_paused_sandbox_takes_its_volume_to_another_node", resume_elsewhere),
    ]
}

fn with_writer(body: fn(&mut Node) -> Result<()>) -> Result<()> {
    let mut node = Node::start()?;
    build_scribe(&node)?;
    node.ok(&["volume", "create", "ws"])?;
    let id = run_with(&node, &["ws:/workspace"])?;
    node.shell(&id, BEGIN_WRITING)?;
    body(&mut node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.ok(&["kill", "--all", "--force"])?;
    node.ok(&["volume", "rm", "ws"])?;
    node.finish()
}

fn only(node: &Node) -> Result<String> {
    Ok(node.ps()?.first().context("no sandbox")?.id.to_string())
}

/// The process of volumes of this role, of this node.
pub(crate) fn process(node: &Node, role: &str) -> Result<i32> {
    let (state, role) = (format!("--state\0{}\0", node.state.display()), format!("\0{role}\0"));
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        for entry in fs::read_dir("/proc")?.flatten() {
            let command = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            let is_it = command.contains("\0volumed\0") && command.contains(&state);
            if is_it && (command.contains(&role) || (role == "\0guardian\0" && command.contains("\0heir\0"))) {
                return Ok(entry.file_name().to_string_lossy().parse()?);
            }
        }
        ensure!(Instant::now() < deadline, "there is no {role:?} of volumes");
        sleep(Duration::from_millis(5));
    }
}

/// Lines of the journal; all are there that the program has written, in their order.
fn journal(node: &Node) -> Result<usize> {
    let text = node.ok(&["volume", "cat", "ws", "journal"])?;
    for (number, line) in text.lines().enumerate() {
        ensure!(line == number.to_string(), "line {number} of the journal is {line:?}");
    }
    Ok(text.lines().count())
}

/// It goes on, and has said nothing.
fn expect_progress(node: &Node, id: &str) -> Result<usize> {
    let (before, deadline) = (journal(node)?, Instant::now() + Duration::from_secs(20));
    while journal(node)? < before + 5 {
        ensure!(Instant::now() < deadline, "nothing is written any more: {}", node.ok(&["logs", id])?);
        sleep(Duration::from_millis(20));
    }
    ensure!(node.ok(&["logs", id])?.is_empty(), "{}", node.ok(&["logs", id])?);
    Ok(before)
}

fn killed_node(node: &mut Node) -> Result<()> {
    let id = only(node)?;
    let here = node.dir().join("here");
    fs::create_dir(&here)?;
    node.ok(&["volume", "mount", "ws", &here.display().to_string()])?;
    for _ in 0..2 {
        expect_progress(node, &id)?;
        let at_the_kill = fs::read_to_string(here.join("journal"))?.lines().count();
        node.kill_server()?;
        sleep(Duration::from_millis(500));
        ensure!(
            fs::read_to_string(here.join("journal"))?.lines().count() > at_the_kill,
            "nothing is written without a node"
        );
        node.start_server()?;
        expect_progress(node, &id)?;
    }
    ensure!(node.ok(&["volume", "ls"])?.contains("mounted 2"), "{}", node.ok(&["volume", "ls"])?);
    node.ok(&["volume", "unmount", "ws", &here.display().to_string()]).map(drop)
}

fn killed(node: &mut Node, role: &str, rounds: usize) -> Result<()> {
    let id = only(node)?;
    for round in 0..rounds {
        expect_progress(node, &id).with_context(|| format!("round {round}"))?;
        let pid = process(node, role)?;
        kill(pid)?;
        while process(node, role).is_ok_and(|now| now == pid) {
            sleep(Duration::from_millis(2));
        }
    }
    expect_progress(node, &id).map(drop)
}

fn ended_meanwhile(node: &mut Node) -> Result<()> {
    let id = only(node)?;
    let group = node.inspect(&id)?.cgroup;
    node.kill_server()?;
    fs::write(format!("{group}/cgroup.kill"), "1")?;
    node.start_server()?;
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let listed = node.ok(&["volume", "ls"])?;
        if !listed.contains("mounted 1") {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "a dead sandbox holds its volume:\n{listed}");
        sleep(Duration::from_millis(50));
    }
}

/// In every moment of a fork: nothing stands still afterwards, and nothing stays of copies that nobody was told of.
fn killed_in_fork(node: &mut Node, whom: &str) -> Result<()> {
    let id = only(node)?;
    let mut whole = 0;
    for round in 0..10 {
        expect_progress(node, &id).with_context(|| format!("round {round}"))?;
        let fork = node.begin(&["fork", &id, "-n", "2"])?;
        sleep(Duration::from_millis(4 + 6 * round));
        if whom == "node" {
            node.kill_server()?;
            fork.end()?;
            node.start_server()?;
        } else {
            kill(process(node, whom)?)?;
            whole += u32::from(fork.end()?.code == 0);
        }
        expect_progress(node, &id).with_context(|| format!("round {round}, after the kill"))?;
        for copy in node.ps()?.iter().filter(|sandbox| sandbox.id.as_str() != id) {
            let copy = copy.id.as_str();
            node.shell(copy, "awk '$1 != NR - 1 { print NR, $0; exit 1 }' /workspace/journal")?;
            node.ok(&["kill", copy])?;
            node.ok(&["volume", "rm", &format!("ws-{copy}")])?;
        }
    }
    eprintln!("    {whole} of 10 forks were made although the {whom} was killed");
    let left = || Ok((volumes(node)?, node.json(&["volume", "log", "ws", "--json"])?));
    wait_until(|| left().map(|(volumes, snapshots)| volumes == ["ws"] && snapshots == json!([])))
        .with_context(|| format!("left: {:?}", left()))
}

pub(crate) fn two_nodes(name: &str, body: fn(&Node, &Node) -> Result<()>) -> Case {
    Case::new(name, move || {
        let shared = Shared::new()?;
        on_two(shared.node()?, shared.node()?, body)
    })
}

fn on_two(first: Node, second: Node, body: impl FnOnce(&Node, &Node) -> Result<()>) -> Result<()> {
    let done = build_scribe(&first).and_then(|()| build_scribe(&second)).and_then(|()| body(&first, &second));
    let logs = || format!("log of the first:\n{}\n\nof the second:\n{}", first.log_tail(), second.log_tail());
    done.with_context(logs)?;
    second.finish()?;
    first.finish()
}

fn resume_elsewhere(first: &Node, second: &Node) -> Result<()> {
    first.ok(&["volume", "create", "ws"])?;
    let id = run_with(first, &["ws:/workspace"])?;
    first.shell(&id, BEGIN_WRITING)?;
    // There and back: neither has closed the volume when the other opens it.
    for (from, to) in [(first, second), (second, first), (first, second)] {
        from.ok(&["pause", &id])?;
        to.ok(&["resume", &id])?;
        expect_progress(to, &id)?;
    }
    second.ok(&["kill", "--all", "--force"])?;
    second.ok(&["volume", "rm", "ws"]).map(drop)
}

fn take_over(first: &Node, second: &Node) -> Result<()> {
    first.ok(&["volume", "create", "ws"])?;
    let old = run_with(first, &["ws:/workspace"])?;
    first.shell(&old, &format!("echo text > /workspace/a; {BEGIN_WRITING}"))?;
    // A snapshot is a commit: what another node finds at least.
    first.ok(&["volume", "snapshot", "ws", "here"])?;
    let new = run_with(second, &["ws:/workspace"])?;
    ensure!(second.shell(&new, "cat /workspace/a; echo taken > /workspace/b; cat /workspace/b")? == "text\ntaken\n");
    let deadline = Instant::now() + Duration::from_secs(20);
    while first.shell(&old, "touch /workspace/x 2>/dev/null && echo written || echo refused")? != "refused\n" {
        ensure!(Instant::now() < deadline, "the first node writes on");
        sleep(Duration::from_millis(100));
    }
    let said = first.shell(&old, "touch /workspace/x 2>&1 || true")?;
    ensure!(said.contains("Read-only") || said.contains("Stale"), "{said}");
    let inspected = first.json(&["volume", "inspect", "ws", "--json"])?;
    ensure!(
        inspected["open"]["read_only"].as_str().is_some_and(|reason| reason.contains("another node")),
        "{inspected}"
    );
    ensure!(first.shell(&old, "cat /workspace/a")? == "text\n", "what is there can be read");
    // Of what is in the store, although a sandbox here has been its writer.
    first.ok(&["volume", "diff", "ws@here"])?;
    first.ok(&["volume", "fork", "ws@here", "copy"])?;
    let archive = first.dir().join("ws.tar").display().to_string();
    first.ok(&["volume", "export", "ws", &archive])?;
    ensure!(second.shell(&new, "echo more >> /workspace/b; cat /workspace/b")? == "taken\nmore\n", "it was taken back");
    first.ok(&["volume", "rm", "copy"])?;
    first.ok(&["kill", "--all", "--force"])?;
    second.ok(&["kill", "--all", "--force"])?;
    second.ok(&["volume", "rm", "ws@here", "ws"]).map(drop)
}

/// Whose volume was taken over while it did not reach the heads.
fn cut_off() -> Result<()> {
    let (shared, server) = (Shared::new()?, Postgres::start()?);
    let between = Proxy::start(&server.address())?;
    let objects = shared.0.join("objects").display().to_string();
    let through = format!("postgres://pando@{}/postgres", between.address());
    let first = shared.node_at(&objects, &through, "master.keys", None)?;
    let second = shared.node_at(&objects, &server.url(), "master.keys", None)?;
    let body = |first: &Node, second: &Node| {
        first.ok(&["volume", "create", "ws"])?;
        let old = run_with(first, &["ws:/workspace"])?;
        first.shell(&old, &format!("echo promised > a; {BEGIN_WRITING}"))?;
        first.ok(&["volume", "snapshot", "ws", "here"])?;
        between.set(Weather { outage: true, ..Weather::default() });
        let open = || anyhow::Ok(first.json(&["volume", "inspect", "ws", "--json"])?["open"].clone());
        first.shell(&old, "echo alone > b; sync b; cat a b")?;
        let new = run_with(second, &["ws:/workspace"])?;
        // It knows nothing of that yet, and cannot commit.
        first.shell(&old, "echo alone > c; sync c; tail -n 1 journal")?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while open()?["store_failure"].is_null() {
            ensure!(Instant::now() < deadline, "nothing is told of the heads: {}", open()?);
            sleep(Duration::from_millis(100));
        }
        ensure!(second.shell(&new, "cat a; ls b c 2>/dev/null; echo taken > b")? == "promised\n");
        second.ok(&["volume", "snapshot", "ws", "there"])?;
        between.set(Weather::default());
        let deadline = Instant::now() + Duration::from_secs(30);
        while open()?["read_only"].is_null() {
            ensure!(Instant::now() < deadline, "the first node is not told: {}", open()?);
            sleep(Duration::from_millis(100));
        }
        let said = first.shell(&old, "(echo > d) 2>&1 || true; cat c")?;
        ensure!(said.contains("Read-only") && said.ends_with("alone\n"), "{said}");
        ensure!(second.shell(&new, "cat a b; ls c 2>/dev/null || true")? == "promised\ntaken\n");
        for node in [first, second] {
            node.ok(&["kill", "--all", "--force"])?;
        }
        let verified = second.ok(&["volume", "verify", "ws"])?;
        ensure!(verified.contains("all of it is sound"), "{verified}");
        second.ok(&["volume", "rm", "ws@here", "ws@there", "ws"]).map(drop)
    };
    on_two(first, second, body)
}

/// Readers on a second node see what the first one commits, through everything that the kernel remembers, and take nothing away from it.
fn followed(first: &Node, second: &Node) -> Result<()> {
    first.ok(&["volume", "create", "ws"])?;
    let writer = run_with(first, &["ws:/workspace"])?;
    first.shell(&writer, "mkdir d; echo one > d/changed; echo 1 > d/removed; touch d/grows go")?;
    first.ok(&["volume", "snapshot", "ws", "begin"])?;
    let reader = run_with(second, &["ws:/workspace:ro"])?;
    ensure!(second.shell(&reader, "cat d/changed d/removed")? == "one\n1\n");
    for (round, worker_dies) in [(0, false), (1, true), (2, false)] {
        // In a mapping, in the page cache, in the directory, and an absence that is remembered.
        second.shell(&reader, "cat d/changed; ls -l d; cat d/new d/removed 2>&1 || true")?;
        if worker_dies {
            kill(process(second, "worker")?)?;
        }
        first.shell(&writer, &format!("echo of round {round} > d/changed; rm -f d/removed; echo {round} > d/new"))?;
        let expected = format!("of round {round}\n{round}\nchanged\ngrows\nnew\n");
        let deadline = Instant::now() + Duration::from_secs(20);
        while second.shell(&reader, "cat d/changed d/new 2>&1; ls d")? != expected {
            ensure!(Instant::now() < deadline, "{}", second.shell(&reader, "cat d/changed d/new 2>&1; ls d")?);
            sleep(Duration::from_millis(100));
        }
        // What is appended is never seen as zeros.
        first.shell(&writer, "yes appended | head -100 >> d/grows")?;
        let zeros = "tr -dc '\\000' < d/grows 2>/dev/null | wc -c";
        for _ in 0..50 {
            ensure!(second.shell(&reader, zeros)? == "0\n", "zeros that nobody has written");
        }
        // By HTTP, at once as it is in the store.
        ensure!(second.ok(&["volume", "cat", "ws", "d/new"])? == format!("{round}\n"));
    }
    ensure!(second.shell(&reader, "echo 1 2>/dev/null > d/x && echo written || echo refused")? == "refused\n");
    second.ok(&["volume", "snapshot", "ws", "elsewhere"])?;
    second.ok(&["volume", "fork", "ws", "copy"])?;
    ensure!(second.ok(&["volume", "cat", "copy", "d/new"])? == "2\n");
    let inspected = second.json(&["volume", "inspect", "ws", "--json"])?;
    ensure!(inspected["open"]["followed"] == true && inspected["open"]["holders"][0] == *reader, "{inspected}");
    let held = second.pando(&["volume", "rm", "ws"])?;
    ensure!(held.code != 0 && held.stderr.contains(&reader), "{held}");
    expect_progress(first, &writer)?;
    first.ok(&["kill", "--all", "--force"])?;
    second.ok(&["kill", "--all", "--force"])?;
    second.ok(&["volume", "rm", "ws@begin", "ws@elsewhere", "copy", "ws"]).map(drop)
}

/// A node that is three hours ahead, so that every lease of the other one is over for it, or three hours behind.
fn wrong_clocks() -> Result<()> {
    for wrong in ["+3h", "-3h"] {
        let shared = Shared::new()?;
        on_two(shared.node()?, shared.node_with_clock(wrong)?, with_wrong_clock).context(wrong)?;
    }
    Ok(())
}

/// What it collects, follows and takes over costs the first one nothing that was promised.
fn with_wrong_clock(first: &Node, second: &Node) -> Result<()> {
    let clock = |node: &Node| node.run("scribe", 1).map(|started| started[0].created_ms);
    let apart = clock(first)?.abs_diff(clock(second)?);
    ensure!(apart > 10_000_000, "the clocks are {apart} ms apart: is the package libfaketime there?");
    first.ok(&["volume", "create", "ws"])?;
    let writer = run_with(first, &["ws:/workspace"])?;
    let reader = run_with(second, &["ws:/workspace:ro"])?;
    first.shell(&writer, BEGIN_WRITING)?;
    for _ in 0..10 {
        expect_progress(first, &writer)?;
        second.ok(&["store", "gc", "--grace", "0"])?;
        // Of a node that is behind all leases are over.
        first.ok(&["store", "gc", "--grace", "0"])?;
    }
    first.shell(&writer, "rm go; until cmp -s journal last; do cp journal last; sleep 0.2; done")?;
    first.ok(&["volume", "snapshot", "ws", "kept"])?;
    let written = first.shell(&writer, "wc -l < last")?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while second.shell(&reader, "cat last 2>&1 | wc -l")? != written {
        ensure!(Instant::now() < deadline, "the second node does not see what the first one has written");
        sleep(Duration::from_millis(100));
    }
    for (round, (node, other)) in [(second, first), (first, second), (second, first)].into_iter().enumerate() {
        let taking = run_with(node, &["ws:/workspace"])?;
        node.shell(&taking, &format!("test -e journal; test ! -e {round}; touch {round}; sync -f .; ls {round}"))?;
        node.ok(&["volume", "snapshot", "ws"])?;
        other.ok(&["store", "gc", "--grace", "0"])?;
        ensure!(node.shell(&taking, "wc -l < journal")? == written, "round {round}");
        node.ok(&["kill", "--all", "--force"])?;
        other.ok(&["kill", "--all", "--force"])?;
    }
    ensure!(journal(second)? == written.trim().parse::<usize>()?);
    second.ok(&["volume", "verify", "ws"])?;
    second.ok(&["volume", "rm", "ws"]).map(drop)
}
