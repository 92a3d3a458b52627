//! How the command line is used: which node, which sandbox, what is asked first, and what is said of failures.

use std::{
    io::Write,
    net::TcpListener,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use testkit::{
    node::{Answer, Node},
    runner::Case,
};

use super::files_only::begin_unforkable;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("command_line::the_environment_names_the_node", || case(environment)),
        Case::new("command_line::the_beginning_of_an_identifier_is_enough", || case(beginnings)),
        Case::new("command_line::paused_sandboxes_are_not_removed_unasked", || case(paused)),
        Case::new("command_line::hints_name_the_right_cause", || case(hints)),
        Case::new("command_line::a_ready_command_that_cannot_run_is_said_at_once", || case(no_shell)),
        Case::new("command_line::a_program_that_dies_right_after_its_first_words_is_no_template", || case(dies)),
        Case::new("command_line::a_death_at_the_memory_limit_is_said_everywhere", || case(memory)),
        Case::new("command_line::normal_use_logs_no_warning", || case(quiet)),
        Case::new("command_line::env_prints_what_a_running_server_has_left", || case(variables)),
        Case::new("command_line::a_program_on_the_ipv6_loopback_is_connected_to", || case(ipv6)),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start()?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

fn sleepers(node: &Node, count: usize) -> Result<Vec<String>> {
    node.ok(&["template", "build", "sleeper", "--ready", "true", "--", "/bin/sleep", "1000000"])?;
    Ok(node.run("sleeper", count)?.into_iter().map(|sandbox| sandbox.id.to_string()).collect())
}

fn environment(node: &Node) -> Result<()> {
    sleepers(node, 1)?;
    let ask = |socket: &std::path::Path, arguments: &[&str]| -> Result<std::process::Output> {
        // As a user calls it: without --socket.
        let mut command = std::process::Command::new(node.command_of(&[]).get_program());
        Ok(command.env("PANDO_SOCKET", socket).args(arguments).output()?)
    };
    let started = ask(&node.socket, &["create", "-q", "sleeper", "-n", "2"])?;
    let ids = String::from_utf8(started.stdout)?;
    ensure!(started.status.success() && started.stderr.is_empty() || ids.lines().count() == 2, "{ids}");
    ensure!(ids.lines().all(|line| line.len() == 13 && line.starts_with('s')), "{ids:?}");
    let listed = String::from_utf8(ask(&node.socket, &["ls", "-q"])?.stdout)?;
    ensure!(ids.lines().all(|id| listed.contains(id)), "{listed}");
    let nowhere = node.dir().join("nowhere.sock");
    let answer = ask(&nowhere, &["ls"])?;
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    ensure!(
        answer.status.code() == Some(3) && said.contains("nowhere.sock") && said.contains("PANDO_SOCKET"),
        "{said}"
    );
    // What is said outweighs it.
    let socket = node.socket.display().to_string();
    ensure!(ask(&nowhere, &["--socket", &socket, "ls"])?.status.success(), "--socket against PANDO_SOCKET");
    node.ok(&["kill", "--all"]).map(drop)
}

fn refused(answer: &Answer, code: i32, texts: &[&str]) -> Result<()> {
    ensure!(answer.code == code, "{answer}");
    for text in texts {
        ensure!(answer.stderr.contains(text), "{text:?} is missing: {answer}");
    }
    Ok(())
}

/// The shortest beginning of `id` that no other of `all` has.
fn shortest<'a>(id: &'a str, all: &[String]) -> &'a str {
    let alone = |length: &usize| all.iter().filter(|other| other.starts_with(&id[..*length])).count() == 1;
    &id[..(2..=id.len()).find(alone).unwrap_or(id.len())]
}

