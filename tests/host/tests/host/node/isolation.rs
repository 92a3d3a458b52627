//! What a program in a sandbox can see, reach and change: nothing but its own.

use std::{
    collections::BTreeSet,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use testkit::{node::Node, runner::Case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("isolation::what_a_program_must_not_do_fails", || case(forbidden)),
        Case::new("isolation::copies_cannot_meet", || case(neighbours)),
        Case::new("isolation::every_copy_is_a_machine_of_its_own", || case(identities)),
        Case::new("isolation::a_zygote_under_construction_only_reads_memory", construction),
        Case::new("isolation::a_copy_has_the_privileges_and_descriptors_of_its_program_only", || case(privileges)),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start()?;
    node.build_geo("geo", &["--nidx", "2"])?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

fn probe(node: &Node, id: &str, script: &str, arguments: &[&str]) -> Result<Value> {
    let script = node.program(script);
    let mut command = vec!["exec", id, "--", "/usr/bin/python3", &script];
    command.extend(arguments);
    Ok(serde_json::from_str(&node.ok(&command)?)?)
}

/// Every way that has to end in an error; the rest of what the probe found is compared with what is expected.
fn forbidden(node: &Node) -> Result<()> {
    let name = format!("pando-host-{}", std::process::id());
    let port = TcpListener::bind("127.0.0.1:0")?;
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes())?)?;
    let sandboxes = node.run("geo", 2)?;
    let hidden = node.dir().display().to_string();
    let port = port.local_addr()?.port().to_string();
    let found = probe(node, sandboxes[0].id.as_str(), "isolation.py", &[&hidden, &port, &name])?;
    let found = found.as_object().context("no object")?;
    let expected = serde_json::json!({
        "list /root": ["EACCES", "allowed"],
        "hidden directory": [false],
        "mountinfo": [false],
        "block devices": [[]],
        "interfaces": [["eth0", "lo"]],
        "processes": [[[1, "pando-init"], [2, "python3"]]],
        // Permission to trace is that of reading.
        "list /proc/1/root": ["EACCES", "EPERM"],
    });
    let mut wrong = Vec::new();
    for (name, outcome) in found {
        let fine = match expected.get(name) {
            Some(values) => values.as_array().is_some_and(|values| values.contains(outcome)),
            None if name.starts_with("entries of") => outcome.as_array().is_some_and(Vec::is_empty),
            None if name.starts_with("bytes of") => outcome == 0 || outcome == false,
            None => outcome.as_str().is_some_and(|outcome| !outcome.starts_with("allowed")),
        };
        if !fine {
            wrong.push(format!("{name}: {outcome}"));
        }
    }
    ensure!(found.len() > 80, "the probe tried only {}", found.len());
    ensure!(wrong.is_empty(), "a program in a sandbox can:\n        {}", wrong.join("\n        "));
    Ok(())
}

fn neighbours(node: &Node) -> Result<()> {
    let sandboxes = node.run("geo", 2)?;
    let (one, other) = (sandboxes[0].id.as_str(), sandboxes[1].id.as_str());
    let script = node.program("neighbour.py");
    let holder = node.hold(&["exec", one, "--", "/usr/bin/python3", &script, "hold", "meeting"])?;
    let line = holder.first_line()?;
    ensure!(line.starts_with("holding"), "{line:?}");
    ensure!(line == "holding True True True True", "not everything can be made: {line:?}");
    let same = probe(node, one, "neighbour.py", &["find", "meeting"])?;
    ensure!(same["abstract socket"] == "found" && same["tcp port"] == "found", "in the same sandbox: {same}");
    let found = probe(node, other, "neighbour.py", &["find", "meeting"])?;
    for (name, outcome) in found.as_object().context("no object")? {
        let nothing = outcome.as_array().is_some_and(Vec::is_empty);
        ensure!(
            nothing || matches!(outcome.as_str(), Some("ECONNREFUSED" | "ENOENT")),
            "{name} of another sandbox: {outcome}"
        );
    }
    let answer = holder.release()?;
    ensure!(answer.code == 0, "{answer}");
    // A sandbox without the service: the copies' port 8080 is not there.
    let program = node.program("never_ready");
    node.ok(&["template", "build", "idle", "--ready", "true", "--", &program])?;
    let idle = node.run("idle", 1)?;
    let check = "import socket; s = socket.socket(); print(s.connect_ex(('127.0.0.1', 8080)))";
    let refused = node.ok(&["exec", idle[0].id.as_str(), "--", "/usr/bin/python3", "-c", check])?;
    ensure!(refused.trim() == "111", "port 8080 of another sandbox: {refused:?}");
    Ok(())
}

