//! Checkpoints: taken on one node, started on another that shares nothing with it but the store.

use std::{path::Path, time::Instant};

use anyhow::{Context, Result, ensure};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

use super::shared::{Shared, with_geo};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("checkpoint::memory_and_files_of_its_moment_start_on_another_node", || case(another_node)),
        Case::new("checkpoint::names_are_taken_replaced_listed_and_removed", || case(names)),
        Case::new("checkpoint::one_of_a_restored_sandbox_holds_only_what_changed_and_needs_no_names", || case(chain))
            .slow("it keeps and starts programs several times, on two nodes"),
        Case::new("checkpoint::further_ones_of_a_template_built_here_hold_only_what_changed", || case(alike))
            .slow("it keeps and starts programs several times, on two nodes"),
        Case::new(
            "checkpoint::one_of_a_sandbox_that_began_before_its_memory_was_there_holds_only_what_changed",
            || case(early),
        )
        .slow("it keeps and starts programs several times, on two nodes"),
        Case::new("checkpoint::others_can_read_the_command_line_of_a_restored_program", || case(command_line)),
        Case::new("checkpoint::how_far_it_is_is_told", || case(told)),
        Case::new("checkpoint::a_node_without_the_key_cannot_read_it", || case(wrong_key)),
        Case::new("checkpoint::monotonic_clocks_go_on_from_where_they_were", || case(clocks))
            .slow("clocks have to differ by seconds"),
        Case::new("checkpoint::a_node_in_a_time_namespace_goes_on_from_there_too", || case(clocks_of_nodes)),
        Case::new("checkpoint::memory_arrives_although_the_pager_is_killed_again_and_again", || case(killed_pager)),
        Case::new("checkpoint::memory_arrives_although_the_node_is_killed", || case(killed_node)),
    ]
}

/// After this a small program's zygote has all its pages: nothing is filled for two seconds, then all within some tenths of one.
pub(crate) const FILLED: std::time::Duration = std::time::Duration::from_secs(5);

fn case(body: fn(&Shared, &Node) -> Result<()>) -> Result<()> {
    with_geo(|shared, node| body(shared, node))
}

/// Runs `body` on a second node.
fn elsewhere(shared: &Shared, body: impl FnOnce(&Node) -> Result<()>) -> Result<()> {
    let other = shared.node()?;
    body(&other).with_context(|| format!("log of the second node:\n{}", other.log_tail()))?;
    other.finish()
}

pub(crate) fn take(node: &Node, id: &str, name: &str) -> Result<serde_json::Value> {
    let taken = node.json(&["checkpoint", id, "--name", name, "--json"])?;
    ensure!(taken["name"] == name && taken["pause_us"].as_u64().is_some_and(|pause| pause > 0), "{taken}");
    Ok(taken)
}

fn another_node(shared: &Shared, node: &Node) -> Result<()> {
    let source = node.run("geo", 1)?[0].id.to_string();
    node.ask(&source, "POST /write?key=before&value=1")?;
    node.shell(&source, "echo before > /tmp/note; mkdir -p /home/user/deep/er; echo x > /home/user/deep/er/file")?;
    let before = node.ask(&source, "GET /state")?;
    take(node, &source, "warm")?;
    node.ask(&source, "POST /write?key=after&value=1")?;
    node.shell(&source, "echo after > /tmp/note")?;
    elsewhere(shared, |other| {
        other.ok(&["template", "warm", "warm"])?;
        for sandbox in other.run("warm", 3)? {
            let id = sandbox.id.as_str();
            let state = other.ask(id, "GET /state")?;
            ensure!(state["values"] == before["values"] && state["writes"] == 1, "{id}: {state}");
            ensure!(state["digest"] == before["digest"] && state["threads"] == before["threads"], "{id}: {state}");
            ensure!(state["hostname"] == *id, "{id}: {state}");
            ensure!(other.ask(id, "GET /verify")?["intact"] == true, "{id} is not intact");
            ensure!(other.shell(id, "cat /tmp/note /home/user/deep/er/file")? == "before\nx\n", "{id}: files");
            other.ask(id, &format!("POST /write?key=own&value={id}"))?;
            ensure!(other.ask(id, "GET /state")?["values"]["own"] == *id, "{id}: not its own");
        }
        Ok(())
    })?;
    let state = node.ask(&source, "GET /state")?;
    ensure!(state["values"]["after"] == "1" && state["writes"] == 2, "the source: {state}");
    Ok(())
}

