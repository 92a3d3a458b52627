//! What programs print and read: logs, streams and terminals of exec.

use std::{
    fs::File,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use base::limits::LOG_BYTES_MAX;
use rustix::fs::{FlockOperation, flock};
use testkit::{engine::wait_until, node::Node, runner::Case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("output::the_log_of_a_copy_is_its_own_from_its_first_instant", || case(logs)),
        Case::new("output::a_log_is_bounded_and_keeps_the_newest", || case(bounded)),
        Case::new("output::a_log_that_is_being_cut_is_not_written_to", || case(locked)),
        Case::new("output::programs_open_their_streams_by_name_and_lose_nothing", || case(reopened)),
        Case::new("output::it_is_carried_while_no_node_is_there", without_node),
        Case::new("output::exec_carries_streams_and_terminals", || case(streams)),
        Case::new("output::nothing_that_a_program_chose_commands_a_terminal", || case(hostile)),
        Case::new("output::a_reader_that_has_gone_is_no_failure_and_a_full_disk_is_one", || case(unread)),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start()?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

fn build_script(node: &Node, name: &str, script: &str) -> Result<()> {
    let build = ["template", "build", name, "--ready-file", "/tmp/ready", "--", "/usr/bin/python3", "-u", "-c", script];
    node.ok(&build).map(drop)
}

const COUNTER: &str = "
import time
print('before')
open('/tmp/ready', 'w').close()
n = 0
while True:
    # In one write: a copy may begin between two.
    print(f'{n}\\n', end='')
    n += 1
    time.sleep(0.001)
";

fn logs(node: &Node) -> Result<()> {
    build_script(node, "counter", COUNTER)?;
    let id = node.run("counter", 2)?[0].id.to_string();
    std::thread::sleep(Duration::from_millis(200));
    let fork = node.json(&["fork", &id, "--json"])?;
    let forked = fork["sandboxes"][0]["id"].as_str().context("no id")?.to_owned();
    std::thread::sleep(Duration::from_millis(200));
    for id in [&id, &forked] {
        let log = node.ok(&["logs", id])?;
        let numbers: Vec<u64> = log.lines().map(str::parse).collect::<Result<_, _>>().context(log.clone())?;
        ensure!(numbers.len() > 20, "{id} printed only {}", numbers.len());
        ensure!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "the log of {id} has a gap: {log}");
    }
    // Following ends with the program.
    let follower = node.begin(&["logs", "-f", &forked])?;
    follower.first_line()?;
    node.shell(&forked, "kill -KILL 2")?;
    let answer = follower.end()?;
    ensure!(answer.code == 0 && answer.took < Duration::from_secs(10), "{}", answer.took.as_secs_f32());
    Ok(())
}

/// `>` opens to cut, which is none for a stream; each line is one write.
const NAMED: &str = "echo a >/dev/stderr; echo b >/dev/stderr; echo c >/dev/stdout; echo d >>/dev/stdout; echo e";

fn reopened(node: &Node) -> Result<()> {
    let answer = node.pando(&["template", "build", "failing", "--", "/bin/sh", "-c", &format!("{NAMED}; exit 3")])?;
    ensure!(answer.code == 6, "{answer}");
    ensure!(answer.stderr.contains("    a\n    b\n    c\n    d\n    e\n"), "of a build: {answer}");
    node.ok(&["template", "build", "named", "--ready", "sleep 0.1", "--", "/usr/bin/python3", "-c", NAMED_IN_PYTHON])?;
    let id = node.run("named", 1)?[0].id.to_string();
    node.shell(&id, "touch /tmp/go")?;
    let whole = "a\nb\nc\nd\ne\n";
    let deadline = Instant::now() + Duration::from_secs(5);
    while node.ok(&["logs", &id])? != whole {
        ensure!(Instant::now() < deadline, "of a copy: {:?}", node.ok(&["logs", &id])?);
        std::thread::sleep(Duration::from_millis(10));
    }
    // A fork has streams of its own, and the first one keeps what it has.
    let fork = node.json(&["fork", &id, "--json"])?;
    let forked = fork["sandboxes"][0]["id"].as_str().context("no id")?.to_owned();
    node.shell(&forked, "touch /tmp/again")?;
    let deadline = Instant::now() + Duration::from_secs(5);
    while node.ok(&["logs", &forked])? != whole {
        ensure!(Instant::now() < deadline, "of a fork: {:?}", node.ok(&["logs", &forked])?);
        std::thread::sleep(Duration::from_millis(10));
    }
    ensure!(node.ok(&["logs", &id])? == whole, "after the fork: {:?}", node.ok(&["logs", &id])?);
    // Paused and resumed: what comes later is behind what was there.
    node.ok(&["pause", &id])?;
    ensure!(node.ok(&["logs", &id])? == whole, "paused: {:?}", node.ok(&["logs", &id])?);
    node.ok(&["resume", &id])?;
    node.shell(&id, "touch /tmp/again")?;
    let twice = whole.repeat(2);
    let deadline = Instant::now() + Duration::from_secs(5);
    while node.ok(&["logs", &id])? != twice {
        ensure!(Instant::now() < deadline, "resumed: {:?}", node.ok(&["logs", &id])?);
        std::thread::sleep(Duration::from_millis(10));
    }
    // A command has streams of its own by the same names.
    let answer = node.pando(&["exec", &id, "--", "/bin/sh", "-c", NAMED])?;
    ensure!(answer.stdout == "c\nd\ne\n" && answer.stderr == "a\nb\n", "of a command: {answer}");
    node.ok(&["kill", "--all"]).map(drop)
}

/// One process: what a shell does with `>` and `>>`, when it is told to.
const NAMED_IN_PYTHON: &str = "
import os, time
def say(path, flags, text):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o666)
    os.write(fd, text)
    os.close(fd)