fn beginnings(node: &Node) -> Result<()> {
    // Of 17 at least two begin with the same digit.
    let all = sleepers(node, 17)?;
    let twice = all.iter().map(|id| &id[..2]).find(|short| all.iter().filter(|id| id.starts_with(short)).count() > 1);
    let twice = twice.context("no two identifiers begin alike")?;
    let answer = node.pando(&["exec", twice, "--", "true"])?;
    refused(&answer, 2, &["is the beginning of"])?;
    for id in all.iter().filter(|id| id.starts_with(twice)) {
        refused(&answer, 2, &[id])?;
    }
    let missing =
        all.iter().fold("s0000".to_owned(), |text, id| if id.starts_with(&text) { "s1111".to_owned() } else { text });
    refused(&node.pando(&["inspect", &missing])?, 4, &["there is no sandbox", &missing])?;
    let id = &all[0];
    let short = shortest(id, &all);
    ensure!(node.ok(&["exec", short, "--", "/bin/hostname"])?.trim() == id, "exec");
    ensure!(node.ok(&["inspect", short])?.contains(id.as_str()), "inspect");
    node.ok(&["logs", short])?;
    let forked = node.json(&["fork", short, "--json"])?;
    ensure!(forked["sandboxes"][0]["parent"] == id.as_str(), "{forked}");
    // Its identifier may begin alike.
    node.ok(&["kill", forked["sandboxes"][0]["id"].as_str().context("a fork without id")?])?;
    node.ok(&["checkpoint", short, "--name", "kept"])?;
    ensure!(node.ok(&["pause", short])?.trim() == id, "pause");
    ensure!(node.ok(&["resume", short])?.contains(id.as_str()), "resume");
    ensure!(node.ok(&["kill", short])?.trim() == id, "kill");
    node.ok(&["checkpoint", "rm", "kept"])?;
    node.ok(&["kill", "--all"]).map(drop)
}

fn paused(node: &Node) -> Result<()> {
    let ids = sleepers(node, 3)?;
    node.ok(&["pause", &ids[0]])?;
    let answer = node.pando(&["kill", "--all"])?;
    refused(&answer, 2, &["1 of 3 sandboxes is paused", "Nothing was removed", "--force"])?;
    ensure!(node.ps()?.len() == 3, "something was removed");
    // By the API, which is not asked back.
    let (status, answer) = node.api("DELETE /v1/sandboxes?keep_paused=true", b"")?;
    ensure!(status == 200 && !answer.contains(&ids[0]) && answer.contains(&ids[1]), "{status} {answer}");
    // On a terminal it asks.
    for (typed, left) in [("n\n", 1), ("\n", 1), ("y\n", 0)] {
        let socket = node.socket.display().to_string();
        let command = format!("{} --socket {socket} kill --all", node.command_of(&[]).get_program().display());
        let mut script = std::process::Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("script(1)")?;
        script.stdin.take().context("no input")?.write_all(typed.as_bytes())?;
        let shown = String::from_utf8_lossy(&script.wait_with_output()?.stdout).into_owned();
        ensure!(shown.contains("Remove all 1? [y/N]"), "{typed:?}: {shown}");
        ensure!(node.ps()?.len() == left, "after {typed:?}: {shown}");
    }
    node.ok(&["kill", "--all"]).map(drop)
}

fn hints(node: &Node) -> Result<()> {
    let gone = "mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone; exec sleep 1000";
    let answer = node.pando(&["template", "build", "lost", "--ready", "sleep 0.1", "--", "/bin/sh", "-c", gone])?;
    refused(&answer, 5, &["its working directory /tmp/gone (deleted)", "hint: change the program"])?;
    ensure!(!answer.stderr.contains("pando exec"), "a build has no exec: {answer}");
    let id = &sleepers(node, 1)?[0];
    let held = begin_unforkable(node, id)?;
    for command in [&["fork", id][..], &["checkpoint", id], &["pause", id]] {
        refused(
            &node.pando(command)?,
            5,
            &["(python3)", "hint: the sandbox goes on; end the processes that are named"],
        )?;
    }
    held.signal(rustix::process::Signal::INT)?;
    node.ok(&["volume", "create", "ws"])?;
    let missing = node.dir().join("not there").display().to_string();
    let answer = node.pando(&["volume", "mount", "ws", &missing])?;
    refused(&answer, 1, &[&format!("there is no directory {missing}"), "hint: make it first"])?;
    node.ok(&["volume", "rm", "ws"])?;
    node.ok(&["kill", "--all"]).map(drop)
}