/// A checkpoint that is called as a template of the node is not what `run` starts there, and all who look at it are told.
fn hidden(shared: &Shared, node: &Node, source: &str) -> Result<()> {
    let taken = node.pando(&["checkpoint", source, "--name", "geo"])?;
    ensure!(taken.code == 0 && taken.stderr.contains("`pando template rm geo`"), "{taken}");
    ensure!(node.ok(&["checkpoint", "ls"])?.contains("geo (hidden)"), "not listed so");
    ensure!(node.ok(&["checkpoint", "inspect", "geo"])?.contains("hidden "), "not shown so");
    let others = node.json(&["checkpoint", "inspect", "one", "--json"])?;
    ensure!(others["hidden"].is_null(), "{others}");
    ensure!(node.ok(&["template", "inspect", "geo"])?.contains("parked "), "not for people");
    node.ok(&["checkpoint", "rm", "geo"])?;
    let file = std::env::temp_dir().join(format!("pando-hidden-{}", std::process::id()));
    let path = file.display().to_string();
    node.ok(&["checkpoint", "export", "one", &path])?;
    let imported = node.pando(&["checkpoint", "import", &path, "--name", "geo"]);
    std::fs::remove_file(&file)?;
    let imported = imported?;
    ensure!(imported.code == 0 && imported.stderr.contains("`pando template rm geo`"), "{imported}");
    node.ok(&["checkpoint", "rm", "geo"])?;
    // Nor is one by which another node replaces what this one has restored.
    let copy = node.run("one", 1)?[0].id.to_string();
    ensure!(!node.ok(&["checkpoint", "ls"])?.contains("hidden"), "it is what runs");
    elsewhere(shared, |other| {
        let id = other.run("one", 1)?[0].id.to_string();
        other.ok(&["checkpoint", &id, "--name", "one", "--replace"]).map(drop)
    })?;
    ensure!(node.ok(&["checkpoint", "ls"])?.contains("one (hidden)"), "it is not what runs");
    node.ok(&["kill", &copy])?;
    node.ok(&["template", "rm", "one"])?;
    ensure!(!node.ok(&["checkpoint", "ls"])?.contains("hidden"), "it is what will run");
    Ok(())
}

fn names(shared: &Shared, node: &Node) -> Result<()> {
    let source = node.run("geo", 1)?[0].id.to_string();
    take(node, &source, "one")?;
    let again = node.pando(&["checkpoint", &source, "--name", "one"])?;
    ensure!(again.code == 1 && again.stderr.contains("there is a checkpoint one already"), "{again}");
    node.ok(&["checkpoint", &source, "--name", "one", "--replace"])?;
    let made_up = node.ok(&["checkpoint", &source])?;
    ensure!(made_up.starts_with("geo-"), "{made_up}");
    let list = node.json(&["checkpoint", "ls", "--json"])?;
    ensure!(list.as_array().is_some_and(|list| list.len() == 2), "{list}");
    ensure!(node.json(&["checkpoint", "inspect", "one", "--json"])?["name"] == "one", "not inspected");
    ensure!(node.ok(&["checkpoint", "inspect", "one"])?.contains("geo.py"), "not for people");
    hidden(shared, node, &source)?;
    node.ok(&["checkpoint", "rm", "one"])?;
    let missing = node.pando(&["create", "one"])?;
    ensure!(missing.code == 4, "a removed checkpoint: {missing}");
    let missing = node.pando(&["checkpoint", "rm", "one"])?;
    ensure!(missing.code == 4 && missing.stderr.contains("there is no checkpoint one"), "{missing}");
    Ok(())
}