for told in ['/tmp/go', '/tmp/again']:
    while not os.path.exists(told):
        time.sleep(0.01)
    say('/dev/stderr', os.O_TRUNC, b'a\\n')
    say('/dev/stderr', os.O_TRUNC, b'b\\n')
    say('/dev/stdout', os.O_TRUNC, b'c\\n')
    say('/dev/stdout', os.O_APPEND, b'd\\n')
    os.write(1, b'e\\n')
time.sleep(1000)
";

/// More than a pipe holds.
fn without_node() -> Result<()> {
    let mut node = Node::start()?;
    build_script(&node, "flood", FLOOD)?;
    let id = node.run("flood", 1)?[0].id.to_string();
    let file = std::path::PathBuf::from(node.inspect(&id)?.directory).join("output.log");
    node.shell(&id, "(sleep 0.5; touch /tmp/go) >/dev/null 2>&1 &")?;
    node.kill_server()?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while file.metadata()?.len() < 48_000_000 {
        ensure!(Instant::now() < deadline, "{} bytes without a node", file.metadata()?.len());
        std::thread::sleep(Duration::from_millis(20));
    }
    node.start_server()?;
    ensure!(node.ok(&["logs", &id])?.ends_with("the last line\n"), "the end of it");
    node.ok(&["kill", &id])?;
    node.finish()
}

const FLOOD: &str = "
import os, time
open('/tmp/ready', 'w').close()
while not os.path.exists('/tmp/go'):
    time.sleep(0.01)
line = 'x' * 999
for n in range(48000):
    print(line)
print('the last line')
time.sleep(1000)
";

