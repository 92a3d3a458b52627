//! Commands in sandboxes: what they may be given, and when they end.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use testkit::{node::Node, runner::Case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("commands::long_arguments_run_up_to_the_limits_of_linux", || case(long)),
        Case::new("commands::hostile_commands_are_refused_and_end_no_process", || case(hostile)),
        Case::new("commands::a_reader_that_has_gone_ends_the_command", || case(reader_gone)),
        Case::new("commands::a_killed_client_ends_all_that_its_command_started", || case(client_killed)),
        Case::new("commands::a_slow_reader_gets_all_of_the_output", || case(slow_reader)),
        Case::new("commands::what_a_command_leaves_behind_stays_when_it_ends_by_itself", || case(left_behind)),
        Case::new("commands::a_time_limit_ends_the_command_with_its_children", || case(time_limit)),
        Case::new("commands::a_command_whose_start_was_given_up_never_starts", || case(late))
            .slow("the node waits 30 s for a start"),
        Case::new("commands::a_killed_node_leaves_no_command_of_its_clients", node_killed),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start()?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// A sandbox of a program that only waits.
fn sandbox(node: &Node) -> Result<String> {
    build_sleep(node, "sleeper")?;
    Ok(node.run("sleeper", 1)?[0].id.to_string())
}

fn build_sleep(node: &Node, name: &str) -> Result<()> {
    node.ok(&["template", "build", name, "--ready", "true", "--", "/bin/sleep", "1000000"]).map(drop)
}

/// The keeper is busy for longer than the node waits for it.
fn late(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let keeper = node.stop_keeper()?;
    let answer = node.pando(&["exec", &id, "--", "/bin/sh", "-c", "touch /tmp/late; exec sleep 1000000"]);
    drop(keeper);
    let answer = answer?;
    ensure!(answer.code != 0 && answer.stderr.contains("no answer within"), "{answer}");
    // The keeper takes this one after that.
    let seen = node.shell(&id, "ls /tmp")?;
    ensure!(!seen.contains("late"), "the command started: {seen}");
    Ok(())
}

fn long(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let count = |given: &[String]| -> Result<String> {
        let count = ["exec", &id, "--", "/bin/sh", "-c", "for a; do n=$((n+${#a})); done; echo $# $n", "sh"];
        let all: Vec<&str> = count.into_iter().chain(given.iter().map(String::as_str)).collect();
        node.ok(&all)
    };
    // Characters that JSON makes six times as long.
    for text in ["x", "\u{1}"] {
        let given: Vec<String> = (0..1600).map(|_| text.repeat(1000)).collect();
        ensure!(count(&given)? == "1600 1600000\n", "1.6 MB of {text:?}");
    }
    ensure!(count(&["y".repeat(131_071)])? == "1 131071\n", "the longest argument");
    let script = format!("test ${{#V}} = 131069 && echo {}", "z".repeat(100_000));
    let variable = format!("V={}", "v".repeat(131_069));
    let answer = node.ok(&["exec", "--env", &variable, &id, "--", "/bin/sh", "-c", &script])?;
    ensure!(answer.trim_end() == "z".repeat(100_000), "the longest variable: {answer}");
    let long = format!("{script}; exec sleep 1000000");
    node.ok(&[
        "template",
        "build",
        "long",
        "--ready",
        &format!("true {}", "z".repeat(100_000)),
        "--",
        "/bin/sh",
        "-c",
        &long,
    ])?;
    let other = node.run("long", 1)?[0].id.to_string();
    ensure!(node.shell(&other, "echo here")? == "here\n", "a sandbox of a long command");
    ensure!(node.info()?.keeper_restarts == 0, "the keeper did not survive");
    node.ok(&["kill", &id, &other]).map(drop)
}