fn no_shell(node: &Node) -> Result<()> {
    let root = node.programs.join("root");
    std::fs::create_dir(&root)?;
    std::fs::copy(node.programs.join("geo-go"), root.join("service"))?;
    let image = root.display().to_string();
    let build =
        ["template", "build", "bare", "--image", &image, "--ready-timeout", "20s", "--ready", "true", "--", "/service"];
    let answer = node.pando(&build)?;
    refused(
        &answer,
        127,
        &["the command that tells when the program is ready cannot be run", "/bin/sh", "No such file"],
    )?;
    refused(&answer, 127, &["hint: it is looked for inside the sandbox", "--ready-file"])?;
    ensure!(answer.took < Duration::from_secs(10), "{answer}");
    Ok(())
}

fn dies(node: &Node) -> Result<()> {
    let script = "touch /tmp/ready; sleep 0.03; echo 'no such database'; exit 3";
    let answer =
        node.pando(&["template", "build", "dying", "--ready-file", "/tmp/ready", "--", "/bin/sh", "-c", script])?;
    refused(&answer, 6, &["the program exited with status 3 before it was ready", "no such database"])
}

/// Takes memory until it is killed, once `/tmp/go` is there.
const HUNGRY: &str = "import os, time
open('/tmp/ready', 'w').close()
while not os.path.exists('/tmp/go'): time.sleep(0.01)
x = bytearray(512 << 20)
for n in range(0, len(x), 4096): x[n] = 1
time.sleep(1000)";

fn memory(node: &Node) -> Result<()> {
    let limit = ["--memory", "128M", "--ready-file", "/tmp/ready", "--", "/usr/bin/python3", "-c"];
    let build = |name: &str, script: &str| node.pando(&[&["template", "build", name][..], &limit, &[script]].concat());
    // Of a build.
    let answer = build(
        "greedy",
        &HUNGRY.replace("while not", "while False and not").replace("open(", "(lambda *a: open(os.devnull))("),
    )?;
    refused(
        &answer,
        6,
        &["was killed by signal 9 before it was ready", "memory limit of 128 MiB (peak 12", "--memory"],
    )?;
    // Of a command, and of what a command has started.
    ensure!(build("hungry", HUNGRY)?.code == 0, "the template");
    let sandboxes = node.run("hungry", 2)?;
    let (one, other) = (sandboxes[0].id.as_str(), sandboxes[1].id.as_str());
    // In v1 a command is bound to the limits some time after its start.
    std::thread::sleep(Duration::from_secs(1));
    let take = "import time; time.sleep(1); x = bytearray(512 << 20)\nfor n in range(0, len(x), 4096): x[n] = 1";
    let answer = node.pando(&["exec", one, "--", "/usr/bin/python3", "-c", take])?;
    refused(&answer, 137, &["the kernel killed the command at the sandbox's memory limit of 128 MiB (peak 12"])?;
    let answer = node.pando(&["exec", one, "--", "/bin/sh", "-c", &format!("/usr/bin/python3 -c '{take}'; exit 4")])?;
    refused(&answer, 4, &["while the command ran the kernel killed a process of the sandbox", "128 MiB"])?;
    ensure!(node.ok(&["inspect", one])?.contains("2 processes were killed at it"), "{}", node.ok(&["inspect", one])?);
    // Of the program.
    node.shell(other, "touch /tmp/go")?;
    let deadline = Instant::now() + Duration::from_secs(10);
    let reason = loop {
        if let Some(reason) = node.inspect(other)?.sandbox.reason {
            break reason;
        }
        ensure!(Instant::now() < deadline, "nobody says why it ended: {}", node.ok(&["inspect", other])?);
        std::thread::sleep(Duration::from_millis(20));
    };
    ensure!(reason.contains("memory limit of 128 MiB (peak 12"), "{reason}");
    let shown = node.ok(&["inspect", other])?;
    ensure!(shown.contains(&format!("because    {reason}")) && shown.contains("1 process was killed at it"), "{shown}");
    let listed = node.ok(&["ls"])?;
    ensure!(listed.contains("BECAUSE") && listed.contains(&reason), "{listed}");
    refused(&node.pando(&["logs", other])?, 0, &[&reason])?;
    ensure!(node.log()?.contains(&reason), "the node's log");
    node.ok(&["kill", "--all"]).map(drop)
}

