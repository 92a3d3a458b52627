//! Commands go along into forks, checkpoints and pauses.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::Value;
use sys::ptrace;
use testkit::{
    node::{Answer, Node, Running, Setting},
    runner::Case,
};

use super::{
    files_only::{fork, with_idle},
    pager::zygote,
    shared::{Shared, with_geo},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("along::commands_go_on_in_forks_and_forks_of_these", || with_geo(forked)),
        Case::new("along::commands_of_a_sandbox_without_a_program_go_on_in_forks", || with_idle(forked_alone)),
        Case::new("along::commands_go_on_after_a_pause_on_any_node", || with_geo(paused)),
        Case::new("along::commands_of_a_sandbox_without_a_program_go_on_after_a_pause", || with_idle(paused_alone)),
        Case::new("along::a_checkpoint_has_commands_on_any_node", || with_idle(checkpoint)),
        Case::new("along::what_commands_left_behind_goes_on", || with_idle(left_behind)),
        Case::new("along::terminals_that_programs_have_made_go_on", || with_idle(own_terminals)),
        Case::new("along::bytes_at_terminals_are_waited_for", || with_idle(busy_terminals)),
        Case::new("along::the_time_limit_of_a_command_goes_on_after_a_pause", || with_idle(time_limit)),
        Case::new("along::the_terminal_of_a_command_that_has_ended_is_refused", || with_idle(old_terminal)),
        Case::new("along::a_client_that_follows_a_command_waits_out_a_pause", || with_idle(followed)),
        Case::new("along::a_terminal_waits_out_a_pause", || with_idle(followed_terminal)),
        Case::new("along::commands_with_high_descriptors_go_on", || with_geo(high_descriptor)),
        Case::new("along::too_many_commands_are_refused_by_number", || with_idle(too_many)),
        Case::new("along::copies_have_commands_also_when_the_helper_of_a_start_ends_late", late_helper),
    ]
}

/// Counts, with a number of its own in memory, until a file says that it is to end with status 7.
const COUNTER: &str = "own=$(cat /proc/sys/kernel/random/uuid); echo $own; n=0
while [ ! -e /tmp/stop ]; do n=$((n+1)); echo $n > /tmp/n.new; mv /tmp/n.new /tmp/n; sleep 0.01; done
echo ended $own; exit 7";

/// A counter, a program that waits for input, and a shell with a job on a terminal.
fn begin(node: &Node, id: &str) -> Result<()> {
    node.shell(id, "echo 'V=kept; sleep 1000000 & echo begun' > /tmp/rc")?;
    node.ok(&["exec", "-d", "--tag", "counter", id, "--", "/bin/sh", "-c", COUNTER])?;
    node.ok(&["exec", "-d", "-i", "--tag", "cat", id, "--", "/bin/sh", "-c", "cat; exit 3"])?;
    node.ok(&["exec", "-d", "-t", "--tag", "shell", id, "--", "/bin/bash", "--init-file", "/tmp/rc", "-i"])?;
    within("the commands to begin", || {
        let shell = commands(node, id)?.into_iter().find(|command| command["tag"] == "shell");
        Ok(count(node, id).is_ok() && shell.is_some_and(|shell| has_job(node, id, &shell)))
    })
}

fn has_job(node: &Node, id: &str, shell: &Value) -> bool {
    let children = format!("cat /proc/{0}/task/{0}/children", shell["pid"]);
    node.shell(id, &children).is_ok_and(|children| !children.trim().is_empty())
}

