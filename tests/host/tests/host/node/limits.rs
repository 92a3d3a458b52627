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