/// What the README shows, without what it needs a second node or a volume for.
fn quiet(node: &Node) -> Result<()> {
    node.build_geo("geo", &["--nidx", "2"])?;
    let ids: Vec<String> = node.run("geo", 3)?.into_iter().map(|sandbox| sandbox.id.to_string()).collect();
    let id = ids[0].as_str();
    node.shell(id, "curl -s http://127.0.0.1:8080/health || true")?;
    node.ask(id, "GET /state")?;
    node.ok(&["fork", id, "-n", "2"])?;
    node.ok(&["ls"])?;
    node.ok(&["checkpoint", id, "--name", "warm"])?;
    node.run("warm", 2)?;
    node.ok(&["pause", id])?;
    node.ok(&["resume", id])?;
    node.ask(id, "GET /verify")?;
    node.ok(&["logs", id])?;
    node.ok(&["kill", "--all"])?;
    node.ok(&["template", "rm", "warm"])?;
    node.ok(&["checkpoint", "rm", "warm"])?;
    let log = node.log()?;
    let loud: Vec<&str> = log.lines().filter(|line| line.contains(" WARN ") || line.contains("ERROR")).collect();
    ensure!(loud.is_empty(), "{loud:?}");
    Ok(())
}

fn variables(node: &Node) -> Result<()> {
    let state = node.dir().join("served");
    std::fs::create_dir(&state)?;
    let command = ["env", "--state", &state.display().to_string()];
    refused(&node.pando(&command)?, 3, &["no server runs with the state directory", "pando serve --state"])?;
    let server = TcpListener::bind("127.0.0.1:0")?;
    let left = format!("# pando serve listens on {}\nE2B_API_KEY=it's\nE2B_DOMAIN=a.b\n", server.local_addr()?);
    std::fs::write(state.join("env"), left)?;
    let shell = node.ok(&command)?;
    ensure!(shell == "export E2B_API_KEY='it'\\''s'\nexport E2B_DOMAIN='a.b'\n", "{shell}");
    let lines = node.ok(&[&command[..], &["--lines"]].concat())?;
    ensure!(lines == "E2B_API_KEY=it's\nE2B_DOMAIN=a.b\n", "{lines}");
    drop(server);
    refused(&node.pando(&command)?, 3, &["does not answer", "pando serve --state"])
}

fn ipv6(node: &Node) -> Result<()> {
    let program = "import socket\nserver = socket.create_server((\"::1\", 8080), family=socket.AF_INET6)\n\
                   while True:\n    client, _ = server.accept()\n    client.sendall(b\"six\")\n    client.close()";
    node.ok(&["template", "build", "six", "--", "/usr/bin/python3", "-c", program])?;
    let id = node.run("six", 1)?[0].id.to_string();
    let said = node.ok(&["connect", &id, "8080"])?;
    ensure!(said == "six", "{said:?}");
    let closed = node.pando(&["connect", &id, "8081"])?;
    refused(&closed, 1, &["nothing listens on port 8081"])?;
    node.ok(&["kill", "--all"]).map(drop)
}