fn bounded(node: &Node) -> Result<()> {
    build_script(node, "flood", FLOOD)?;
    let id = node.run("flood", 1)?[0].id.to_string();
    node.shell(&id, "touch /tmp/go")?;
    let file = std::path::PathBuf::from(node.inspect(&id)?.directory).join("output.log");
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let bytes = std::os::unix::fs::MetadataExt::blocks(&file.metadata()?) * 512;
        let log = node.ok(&["logs", &id])?;
        if log.ends_with("the last line\n") && bytes <= LOG_BYTES_MAX {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{bytes} bytes; the end: {:?}", log.get(log.len().saturating_sub(40)..));
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn locked(node: &Node) -> Result<()> {
    build_script(node, "counter", COUNTER)?;
    let id = node.run("counter", 1)?[0].id.to_string();
    let path = std::path::PathBuf::from(node.inspect(&id)?.directory).join("output.log");
    let length = || path.metadata().map_or(0, |found| found.len());
    wait_until("there is output", Duration::from_secs(5), || length() > 0)?;
    let file = File::options().write(true).open(&path)?;
    flock(&file, FlockOperation::LockExclusive)?;
    let before = length();
    std::thread::sleep(Duration::from_millis(200));
    ensure!(length() == before, "pid 1 writes to a file that somebody may be cutting");
    file.set_len(0)?;
    flock(&file, FlockOperation::Unlock)?;
    wait_until("there is output again", Duration::from_secs(5), || length() > 0)?;
    let text = std::fs::read_to_string(&path)?;
    ensure!(!text.contains('\0'), "{:?}", text.get(..40));
    Ok(())
}

fn unread(node: &Node) -> Result<()> {
    node.build_geo("geo", &["--nidx", "2"])?;
    let id = node.run("geo", 1)?[0].id.to_string();
    for command in [&["ls"][..], &["inspect", &id], &["exec", &id, "--", "seq", "100000"], &["create", "geo"]] {
        let ended = |stdout: Stdio| node.command_of(command).stdout(stdout).output();
        let full = ended(File::options().write(true).open("/dev/full")?.into())?;
        let said = String::from_utf8_lossy(&full.stderr).into_owned();
        ensure!(
            full.status.code() == Some(1) && said.contains("cannot write to standard output"),
            "{command:?}: {said}"
        );
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let gone = ended(writer.into())?;
        let said = String::from_utf8_lossy(&gone.stderr).into_owned();
        // A command ends as it does in a pipe whose reader has gone.
        let right = if command[0] == "exec" { 141 } else { 0 };
        ensure!(gone.status.code() == Some(right) && said.is_empty(), "{command:?}: {:?} {said}", gone.status);
    }
    node.ok(&["kill", "--all"]).map(drop)
}

/// Sets the title, in both ways that terminals know, and turns the direction of writing.
const ORDERS: &str = "\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}";

const HOSTILE: &str = "
import ctypes, sys, time
orders = sys.argv[1]
print(orders, flush=True)
if sys.argv[2] == 'fail': sys.exit(3)
# 15 bytes of a name.
ctypes.CDLL(None).prctl(15, (chr(27) + '[7m' + chr(0x9b) + '1m').encode())
open('/tmp/ready', 'w').close()
time.sleep(1000)
";

fn hostile(node: &Node) -> Result<()> {
    let harmless = |text: &str| {
        text.chars().all(|c| (c == '\n' || c == '\t' || !c.is_control()) && !('\u{202a}'..='\u{202e}').contains(&c))
    };
    let build = |name, what| {
        let program = ["--ready-file", "/tmp/ready", "--", "/usr/bin/python3", "-c", HOSTILE, ORDERS, what];
        node.pando(&[&["template", "build", name][..], &program].concat())
    };
    let failed = build("failing", "fail")?;
    ensure!(failed.code == 6 && failed.stderr.contains("\\u{1b}]0;owned\\u{7}\\u{9b}31m"), "{failed}");
    let built = build("hostile", "stay")?;
    ensure!(built.code == 0, "{built}");
    let id = node.run("hostile", 1)?[0].id.to_string();
    let inspected = node.pando(&["inspect", &id])?;
    ensure!(inspected.stdout.contains("\\u{1b}[7m\\u{9b}1m"), "{inspected}");
    let document = node.pando(&["inspect", &id, "--json"])?;
    let detail: serde_json::Value = serde_json::from_str(&document.stdout)?;
    let name = detail["processes"]
        .as_array()
        .and_then(|all| all.iter().find_map(|one| one["name"].as_str().filter(|n| n.contains('['))));
    ensure!(name == Some("\u{1b}[7m\u{9b}1m"), "{document}");
    let missing = node.pando(&["exec", &id, "--", &format!("/bin/{ORDERS}")])?;
    ensure!(missing.code == 127, "{missing}");
    let template = node.pando(&["template", "inspect", "hostile"])?;
    for (what, answer) in [
        ("build", failed),
        ("built", built),
        ("inspect", inspected),
        ("json", document),
        ("exec", missing),
        ("template", template),
    ] {
        ensure!(
            harmless(&answer.stdout) && harmless(&answer.stderr),
            "{what}: {:?} {:?}",
            answer.stdout,
            answer.stderr
        );
    }
    // What programs print is passed on as it is, where it is asked for.
    ensure!(
        node.ok(&["logs", &id])?.is_empty() && node.ok(&["exec", &id, "--", "printf", "%s", ORDERS])? == ORDERS,
        "exec"
    );
    node.ok(&["kill", &id]).map(drop)
}

fn streams(node: &Node) -> Result<()> {
    node.build_geo("geo", &["--nidx", "2"])?;
    let id = node.run("geo", 1)?[0].id.to_string();
    let mut input = vec![0; 4 << 20];
    base::id::fill_random(&mut input);
    let input = base::id::hex(&input).into_bytes();
    let answer = node.pando_with_input(&["exec", &id, "--", "/bin/cat"], &input)?;
    ensure!(
        answer.code == 0 && answer.stdout.as_bytes() == input,
        "8 MiB through cat: {} {}",
        answer.code,
        answer.stdout.len()
    );
    let terminal =
        node.ok(&["exec", "-t", &id, "--", "/bin/sh", "-c", "tty; test -t 1 && echo $TERM; echo error >&2"])?;
    ensure!(terminal == "/dev/pts/0\r\nxterm-256color\r\nerror\r\n", "{terminal:?}");
    // A command that leaves a child with its streams ends all the same.
    let began = Instant::now();
    node.shell(&id, "sleep 1000 & echo started")?;
    ensure!(began.elapsed() < Duration::from_secs(10), "a background process keeps exec from ending");
    node.ok(&["kill", &id]).map(drop)
}
