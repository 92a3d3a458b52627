//! What a sandbox may use, and programs that want more.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use testkit::{
    node::Node,
    runner::{Case, skip},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("limits::memory_and_processes_are_bounded_per_sandbox", || case(bounded)),
        Case::new("limits::a_memory_limit_leaves_no_room_in_swap", || case(no_swap)),
        Case::new("limits::a_sandbox_sees_its_limits", || case(seen)),
        Case::new("limits::a_fork_bomb_is_removed_like_anything_else", || case(bomb)),
        Case::new("limits::a_program_under_construction_is_as_unprivileged_as_its_copies", || case(source)),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start()?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

fn build_small(node: &Node) -> Result<()> {
    let service = node.program("geo.py");
    let limits = ["--memory", "256M", "--pids", "64", "--port", "8080"];
    let mut build = vec!["template", "build", "small"];
    build.extend(limits);
    build.extend(["--", "/usr/bin/python3", &service, "--nidx", "2"]);
    node.ok(&build).map(drop)
}

fn bounded(node: &Node) -> Result<()> {
    build_small(node)?;
    let sandboxes = node.run("small", 2)?;
    let (one, other) = (sandboxes[0].id.as_str(), sandboxes[1].id.as_str());
    let hungry = "x = bytearray(512 << 20)\nfor n in range(0, len(x), 4096): x[n] = 1\nprint('got it')";
    let answer = node.pando(&["exec", one, "--", "/usr/bin/python3", "-c", hungry])?;
    ensure!(answer.code == 137 || answer.stderr.contains("MemoryError"), "512 MiB of 256: {answer}");
    let processes = "for n in $(seq 100); do sleep 5 & done 2>&1; wait";
    let answer = node.pando(&["exec", other, "--", "/bin/sh", "-c", processes])?;
    ensure!(
        answer.stdout.contains("Cannot fork") || answer.stderr.contains("Cannot fork"),
        "100 processes of 64: {answer}"
    );
    node.ask(other, "GET /health").context("the other sandbox").map(drop)
}

fn no_swap(node: &Node) -> Result<()> {
    build_small(node)?;
    let sandbox = node.run("small", 1)?[0].id.to_string();
    // A command starts with limits on cgroup v1 too.
    node.shell(&sandbox, "true")?;
    let limits = files_of_group(Path::new("/sys/fs/cgroup"), &sandbox);
    let limits = [("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", 256 << 20)]
        .into_iter()
        .filter_map(|(name, wanted)| Some((limits.iter().find(|path| path.ends_with(name))?, wanted)))
        .collect::<Vec<_>>();
    if limits.is_empty() {
        return skip("this kernel counts no swap");
    }
    for (path, wanted) in limits {
        let found = fs::read_to_string(path)?;
        ensure!(found.trim() == wanted.to_string(), "{}: {found}", path.display());
    }
    Ok(())
}

fn seen(node: &Node) -> Result<()> {
    let service = node.program("geo.py");
    let limits = ["--memory", "256M", "--cpus", "0.5", "--port", "8080"];
    let mut build = vec!["template", "build", "half"];
    build.extend(limits);
    build.extend(["--", "/usr/bin/python3", &service, "--nidx", "2"]);
    node.ok(&build)?;
    let host = std::thread::available_parallelism()?.get();
    for sandbox in node.run("half", 3)? {
        let id = sandbox.id.as_str();
        let sizes = "import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))
print(os.sysconf('SC_NPROCESSORS_ONLN'), open('/proc/cpuinfo').read().count('processor\t'))";
        let answer = node.pando(&["exec", id, "--", "/usr/bin/python3", "-c", sizes])?;
        ensure!(answer.stdout == "1 1\n1 1\n", "of {host} processors: {answer}");
        ensure!(node.shell(id, "nproc")?.trim() == "1", "nproc");
        let memory = node.shell(id, "head -1 /proc/meminfo")?;
        ensure!(memory.split_whitespace().eq(["MemTotal:", "262144", "kB"]), "{memory}");
        // The copy came with its source's processors, and then got those of its sandbox.
        let processors = "grep -h Cpus_allowed_list /proc/[0-9]*/status | sort -u";
        let all_are_alike = || Ok(node.shell(id, &format!("{processors} | wc -l"))?.trim() == "1");
        eventually(all_are_alike, || format!("{:?}", node.shell(id, &format!("pgrep -a .; {processors}"))))?;
        let groups = node.shell(id, "cat /sys/fs/cgroup/cgroup.procs; cat /proc/self/cgroup")?;
        ensure!(groups.contains("1\n") && groups.contains("0::/"), "{groups}");
        let answer = node.pando(&["exec", id, "--", "sh", "-c", "echo 1 >/sys/fs/cgroup/cgroup.procs"])?;
        ensure!(answer.code != 0, "{answer}");
        let available = || -> Result<u64> {
            let text = node.shell(id, "grep MemAvailable /proc/meminfo")?;
            Ok(text.split_whitespace().nth(1).context("no number")?.parse::<u64>()? >> 10)
        };
        let before = available()?;
        let take = "import time; x = b'x' * (64 << 20); print('taken', flush=True); time.sleep(60)";
        node.shell(
            id,
            &format!("python3 -c \"{take}\" >/tmp/taken 2>&1 & while ! grep -q taken /tmp/taken; do sleep .05; done"),
        )?;
        eventually(|| Ok(available()? + 56 < before), || format!("{before} MiB, then {:?}", available()))?;
    }
    Ok(())
}

/// Within half a minute.
fn eventually(holds: impl Fn() -> Result<bool>, found: impl Fn() -> String) -> Result<()> {
    let began = Instant::now();
    while !holds()? {
        ensure!(began.elapsed() < Duration::from_secs(30), "{}", found());
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The files of all control groups called `name`.
fn files_of_group(folder: &Path, name: &str) -> Vec<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = entries(folder).filter(|path| path.is_dir() && !path.is_symlink());
    folders
        .flat_map(|path| if path.ends_with(name) { entries(&path).collect() } else { files_of_group(&path, name) })
        .collect()
}

fn bomb(node: &Node) -> Result<()> {
    build_small(node)?;
    let sandboxes = node.run("small", 2)?;
    let (one, other) = (sandboxes[0].id.as_str(), sandboxes[1].id.as_str());
    let bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass";
    let exec = node.begin(&["exec", one, "--", "/usr/bin/python3", "-c", bomb])?;
    std::thread::sleep(Duration::from_millis(700));
    node.ask(other, "GET /health").context("beside a fork bomb")?;
    let began = Instant::now();
    node.ok(&["kill", one])?;
    ensure!(began.elapsed() < Duration::from_secs(10), "rm took {:?}", began.elapsed());
    ensure!(exec.end()?.code != 0, "the exec'd command ended well");
    node.ok(&["kill", other])?;
    node.expect_only_itself()
}

fn source(node: &Node) -> Result<()> {
    let look = "grep -E '^(Uid|Gid|Groups|Cap.*|NoNewPrivs|Seccomp):' /proc/self/status; exit 9";
    let answer = node.pando(&["template", "build", "failing", "--", "/bin/sh", "-c", look])?;
    ensure!(answer.code == 6, "{answer}");
    let nothing = "0000000000000000";
    for (name, value) in [
        ("Uid", "1000\t1000\t1000\t1000"),
        ("Gid", "1000\t1000\t1000\t1000"),
        ("CapPrm", nothing),
        ("CapEff", nothing),
        ("CapBnd", nothing),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ] {
        ensure!(answer.stderr.contains(&format!("{name}:\t{value}\n")), "{name}: {answer}");
    }
    Ok(())
}