/// Requests that nothing in the node may die of; the template of another program has to be there as before.
fn hostile(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let keeper = node.info()?.keeper_pid;
    let exec = format!("POST /v1/sandboxes/{id}/exec");
    let many = serde_json::Value::from(vec![["A", "b"]; 300_000]);
    let tiny = serde_json::Value::from(vec![""; 1_000_000]);
    let bodies = [
        serde_json::json!({"command": []}),
        serde_json::json!({"command": ["echo", "a\u{0}b"]}),
        serde_json::json!({"command": ["ec\u{0}ho"]}),
        serde_json::json!({"command": ["true"], "env": [["A\u{0}", "b"]]}),
        serde_json::json!({"command": ["true"], "env": [["A", "b\u{0}"]]}),
        serde_json::json!({"command": ["true"], "env": [["", "b"]]}),
        serde_json::json!({"command": ["true"], "env": [["A=B", "b"]]}),
        serde_json::json!({"command": ["true"], "env": (0..300_000).map(|n| [format!("A{n}"), String::new()]).collect::<Vec<_>>()}),
        serde_json::json!({"command": ["true"], "env": [["A", "b".repeat(131_070)]]}),
        serde_json::json!({"command": ["true", "x".repeat(131_072)]}),
        serde_json::json!({"command": vec!["x".repeat(100_000); 25]}),
        serde_json::json!({"command": tiny}),
        serde_json::json!({"command": ["x".repeat(5_000)]}),
        serde_json::json!({"command": ["true"], "cwd": format!("/{}", "x".repeat(5_000))}),
        serde_json::json!({"command": ["true"], "cwd": "/\u{0}"}),
        serde_json::json!({"command": ["true"], "cwd": "relative"}),
        serde_json::json!({"command": ["true"], "timeout_ms": 0}),
        serde_json::json!({"command": ["true"], "timeout_ms": u64::MAX}),
    ];
    for body in &bodies {
        refused(node, &exec, body.to_string().as_bytes())?;
    }
    // A lone half of a surrogate pair, a byte that is no UTF-8, a number that is none of a terminal's.
    refused(node, &exec, br#"{"command": ["\ud800"]}"#)?;
    refused(node, &exec, b"{\"command\": [\"\xff\"]}")?;
    refused(node, &exec, br#"{"command": ["true"], "terminal": {"rows": 65536, "columns": -1}}"#)?;
    // The last one of each name counts, so this is one variable.
    let (status, _) =
        upgrade(node, &exec, serde_json::json!({"command": ["true"], "env": many}).to_string().as_bytes())?;
    ensure!(status == 101 || status == 400, "many variables of one name: {status}");
    for (what, change) in templates() {
        let mut spec = serde_json::json!({"name": "x", "image": "host", "command": ["/bin/true"], "cwd": "/", "ready": "listening", "ready_timeout_ms": 500});
        let fields = spec.as_object_mut().context("no object")?;
        fields.extend(change.as_object().context("no object")?.clone());
        let (status, answer) = node.api("POST /v1/templates", spec.to_string().as_bytes())?;
        ensure!(status == 400, "a template with {what}: {status} {answer}");
    }
    let answer = node.pando(&["exec", &id, "--", ""])?;
    ensure!(answer.code == 127, "a program without a name: {answer}");
    let info = node.info()?;
    ensure!(info.keeper_pid == keeper && info.keeper_restarts == 0, "the keeper did not survive: {info:?}");
    ensure!(!node.ok(&["template", "ls"])?.contains("lost"), "a zygote was lost");
    ensure!(node.shell(&id, "echo here")? == "here\n", "the sandbox");
    node.ok(&["kill", &id]).map(drop)
}

fn templates() -> Vec<(&'static str, serde_json::Value)> {
    vec![
        ("a zero byte in its command", serde_json::json!({"command": ["a\u{0}b"]})),
        ("an argument that is too long", serde_json::json!({"command": ["/bin/true", "x".repeat(131_072)]})),
        ("a command that is too long", serde_json::json!({"command": vec!["x".repeat(100_000); 25]})),
        ("a variable without a name", serde_json::json!({"env": [["", "a"]]})),
        ("a directory that is too long", serde_json::json!({"cwd": format!("/{}", "x".repeat(5_000))})),
        ("an image that is too long", serde_json::json!({"image": format!("/{}", "x".repeat(5_000))})),
        ("a zero byte in its image", serde_json::json!({"image": "/a\u{0}b"})),
        ("an empty ready command", serde_json::json!({"ready": {"command": []}})),
        ("a zero byte in its ready command", serde_json::json!({"ready": {"command": ["a\u{0}b"]}})),
        ("a ready file that is too long", serde_json::json!({"ready": {"file": format!("/{}", "x".repeat(5_000))}})),
        ("a zero byte in its ready file", serde_json::json!({"ready": {"file": "/a\u{0}b"}})),
        ("port 0", serde_json::json!({"ready": {"port": 0}})),
        (
            "more processes than there are numbers",
            serde_json::json!({"limits": {"memory_bytes": 1_000_000_000, "pids": u64::MAX, "cpu_millis": null}}),
        ),
        (
            "more memory than there can be",
            serde_json::json!({"limits": {"memory_bytes": u64::MAX, "pids": 10, "cpu_millis": null}}),
        ),
        (
            "more processors than there can be",
            serde_json::json!({"limits": {"memory_bytes": 1_000_000_000, "pids": 10, "cpu_millis": u32::MAX}}),
        ),
    ]
}

fn refused(node: &Node, request: &str, body: &[u8]) -> Result<()> {
    let (status, answer) = upgrade(node, request, body)?;
    let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
    ensure!(status == 400, "{request} with {} bytes {shown}: {status} {answer}", body.len());
    let answer: api::ErrorBody = serde_json::from_str(&answer).with_context(|| format!("{shown}: {answer:?}"))?;
    ensure!(
        !answer.error.message.is_empty() && answer.error.message.len() < 1_000,
        "{shown}: {}",
        answer.error.message
    );
    Ok(())
}

/// As `Node::api`, for a request whose connection is to become a command's streams; it hangs up.
fn upgrade(node: &Node, request: &str, body: &[u8]) -> Result<(u16, String)> {
    node.api(&format!("{request} HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: pando-exec\r\nX-Rest:"), body)
}

/// What runs in a sandbox, by its command line and without its pid 1 and its program.
fn running(node: &Node, id: &str) -> Result<Vec<String>> {
    let detail = node.inspect(id)?;
    let main = detail.sandbox.main_pid;
    let others = detail.processes.iter().filter(|process| process.inner_pid != 1 && process.pid != main);
    let command = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
    Ok(others.map(|process| command(process.pid)).filter(|command| !command.is_empty()).collect())
}

/// Waits until only the program is left; gives how long that took.
fn until_alone(node: &Node, id: &str, most: Duration) -> Result<Duration> {
    let began = Instant::now();
    loop {
        let running = running(node, id)?;
        if running.is_empty() {
            return Ok(began.elapsed());
        }
        ensure!(began.elapsed() < most, "left in {id}: {running:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

const TICKER: &str = "while :; do echo a; sleep 0.05; done";

fn reader_gone(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    // The second one writes nothing any more when its reader goes.
    for script in [TICKER, "yes", "echo a; exec sleep 1000001"] {
        let (reader, writer) = std::io::pipe()?;
        let mut exec = node.command_of(&["exec", &id, "--", "/bin/sh", "-c", script]).stdout(writer).spawn()?;
        let mut byte = [0];
        (&reader).read_exact(&mut byte)?;
        drop(reader);
        let began = Instant::now();
        let status = loop {
            if let Some(status) = exec.try_wait()? {
                break status;
            }
            if began.elapsed() > Duration::from_secs(5) {
                exec.kill()?;
                exec.wait()?;
                anyhow::bail!("exec of {script:?} goes on without a reader");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        ensure!(status.code() == Some(141), "{script:?}: {status}");
        until_alone(node, &id, Duration::from_secs(5))?;
    }
    node.ok(&["kill", &id]).map(drop)
}

/// The command has long ended when the reader begins: what it wrote is in pipes, sockets and the node.
fn slow_reader(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let (mut reader, writer) = std::io::pipe()?;
    let mut exec =
        node.command_of(&["exec", &id, "--", "/usr/bin/head", "-c", "400000", "/dev/zero"]).stdout(writer).spawn()?;
    std::thread::sleep(Duration::from_millis(1_200));
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    let status = exec.wait()?;
    ensure!(bytes.len() == 400_000 && status.success(), "{} bytes, {status}", bytes.len());
    node.ok(&["kill", &id]).map(drop)
}

fn client_killed(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let scripts = [
        "sleep 1000002; echo",
        // Out of the group and the session.
        "setsid sleep 1000003 & setsid -f sleep 1000004; sleep 1000005; echo",
    ];
    for signal in [Signal::KILL, Signal::INT, Signal::TERM] {
        for script in scripts {
            let exec = node.begin(&["exec", &id, "--", "/bin/sh", "-c", &format!("echo; {script}")])?;
            exec.first_line()?;
            exec.signal(signal)?;
            exec.end()?;
            until_alone(node, &id, Duration::from_secs(5)).with_context(|| format!("{signal:?}: {script}"))?;
        }
    }
    // A terminal, as well.
    let exec =
        node.hold(&["exec", "-t", &id, "--", "/bin/sh", "-c", "echo; setsid sleep 1000006 & sleep 1000007; echo"])?;
    exec.first_line()?;
    exec.signal(Signal::KILL)?;
    exec.release()?;
    until_alone(node, &id, Duration::from_secs(5))?;
    // What does not want to end is killed after two seconds; what does has time to tidy up.
    let stubborn = "trap '' TERM; (trap 'echo tidy > /tmp/tidy; exit' TERM; echo; while :; do sleep 0.01; done) & while :; do sleep 0.01; done";
    let exec = node.begin(&["exec", &id, "--", "/bin/sh", "-c", stubborn])?;
    exec.first_line()?;
    exec.signal(Signal::KILL)?;
    exec.end()?;
    let took = until_alone(node, &id, Duration::from_secs(8))?;
    ensure!(took > Duration::from_millis(1_500), "killed after {took:?}");
    ensure!(node.shell(&id, "cat /tmp/tidy")? == "tidy\n", "it was not told to end");
    node.ok(&["fork", &id]).context("a fork after killed clients")?;
    node.ok(&["kill", "--all"]).map(drop)
}

fn left_behind(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    node.shell(&id, "sleep 1000008 & echo started")?;
    std::thread::sleep(Duration::from_millis(300));
    ensure!(running(node, &id)?.len() == 1, "{:?}", running(node, &id)?);
    ensure!(groups(node, &id)?.is_empty(), "groups of commands that have ended: {:?}", groups(node, &id)?);
    let copy = node.json(&["fork", &id, "--json"])?["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
    ensure!(running(node, &copy)?.len() == 1, "it is not in the copy");
    node.ok(&["kill", "--all"]).map(drop)
}

/// The groups of commands in a sandbox's own.
fn groups(node: &Node, id: &str) -> Result<Vec<PathBuf>> {
    let group = node.inspect(id)?.cgroup;
    let entries = fs::read_dir(Path::new(&group)).with_context(|| format!("list {group}"))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect())
}

fn time_limit(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let answer = node.pando(&[
        "exec",
        "--timeout",
        "300ms",
        &id,
        "--",
        "/bin/sh",
        "-c",
        "echo begun; setsid sleep 1000009 & sleep 1000010",
    ])?;
    ensure!(answer.code == 124 && answer.stdout == "begun\n", "{answer}");
    ensure!(answer.stderr.contains("did not end within 300 ms"), "{answer}");
    ensure!(answer.took < Duration::from_secs(20), "{answer}");
    until_alone(node, &id, Duration::from_secs(10))?;
    let answer = node.pando(&[
        "exec",
        "--timeout",
        "300ms",
        &id,
        "--",
        "/bin/sh",
        "-c",
        "trap '' TERM; while :; do sleep 0.01; done",
    ])?;
    ensure!(answer.code == 124 && answer.took > Duration::from_secs(2), "{answer}");
    until_alone(node, &id, Duration::from_secs(10))?;
    // One that ends in time is none of its business, nor one that ends by the signal with words of its own.
    let answer = node.pando(&["exec", "--timeout", "1m", &id, "--", "/bin/sh", "-c", "exit 3"])?;
    ensure!(answer.code == 3 && answer.stderr.is_empty(), "{answer}");
    for wrong in ["0", "-1s", "soon", "400d"] {
        let answer = node.pando(&["exec", &format!("--timeout={wrong}"), &id, "--", "true"])?;
        ensure!(answer.code == 2, "--timeout={wrong}: {answer}");
    }
    node.ok(&["kill", &id]).map(drop)
}

fn node_killed() -> Result<()> {
    let mut node = Node::start()?;
    let id = sandbox(&node)?;
    node.shell(&id, "sleep 1000011 & echo started")?;
    let mut exec = node
        .command_of(&["exec", &id, "--", "/bin/sh", "-c", "setsid sleep 1000012 & sleep 1000013"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let deadline = Instant::now() + Duration::from_secs(5);
    while running(&node, &id)?.len() < 4 {
        ensure!(Instant::now() < deadline, "{:?}", running(&node, &id)?);
        std::thread::sleep(Duration::from_millis(10));
    }
    node.kill_server()?;
    exec.wait()?;
    node.start_server()?;
    let deadline = Instant::now() + Duration::from_secs(5);
    while running(&node, &id)?.len() > 1 {
        ensure!(Instant::now() < deadline, "{:?}", running(&node, &id)?);
        std::thread::sleep(Duration::from_millis(10));
    }
    ensure!(running(&node, &id)?[0].contains("1000011"), "{:?}", running(&node, &id)?);
    node.ok(&["kill", &id])?;
    node.finish()
}