fn identities(node: &Node) -> Result<()> {
    let mut sandboxes = node.run("geo", 3)?;
    let fork = node.json(&["fork", sandboxes[0].id.as_str(), "--json"])?;
    sandboxes.push(serde_json::from_value(fork["sandboxes"][0].clone())?);
    for file in ["/etc/hostname", "/etc/machine-id", "/proc/sys/kernel/random/boot_id", "/run/pando/generation"] {
        let host = std::fs::read_to_string(file).unwrap_or_default();
        let mut seen = BTreeSet::from([host]);
        for sandbox in &sandboxes {
            let content = node.ok(&["exec", sandbox.id.as_str(), "--", "/bin/cat", file])?;
            ensure!(content.trim().len() > 8, "{file}: {content:?}");
            ensure!(seen.insert(content.clone()), "{file} of {} is not its own: {content:?}", sandbox.id);
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    // But for the node's own, with what sandboxes have changed, and with their router.
    let own = node.dir().to_string_lossy().into_owned();
    let is_nodes = |line: &str| [" - btrfs ", " - nsfs "].iter().any(|kind| line.contains(kind));
    let seen: Vec<&str> = mounts.lines().filter(|line| line.contains(&own) && !is_nodes(line)).collect();
    ensure!(seen.is_empty(), "mounts are seen on the host: {seen:?}");
    for sandbox in &sandboxes {
        let shown = node.shell(sandbox.id.as_str(), "hostname; uname -n; cat /proc/sys/kernel/hostname")?;
        ensure!(shown.lines().all(|line| line == sandbox.id.as_str()), "{shown:?}");
        for namespace in ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"] {
            let own = std::fs::read_link(format!("/proc/self/ns/{namespace}"))?;
            let its = std::fs::read_link(format!("/proc/{}/ns/{namespace}", sandbox.main_pid))?;
            ensure!(own != its, "{} is in the host's {namespace} namespace", sandbox.id);
        }
    }
    Ok(())
}

fn privileges(node: &Node) -> Result<()> {
    let sandboxes = node.run("geo", 1)?;
    let id = sandboxes[0].id.as_str();
    let fork = node.json(&["fork", id, "--json"])?;
    let forked = fork["sandboxes"][0]["main_pid"].as_i64().context("no pid")? as i32;
    for pid in [sandboxes[0].main_pid, forked] {
        expect_unprivileged(pid)?;
        let threads: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten().collect();
        for thread in threads {
            expect_unprivileged(thread.file_name().to_string_lossy().parse()?)?;
        }
        expect_descriptors(pid)?;
    }
    // The environment and the command line that the kernel shows are the program's.
    let command = std::fs::read_to_string(format!("/proc/{}/cmdline", sandboxes[0].main_pid))?;
    ensure!(command.contains("geo.py"), "{command:?}");
    let inside = node.shell(id, "cat /proc/*/cmdline | tr '\\0' ' '")?;
    ensure!(!inside.contains("keeper") && !inside.contains("node --"), "{inside:?}");
    Ok(())
}

/// A zygote is built of memory that it reads from a stopped process. It must not be able to write there, and another's memory is all that it has of it.
fn construction() -> Result<()> {
    let node = Node::start()?;
    let memory = "import time; x = b'x' * (400 << 20); open('/tmp/ready', 'w').close(); time.sleep(1000)";
    let build = ["template", "build", "large", "--ready-file", "/tmp/ready", "--", "/usr/bin/python3", "-c", memory];
    let keeper = node.info()?.keeper_pid.context("no keeper")?;
    let mut building = node.begin(&build)?;
    let (mut readers, deadline) = (0, std::time::Instant::now() + std::time::Duration::from_secs(60));
    while !building.has_ended()? && std::time::Instant::now() < deadline {
        // Of the builder, which may write, there is the whole program in its memory; of a zygote nothing.
        for pid in descendants(keeper as i32).into_iter().filter(|pid| gave_up_its_memory(*pid)) {
            for flags in memory_descriptors(pid) {
                readers += 1;
                ensure!(
                    flags & 3 == 0,
                    "process {pid}, which becomes a zygote, has another's memory open with flags {flags:#o}"
                );
            }
        }
    }
    let answer = building.end()?;
    ensure!(answer.code == 0, "{answer}");
    ensure!(readers > 0, "the zygote was not seen while it read");
    node.finish()
}

fn descendants(pid: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_ascii_whitespace().filter_map(|child| child.parse().ok());
    children.flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

fn gave_up_its_memory(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps"))
        .is_ok_and(|maps| !maps.is_empty() && !maps.contains("/pando\n"))
}

/// The flags of open files of processes' memory.
fn memory_descriptors(pid: i32) -> Vec<u32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let memory = entries.filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target.starts_with("/proc") && target.ends_with("mem"))
    });
    let flags = |entry: std::fs::DirEntry| {
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", entry.file_name().display())).ok()?;
        u32::from_str_radix(info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim(), 8).ok()
    };
    memory.filter_map(flags).collect()
}

fn expect_unprivileged(pid: i32) -> Result<()> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.split_ascii_whitespace().collect::<Vec<_>>().join(" ")).unwrap_or_default()
    };
    let nothing = "0000000000000000";
    let own = testkit::ids::program(pid)?;
    let own = format!("{own} {own} {own} {own}");
    for (name, expected) in [
        ("Uid", own.as_str()),
        ("Gid", own.as_str()),
        ("Groups", ""),
        ("CapInh", nothing),
        ("CapPrm", nothing),
        ("CapEff", nothing),
        ("CapBnd", nothing),
        ("CapAmb", nothing),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
        ("TracerPid", "0"),
    ] {
        ensure!(value(name) == expected, "{name} of {pid} is {:?}, not {expected:?}", value(name));
    }
    Ok(())
}

/// geo.py has its three streams, an epoll set, asyncio's socket pair and the listening socket.
fn expect_descriptors(pid: i32) -> Result<()> {
    // It says that it goes on in the program before it has closed what it says that by.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while std::fs::read_dir(format!("/proc/{pid}/fd"))?.count() > 7 && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let mut kinds = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let target = std::fs::read_link(entry.path())?.display().to_string();
        let kind = match target.split(':').next() {
            Some("socket") => "socket",
            Some("anon_inode") if target.contains("eventpoll") => "epoll",
            Some("/dev/null") => "null",
            Some("pipe") => "output",
            _ => bail!("descriptor {} of {pid} is {target}", entry.file_name().display()),
        };
        kinds.push(kind);
    }
    kinds.sort_unstable();
    ensure!(kinds == ["epoll", "null", "output", "output", "socket", "socket", "socket"], "{pid} has {kinds:?}");
    Ok(())
}