fn chain(shared: &Shared, node: &Node) -> Result<()> {
    let source = node.run("geo", 1)?[0].id.to_string();
    node.ask(&source, "POST /write?key=a&value=1")?;
    node.shell(&source, "cd /home/user; head -c 20M /dev/urandom > much; md5sum much > sum")?;
    let whole = stored(&take(node, &source, "first")?)?;
    let before = bytes_stored(node)?;
    elsewhere(shared, |other| {
        other.ok(&["template", "warm", "first"])?;
        // Shared is what its zygote had when it was forked: all, a moment later.
        std::thread::sleep(FILLED);
        let id = other.run("first", 1)?[0].id.to_string();
        other.ask(&id, "POST /write?key=b&value=2")?;
        let more = stored(&take(other, &id, "second")?)?;
        ensure!(more < whole / 4, "what is the same as in the first is stored again: {more} of {whole} bytes");
        let files = bytes_stored(other)? - before;
        ensure!(files < 5 << 20, "files of the first are stored again: {files} bytes");
        Ok(())
    })?;
    let id = node.run("second", 1)?[0].id.to_string();
    node.ask(&id, "POST /write?key=c&value=3")?;
    take(node, &id, "third")?;
    // What others were taken against stays, without its name.
    node.ok(&["checkpoint", "rm", "first"])?;
    node.ok(&["checkpoint", "rm", "second"])?;
    node.ok(&["store", "gc", "--grace", "0"])?;
    node.ok(&["store", "verify"])?;
    node.ok(&["checkpoint", "verify", "third"])?;
    elsewhere(shared, |other| {
        let id = other.run("third", 1)?[0].id.to_string();
        let state = other.ask(&id, "GET /state")?;
        let values = &state["values"];
        ensure!(values["a"] == "1" && values["b"] == "2" && values["c"] == "3" && state["writes"] == 3, "{state}");
        ensure!(other.ask(&id, "GET /verify")?["intact"] == true, "not intact");
        other.shell(&id, "cd /home/user; md5sum -c sum")?;
        let file = shared.0.join("third.pando").display().to_string();
        other.ok(&["checkpoint", "export", "third", &file])?;
        other.ok(&["checkpoint", "import", &file, "--name", "again"])?;
        let id = other.run("again", 1)?[0].id.to_string();
        ensure!(other.ask(&id, "GET /state")?["values"]["c"] == "3", "not what was exported");
        ensure!(other.ask(&id, "GET /verify")?["intact"] == true, "an imported one is not intact");
        other.shell(&id, "cd /home/user; md5sum -c sum").map(drop)
    })
}

/// Bytes of all segments of the store.
fn bytes_stored(node: &Node) -> Result<u64> {
    let stats = node.json(&["store", "stats", "--json"])?;
    stats["segments"]["bytes"].as_u64().with_context(|| format!("no bytes: {stats}"))
}