fn within(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done()? {
        ensure!(Instant::now() < deadline, "waited too long for {what}");
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Those that run.
fn commands(node: &Node, id: &str) -> Result<Vec<Value>> {
    let (status, body) = node.api(&format!("GET /v1/sandboxes/{id}/commands"), b"")?;
    ensure!(status == 200, "{status} {body}");
    let all: Vec<Value> = serde_json::from_str(&body)?;
    Ok(all.into_iter().filter(|command| command["status"].is_null()).collect())
}

fn count(node: &Node, id: &str) -> Result<u64> {
    Ok(node.shell(id, "cat /tmp/n")?.trim().parse()?)
}

/// All of them run, with the pids and tags of before.
fn expect_running(node: &Node, id: &str, before: &[Value]) -> Result<()> {
    let named = |commands: &[Value]| -> Vec<(Value, Value)> {
        commands.iter().map(|command| (command["pid"].clone(), command["tag"].clone())).collect()
    };
    let now = commands(node, id)?;
    ensure!(named(&now) == named(before), "{id}: {now:?}, but before {before:?}");
    let first = count(node, id)?;
    within("the counter", || Ok(count(node, id)? > first))
}

fn type_in(node: &Node, id: &str, tag: &str, option: &str, text: &str) -> Result<Answer> {
    node.pando_with_input(&["attach", option, id, tag], text.as_bytes())
}

/// Ends them, each as it would have ended without all this.
fn expect_ends(node: &Node, id: &str) -> Result<String> {
    let shell = type_in(node, id, "shell", "-t", "echo $V-$(jobs -p | wc -l)-$(tty | cut -c-9); exit 5\r")?;
    let says = ["begun", "kept-1-/dev/pts/"];
    ensure!(shell.code == 5 && says.iter().all(|part| shell.stdout.contains(part)), "{id}: the shell: {shell}");
    let cat = type_in(node, id, "cat", "-i", "to you\n")?;
    ensure!(cat.code == 3 && cat.stdout == "to you\n", "{id}: {cat}");
    node.shell(id, "touch /tmp/stop")?;
    let counter = node.pando(&["attach", id, "counter"])?;
    let own = counter.stdout.lines().next().unwrap_or_default().to_owned();
    ensure!(counter.code == 7 && counter.stdout == format!("{own}\nended {own}\n"), "{id}: the counter: {counter}");
    node.shell(id, "rm /tmp/stop")?;
    Ok(own)
}

fn forked(_: &Shared, node: &mut Node) -> Result<()> {
    fork_of(node, "geo", |node, id| {
        ensure!(node.ask(id, "GET /verify")?["intact"] == true, "{id} is not intact");
        Ok(())
    })
}

fn forked_alone(_: &Shared, node: &mut Node) -> Result<()> {
    fork_of(node, "idle", |_, _| Ok(()))
}

fn fork_of(node: &Node, template: &str, check: fn(&Node, &str) -> Result<()>) -> Result<()> {
    let id = node.run(template, 1)?[0].id.to_string();
    begin(node, &id)?;
    let before = commands(node, &id)?;
    let mut all = fork(node, &["-n", "2", &id])?;
    all.extend(fork(node, &[&all[0]])?);
    let (status, body) =
        node.api(&format!("POST /v1/sandboxes/{}/commands/tag:cat/signal", all[0]), br#"{"signal":"kill"}"#)?;
    ensure!(status < 300, "{status} {body}");
    within("an end", || Ok(commands(node, &all[0])?.len() == 2))?;
    for copy in [&all[1], &all[2], &id] {
        expect_running(node, copy, &before)?;
        check(node, copy)?;
    }
    let owns = [&all[1], &all[2], &id].map(|copy| expect_ends(node, copy)).into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(owns.iter().all(|own| *own == owns[0]), "{owns:?}");
    for copy in [&all[1], &all[2], &id] {
        ensure!(commands(node, copy)?.is_empty(), "{copy}: a command is left");
        check(node, copy)?;
    }
    Ok(())
}

fn paused(shared: &Shared, node: &mut Node) -> Result<()> {
    pause_of(shared, node, "geo")
}

fn paused_alone(shared: &Shared, node: &mut Node) -> Result<()> {
    pause_of(shared, node, "idle")
}

fn pause_of(shared: &Shared, node: &mut Node, template: &str) -> Result<()> {
    let id = node.run(template, 1)?[0].id.to_string();
    begin(node, &id)?;
    let before = commands(node, &id)?;
    let other = shared.node()?;
    for (from, to) in [(&*node, &*node), (&*node, &other), (&other, &*node)] {
        from.ok(&["pause", &id])?;
        let copy = fork(to, &[&id])?.remove(0);
        to.ok(&["resume", &id])?;
        expect_running(to, &id, &before)?;
        expect_running(to, &copy, &before)?;
        expect_ends(to, &copy)?;
        to.ok(&["kill", &copy])?;
    }
    other.finish()?;
    node.ok(&["pause", &id])?;
    node.kill_server()?;
    node.start_server()?;
    node.ok(&["resume", &id])?;
    expect_running(node, &id, &before)?;
    expect_ends(node, &id)?;
    node.ok(&["kill", &id]).map(drop)
}

fn checkpoint(shared: &Shared, node: &mut Node) -> Result<()> {
    let id = node.run("idle", 1)?[0].id.to_string();
    begin(node, &id)?;
    let before = commands(node, &id)?;
    node.ok(&["checkpoint", &id, "--name", "busy"])?;
    let other = shared.node()?;
    for at in [&*node, &other] {
        for copy in at.run("busy", 3)? {
            let copy = copy.id.to_string();
            expect_running(at, &copy, &before)?;
            expect_ends(at, &copy)?;
            at.ok(&["kill", &copy])?;
        }
        at.ok(&["template", "rm", "busy"])?;
    }
    other.finish()?;
    expect_running(node, &id, &before)?;
    expect_ends(node, &id)?;
    node.ok(&["checkpoint", "rm", "busy"]).map(drop)
}

fn left_behind(_: &Shared, node: &mut Node) -> Result<()> {
    let id = node.run("idle", 1)?[0].id.to_string();
    // In a session of its own, and with the streams of a command that has ended.
    node.ok(&["exec", "-d", &id, "--", "/bin/sh", "-c", &format!("setsid sh -c '{COUNTER}' & exit 0")])?;
    within("the counter", || Ok(count(node, &id).is_ok() && commands(node, &id)?.is_empty()))?;
    let counts = |id: &str| -> Result<()> {
        ensure!(commands(node, id)?.is_empty(), "{id}: a command runs");
        let first = count(node, id)?;
        within("the counter", || Ok(count(node, id)? > first))
    };
    let copy = fork(node, &[&id])?.remove(0);
    counts(&copy)?;
    counts(&id)?;
    node.ok(&["pause", &id])?;
    node.ok(&["resume", &id])?;
    counts(&id)?;
    let next = fork(node, &[&id])?.remove(0);
    counts(&next)
}

/// The terminal of the shell that began it becomes its own when that has ended.
const OLD_TERMINAL: &str = "import os, sys, time
while not os.path.exists('/tmp/go'): time.sleep(0.02)
os.open(sys.argv[1], os.O_RDWR)
os.open('/dev/tty', os.O_RDWR)
open('/tmp/taken', 'w').close()
time.sleep(1000000)";

fn old_terminal(_: &Shared, node: &mut Node) -> Result<()> {
    let id = node.run("idle", 1)?[0].id.to_string();
    let shell = "setsid /usr/bin/python3 -c \"$0\" \"$(tty)\" < /dev/null > /dev/null 2>&1 & sleep 0.3";
    node.ok(&["exec", "-d", "-t", &id, "--", "/bin/bash", "-c", shell, OLD_TERMINAL])?;
    within("the shell to end", || Ok(commands(node, &id)?.is_empty()))?;
    node.shell(&id, "touch /tmp/go")?;
    within("the terminal", || Ok(node.shell(&id, "test -e /tmp/taken").is_ok()))?;
    for verb in ["fork", "pause"] {
        let answer = node.pando(&[verb, &id])?;
        ensure!(answer.code == 5 && answer.stderr.contains("controlling terminal"), "{answer}");
    }
    Ok(())
}

/// Two shells on terminals that the program has made. When it is told so, it asks them what they know, and ends them.
const MULTIPLEXER: &str = r#"
import fcntl, os, pty, signal, struct, termios, time
shells = []
for n in (1, 2):
    pid, master = pty.fork()
    if pid == 0:
        os.execv("/bin/bash", ["bash", "--norc", "--noprofile"])
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 30 + n, 70 + n, 0, 0))
    shells.append((pid, master))
def ask(master, text, until):
    os.write(master, text.encode() + b"\n")
    seen = b""
    while until not in seen:
        seen += os.read(master, 4096)
    return seen.decode()
for n, (pid, master) in enumerate(shells):
    ask(master, f"PS1=; V=kept{n}; sleep 1000000 & echo begun-$V", b"\nbegun-")
time.sleep(0.3)
for _, master in shells:
    os.set_blocking(master, False)
    try:
        while os.read(master, 4096): pass
    except BlockingIOError: pass
    os.set_blocking(master, True)
print("begun", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.02)
for pid, master in shells:
    answer = ask(master, "echo =$V-$(jobs -p | wc -l)-$(tty | tr -d 0-9)-$(stty size)=; cat < /dev/null > $(tty)", b"=\r\n")
    print([line for line in answer.splitlines() if line.startswith("=")][-1], flush=True)
    os.write(master, b"exit 6\n")
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"#;

fn own_terminals(shared: &Shared, node: &mut Node) -> Result<()> {
    let id = node.run("idle", 1)?[0].id.to_string();
    // Another one beside them, with the lowest number.
    node.ok(&["exec", "-d", "-t", &id, "--", "/bin/cat"])?;
    node.ok(&["exec", "-d", "--tag", "terminals", &id, "--", "/usr/bin/python3", "-c", MULTIPLEXER])?;
    let following = node.begin(&["attach", &id, "terminals"])?;
    ensure!(following.first_line()? == "begun", "it did not begin");
    following.signal(rustix::process::Signal::INT)?;
    let ends = |node: &Node, id: &str| -> Result<()> {
        node.shell(id, "touch /tmp/go")?;
        let answer = node.pando(&["attach", id, "terminals"])?;
        let expected = "begun\n=kept0-1-/dev/pts/-31 71=\n6\n=kept1-1-/dev/pts/-32 72=\n6\n";
        ensure!(answer.code == 0 && answer.stdout == expected, "{id}: {answer}");
        Ok(())
    };
    let copy = fork(node, &[&id])?.remove(0);
    let next = fork(node, &[&copy])?.remove(0);
    ends(node, &copy)?;
    ends(node, &next)?;
    node.ok(&["checkpoint", &id, "--name", "terminals"])?;
    let other = shared.node()?;
    node.ok(&["pause", &id])?;
    other.ok(&["resume", &id])?;
    ends(&other, &id)?;
    for started in other.run("terminals", 2)? {
        ends(&other, started.id.as_str())?;
    }
    other.finish()?;
    node.ok(&["checkpoint", "rm", "terminals"]).map(drop)
}

/// Bytes wait at its terminal, which it reads some time after it is told so.
const BUSY: &str = r#"
import os, pty, time
master, slave = pty.openpty()
os.write(slave, b"unread")
open("/tmp/begun", "w").close()
while not os.path.exists("/tmp/read"): time.sleep(0.02)
time.sleep(0.3)
os.read(master, 100)
time.sleep(1000000)
"#;

fn busy_terminals(_: &Shared, node: &mut Node) -> Result<()> {
    let id = node.run("idle", 1)?[0].id.to_string();
    node.ok(&["exec", "-d", "--tag", "busy", &id, "--", "/usr/bin/python3", "-c", BUSY])?;
    within("bytes at a terminal", || Ok(node.shell(&id, "test -e /tmp/begun").is_ok()))?;
    let answer = node.pando(&["fork", &id])?;
    let reason = "bytes that no program has read wait at the terminal";
    ensure!(answer.code == 5 && answer.stderr.contains(reason), "{answer}");
    node.shell(&id, "touch /tmp/read")?;
    // In time: the fork waits for it.
    fork(node, &[&id]).map(drop)
}

fn time_limit(_: &Shared, node: &mut Node) -> Result<()> {
    let id = node.run("idle", 1)?[0].id.to_string();
    node.ok(&["exec", "-d", "--timeout", "3s", "--tag", "short", &id, "--", "/bin/sleep", "1000000"])?;
    node.ok(&["pause", &id])?;
    sleep(Duration::from_secs(3));
    node.ok(&["resume", &id])?;
    ensure!(commands(node, &id)?.len() == 1, "the time of the pause counts");
    let answer = node.pando(&["attach", &id, "short"])?;
    ensure!(answer.code == 124, "{answer}");
    Ok(())
}

fn followed(_: &Shared, node: &mut Node) -> Result<()> {
    let id = node.run("idle", 1)?[0].id.to_string();
    node.ok(&["exec", "-d", "--tag", "counter", &id, "--", "/bin/sh", "-c", COUNTER])?;
    let (own, shown) = over_a_pause(node, &id, node.begin(&["attach", &id, "counter"])?)?;
    // The output that is kept is shown again.
    ensure!(shown == format!("{own}\n{own}\nended {own}\n"), "{shown}");
    // Of files alone nothing goes on.
    node.ok(&["exec", "-d", "--tag", "sleep", &id, "--", "/bin/sh", "-c", "echo begun; sleep 1000000"])?;
    let following = node.begin(&["attach", &id, "sleep"])?;
    following.first_line()?;
    node.ok(&["pause", "--files-only", &id])?;
    let answer = following.end()?;
    ensure!(answer.code == 137 && !answer.stderr.contains("followed again"), "{answer}");
    Ok(())
}

fn followed_terminal(_: &Shared, node: &mut Node) -> Result<()> {
    let id = node.run("idle", 1)?[0].id.to_string();
    let following = node.begin(&["exec", "-t", &id, "--", "/bin/sh", "-c", COUNTER])?;
    let (own, shown) = over_a_pause(node, &id, following)?;
    ensure!(shown.contains(&format!("ended {}", own.trim())), "{shown}");
    Ok(())
}

/// Pauses the sandbox while the [`COUNTER`] in it is followed, and ends that; gives its first line and all that was shown.
fn over_a_pause(node: &Node, id: &str, following: Running) -> Result<(String, String)> {
    let own = following.first_line()?;
    node.ok(&["pause", id])?;
    sleep(Duration::from_millis(300));
    node.ok(&["resume", id])?;
    node.shell(id, "touch /tmp/stop")?;
    let answer = following.end()?;
    ensure!(answer.code == 7 && answer.stderr.contains("the sandbox was paused"), "{answer}");
    Ok((own, answer.stdout))
}

/// Nothing that is handed down lies between its descriptors and those of the start.
fn high_descriptor(_: &Shared, node: &mut Node) -> Result<()> {
    let id = node.run("geo", 1)?[0].id.to_string();
    let command = "exec 255</dev/null; echo begun; read line";
    node.ok(&["exec", "-d", "-i", "--tag", "high", &id, "--", "/bin/bash", "-c", command])?;
    within("the descriptor", || {
        let found = node.shell(&id, "ls /proc/[0-9]*/fd/255 2>/dev/null | wc -l")?;
        Ok(found.trim() != "0")
    })?;
    let copy = fork(node, &[&id])?.remove(0);
    ensure!(commands(node, &copy)?.len() == 1, "the command of the copy");
    Ok(())
}

fn too_many(_: &Shared, node: &mut Node) -> Result<()> {
    let id = node.run("idle", 1)?[0].id.to_string();
    for _ in 0..80 {
        node.ok(&["exec", "-d", &id, "--", "/bin/sleep", "1000000"])?;
    }
    let copy = fork(node, &[&id])?.remove(0);
    ensure!(commands(node, &copy)?.len() == 80, "commands of the copy");
    node.ok(&["exec", "-d", &id, "--", "/bin/sleep", "1000000"])?;
    for verb in ["fork", "pause"] {
        let answer = node.pando(&[verb, &id])?;
        ensure!(answer.code == 5 && answer.stderr.contains("81 commands run in it, and 80 can go along"), "{answer}");
    }
    let copy = fork(node, &["--files-only", &id])?.remove(0);
    ensure!(commands(node, &copy)?.is_empty(), "a copy of files has commands");
    Ok(())
}

/// What makes the first process of a copy ends some microseconds later: or much later, if it has to wait for a processor.
fn late_helper() -> Result<()> {
    let arguments = ["--pool", "0", "--ahead", "0"].map(str::to_owned).to_vec();
    let node = Node::start_with(Setting { arguments, ..Setting::default() })?;
    node.build_geo("geo", &["--nidx", "2"])?;
    let source = node.run("geo", 1)?[0].id.to_string();
    node.ok(&["exec", "-d", "--tag", "counter", &source, "--", "/bin/sh", "-c", COUNTER])?;
    node.ok(&["checkpoint", &source, "--name", "warm"])?;
    node.ok(&["kill", &source])?;
    // The zygote is made for the first one.
    node.run("warm", 1)?;
    let zygote = zygote(&node, "warm")? as i32;
    ptrace::seize(zygote, ptrace::options::TRACE_CLONES)?;
    let start = node.begin(&["create", "warm", "-q"])?;
    ensure!(matches!(ptrace::wait(zygote)?, ptrace::Stop::Cloned), "the zygote does something else");
    let helper = ptrace::event_message(zygote)? as i32;
    ensure!(matches!(ptrace::wait(helper)?, ptrace::Stop::Interrupted), "the helper does something else");
    ptrace::set_options(helper, libc::PTRACE_O_TRACEEXIT)?;
    ptrace::detach(zygote, 0)?;
    ptrace::resume(helper, 0)?;
    let stop = ptrace::wait(helper)?;
    ensure!(matches!(stop, ptrace::Stop::Event(libc::PTRACE_EVENT_EXIT)), "the helper does not end");
    // Far more than a copy takes to be made.
    sleep(Duration::from_millis(500));
    ptrace::detach(helper, 0)?;
    let answer = start.end()?;
    ensure!(answer.code == 0, "{answer}");
    let copy = answer.stdout.trim();
    node.shell(copy, "touch /tmp/stop")?;
    let counter = node.pando(&["attach", copy, "counter"])?;
    ensure!(counter.code == 7, "the counter: {counter}");
    node.finish()
}