fn alike(shared: &Shared, node: &Node) -> Result<()> {
    let begun = |key: &str| -> Result<String> {
        let id = node.run("geo", 1)?[0].id.to_string();
        node.ask(&id, &format!("POST /write?key={key}&value=1"))?;
        Ok(id)
    };
    let whole = stored(&take(node, &begun("a")?, "first")?)?;
    let second = stored(&take(node, &begun("b")?, "second")?)?;
    println!("    whole: {whole} bytes; the second: {second}");
    ensure!(second < whole / 4, "what is in the first is stored again: {second} of {whole} bytes");
    // Built again, it is another process with other addresses; another program has nothing in common with it at all. Neither hides the second.
    node.build_geo("again", &["--nidx", "4"])?;
    take(node, &node.run("again", 1)?[0].id.to_string(), "third")?;
    let server = node.program("server.js");
    node.ok(&["template", "build", "js", "--port", "8080", "--", "/usr/bin/node", &server, "--port", "8080"])?;
    take(node, &node.run("js", 1)?[0].id.to_string(), "other")?;
    let fourth = stored(&take(node, &begun("d")?, "fourth")?)?;
    ensure!(fourth < whole / 4, "what is in the second is stored again: {fourth} of {whole} bytes");
    // The pages stay, without the names.
    node.ok(&["checkpoint", "rm", "first"])?;
    node.ok(&["checkpoint", "rm", "second"])?;
    node.ok(&["store", "gc", "--grace", "0"])?;
    node.ok(&["store", "verify"])?;
    node.ok(&["checkpoint", "verify", "fourth"])?;
    elsewhere(shared, |other| {
        let file = shared.0.join("fourth.pando").display().to_string();
        other.ok(&["checkpoint", "export", "fourth", &file])?;
        other.ok(&["checkpoint", "import", &file, "--name", "imported"])?;
        for (name, values) in [("third", "{}"), ("fourth", r#"{"d":"1"}"#), ("imported", r#"{"d":"1"}"#)] {
            let id = other.run(name, 1)?[0].id.to_string();
            let state = other.ask(&id, "GET /state")?;
            ensure!(state["values"] == serde_json::from_str::<serde_json::Value>(values)?, "{name}: {state}");
            ensure!(other.ask(&id, "GET /verify")?["intact"] == true, "{name}: not intact");
        }
        Ok(())
    })
}

fn early(shared: &Shared, node: &Node) -> Result<()> {
    let source = node.run("geo", 1)?[0].id.to_string();
    let whole = stored(&take(node, &source, "first")?)?;
    elsewhere(shared, |other| {
        // Its zygote has hardly a page yet, so that they have no frames in common.
        let id = other.run("first", 1)?[0].id.to_string();
        other.ask(&id, "POST /write?key=b&value=2")?;
        let more = stored(&take(other, &id, "second")?)?;
        println!("    whole: {whole} bytes; the second: {more}");
        ensure!(more < whole / 4, "what is the same as in the first is stored again: {more} of {whole} bytes");
        Ok(())
    })?;
    node.ok(&["checkpoint", "rm", "first"])?;
    node.ok(&["store", "gc", "--grace", "0"])?;
    elsewhere(shared, |other| {
        let id = other.run("second", 1)?[0].id.to_string();
        ensure!(other.ask(&id, "GET /state")?["values"]["b"] == "2", "not what it was");
        ensure!(other.ask(&id, "GET /verify")?["intact"] == true, "not intact");
        Ok(())
    })
}

fn stored(taken: &serde_json::Value) -> Result<u64> {
    taken["stored_memory_bytes"].as_u64().context("no figure")
}

fn wrong_key(shared: &Shared, node: &Node) -> Result<()> {
    let source = node.run("geo", 1)?[0].id.to_string();
    node.shell(&source, "echo a-canary-that-nobody-else-has > /home/user/canary")?;
    node.ask(&source, "POST /write?key=canary&value=another-canary-of-memory-alone")?;
    take(node, &source, "sealed")?;
    for canary in [&b"a-canary-that-nobody-else-has"[..], b"another-canary-of-memory-alone"] {
        ensure!(!holds(&shared.0, canary)?, "plaintext in the store");
    }
    let other = shared.node_with("other.keys", &[])?;
    let refused = other.pando(&["create", "sealed"])?;
    ensure!(refused.code != 0 && refused.stderr.contains("key"), "{refused}");
    other.finish()
}

/// Builds the template `clock`, whose program writes its monotonic clock into a file again and again.
fn build_clock(node: &Node) -> Result<()> {
    let program = "import os, time\nwhile True:\n    open('/tmp/new', 'w').write(str(time.monotonic()))\n    \
                   os.rename('/tmp/new', '/tmp/clock')\n    time.sleep(0.02)";
    let build = ["template", "build", "clock", "--ready-file", "/tmp/clock", "--", "/usr/bin/python3", "-c", program];
    node.ok(&build)?;
    Ok(())
}

/// What the clock of the program in `id` shows, a moment after its start. A command in the sandbox must see the same.
fn shown_clock(node: &Node, id: &str) -> Result<f64> {
    std::thread::sleep(std::time::Duration::from_millis(300));
    let began = Instant::now();
    let program: f64 = node.shell(id, "cat /tmp/clock")?.parse()?;
    let command = node.shell(id, "python3 -c 'import time; print(time.monotonic())'; cat /proc/uptime")?;
    for shown in command.lines().filter_map(|line| line.split_whitespace().next()) {
        let shown: f64 = shown.parse()?;
        let apart = began.elapsed().as_secs_f64() + 2.0;
        ensure!((shown - program).abs() < apart, "the program's clock shows {program}, a command's {shown}");
    }
    Ok(program)
}

fn clocks(shared: &Shared, node: &Node) -> Result<()> {
    const PAUSE: std::time::Duration = std::time::Duration::from_secs(5);
    let began = Instant::now();
    build_clock(node)?;
    let source = node.run("clock", 1)?[0].id.to_string();
    take(node, &source, "kept")?;
    let then = shown_clock(node, &source)?;
    // The machine may be slow: what passes outside is the measure.
    let (shown, earlier) = (Instant::now(), began.elapsed().as_secs_f64());
    let goes_on = |node: &Node, template: &str| -> Result<String> {
        let id = node.run(template, 1)?[0].id.to_string();
        let now = shown_clock(node, &id)?;
        let most = then + shown.elapsed().as_secs_f64() - PAUSE.as_secs_f64() / 2.0;
        ensure!((then - earlier..most).contains(&now), "{template}: the clock showed {then}, and shows {now}");
        Ok(id)
    };
    std::thread::sleep(PAUSE);
    // A later copy of the template's zygote, which is older by now.
    goes_on(node, "clock")?;
    elsewhere(shared, |other| {
        let id = goes_on(other, "kept")?;
        // A live fork of it has the same clock.
        let fork = other.json(&["fork", &id, "--json"])?;
        let copy = fork["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
        let source = shown_clock(other, &id)?;
        let between = Instant::now();
        let copy = shown_clock(other, &copy)?;
        let apart = between.elapsed().as_secs_f64() + 2.0;
        ensure!((source - copy).abs() < apart, "the source's clock shows {source}, its copy's {copy}");
        // So has a further copy, for which the restored zygote is old.
        std::thread::sleep(PAUSE / 2);
        goes_on(other, "kept").map(drop)
    })
}

/// The offsets of a time namespace count from the machine's clocks, not from those of the node's own namespace.
fn clocks_of_nodes(shared: &Shared, node: &Node) -> Result<()> {
    let began = Instant::now();
    build_clock(node)?;
    let source = node.run("clock", 1)?[0].id.to_string();
    take(node, &source, "kept")?;
    let then = shown_clock(node, &source)?;
    for ahead in [-50, 100_000] {
        let setting = Setting { clocks_ahead_s: Some(ahead), ..shared.setting("master.keys", &[]) };
        let other = Node::start_with(setting)?;
        let id = other.run("kept", 1)?[0].id.to_string();
        let now = shown_clock(&other, &id)?;
        // It has not stood still for longer than the machine was slow.
        let most = began.elapsed().as_secs_f64() + 5.0;
        ensure!((now - then).abs() < most, "{ahead} s: the clock showed {then}, and shows {now}");
        // What begins there has that node's clock, and its copies go on from it.
        build_clock(&other)?;
        let id = other.run("clock", 1)?[0].id.to_string();
        let own = shown_clock(&other, &id)?;
        ensure!((own - now - ahead as f64).abs() < 60.0, "{ahead} s: a program of the node itself shows {own}");
        other.finish()?;
    }
    Ok(())
}

/// The processes of a node's pager, in the order in which they were made: guardian, spare, pager.
fn told(_: &Shared, node: &Node) -> Result<()> {
    node.build_geo("large", &["--mb", "200"])?;
    let id = node.run("large", 1)?[0].id.to_string();
    let (status, body) = node.api(&format!("POST /v1/sandboxes/{id}/checkpoint"), b"{}")?;
    ensure!(status == 200 && body.contains("\"done\""), "{status} {body}");
    let lines = body.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let bytes =
        |line: serde_json::Value| Some((line["stage"]["done_bytes"].as_u64()?, line["stage"]["total_bytes"].as_u64()?));
    let told: Vec<(u64, u64)> = lines.filter_map(bytes).collect();
    ensure!(told.len() >= 5 && told.is_sorted_by_key(|(done, _)| *done), "{told:?}");
    ensure!(told.iter().all(|(done, total)| done <= total && (200 << 20..400 << 20).contains(total)), "{told:?}");
    Ok(())
}

pub(crate) fn pagers(node: &Node) -> Result<Vec<i32>> {
    let state = format!("--state\0{}\0", node.state.display());
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let command = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        if command.contains("\0guardian\0") && command.contains(&state) {
            pids.extend(entry.file_name().to_string_lossy().parse::<i32>());
        }
    }
    pids.sort_unstable();
    Ok(pids)
}

pub(crate) fn kill(pid: i32) -> Result<()> {
    let pid = rustix::process::Pid::from_raw(pid).context("no pid")?;
    // It may have ended meanwhile.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    Ok(())
}

fn killed_pager(shared: &Shared, node: &Node) -> Result<()> {
    let source = node.run("geo", 1)?[0].id.to_string();
    take(node, &source, "warm")?;
    elsewhere(shared, |other| {
        let ids: Vec<String> = other.run("warm", 3)?.iter().map(|sandbox| sandbox.id.to_string()).collect();
        // Each in turn: the pager, the spare and the guardian, while pages are missing.
        for round in 0..9 {
            let family = pagers(other)?;
            ensure!(family.len() <= 3 && !family.is_empty(), "the pager's processes: {family:?}");
            kill(family[family.len() - 1 - round % family.len()])?;
            ensure!(other.ask(&ids[round % 3], "GET /verify")?["intact"] == true, "round {round}: not intact");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        Ok(())
    })
}

fn killed_node(shared: &Shared, node: &Node) -> Result<()> {
    let source = node.run("geo", 1)?[0].id.to_string();
    take(node, &source, "warm")?;
    let mut other = shared.node()?;
    let id = other.run("warm", 1)?[0].id.to_string();
    other.kill_server()?;
    other.start_server()?;
    ensure!(other.ask(&id, "GET /verify")?["intact"] == true, "not intact");
    let fork = other.json(&["fork", &id, "--json"])?;
    let copy = fork["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
    ensure!(other.ask(&copy, "GET /verify")?["intact"] == true, "a fork of it is not intact");
    other.finish()
}

/// Whether a file below `folder` holds these bytes.
fn holds(folder: &Path, needle: &[u8]) -> Result<bool> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let (kind, path) = (entry.file_type()?, entry.path());
        let found = (kind.is_dir() && holds(&path, needle)?)
            || (kind.is_file() && std::fs::read(&path)?.windows(needle.len()).any(|window| window == needle));
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `ps`, and whoever else looks at a program from outside, must not find zeros where pages have not arrived.
fn command_line(shared: &Shared, node: &Node) -> Result<()> {
    let looks = "tr '\\0' ' ' < /proc/2/cmdline; echo; tr '\\0' '\\n' < /proc/2/environ | sort";
    let id = node.run("geo", 1)?[0].id.to_string();
    let expected = node.shell(&id, looks)?;
    ensure!(expected.contains("geo.py --nidx 4") && expected.contains("PATH="), "{expected}");
    node.ok(&["checkpoint", &id, "--name", "geo-line"])?;
    elsewhere(shared, |other| {
        let id = other.run("geo-line", 1)?[0].id.to_string();
        let found = other.shell(&id, looks)?;
        ensure!(found == expected, "a restored program shows {found:?} instead of {expected:?}");
        Ok(())
    })
}
