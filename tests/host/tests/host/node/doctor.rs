//! What `pando doctor` says of this host, and what it leaves.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use testkit::{
    engine::wait_until,
    node::Node,
    runner::{Case, skip},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("doctor::the_self_test_forks_compares_and_leaves_nothing", self_test),
        Case::new("doctor::files_of_the_self_test_are_where_no_link_leads", planted),
        Case::new("doctor::limits_that_do_not_hold_are_not_tried", no_limits),
        Case::new("doctor::an_interrupted_self_test_leaves_nothing", interrupted),
    ]
}

const PROBES: [&str; 6] = [
    "registers of a copy",
    "registers of a live fork",
    "memory of two copies",
    "guard pages",
    "limit of tasks",
    "limit of memory",
];

fn self_test() -> Result<()> {
    let node = Node::start()?;
    let answer = node.pando(&["doctor", "--self-test", "--json"])?;
    let findings = findings(&answer.stdout).with_context(|| answer.to_string())?;
    ensure!(answer.code == 0, "{answer}");
    ensure!(findings.iter().all(|finding| finding["verdict"] == "ok"), "{findings:?}");
    let table = node.ok(&["doctor", "--self-test"])?;
    ensure!(table.lines().count() == PROBES.len() && table.lines().all(|line| line.starts_with("ok ")), "{table}");
    node.finish()
}

fn findings(json: &str) -> Result<Vec<Value>> {
    let findings: Vec<Value> = serde_json::from_str(json)?;
    let probes: Vec<&str> = findings.iter().filter_map(|finding| finding["probe"].as_str()).collect();
    ensure!(probes == PROBES, "{probes:?}");
    Ok(findings)
}

/// A user who knows the process id of the command makes a directory of that name before it does.
fn planted() -> Result<()> {
    let node = Node::start()?;
    let victim = node.dir().join("victim");
    fs::write(&victim, "whole")?;
    let script =
        "mkdir -m 777 /var/tmp/pando-self-test-$$ && ln -s \"$0\" /var/tmp/pando-self-test-$$/lock && exec \"$@\"";
    let pando = node.command_of(&["doctor", "--self-test"]);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).arg(&victim).arg(pando.get_program()).args(pando.get_args());
    let child = command.stdout(Stdio::piped()).spawn()?;
    let planted = PathBuf::from(format!("/var/tmp/pando-self-test-{}", child.id()));
    let output = child.wait_with_output()?;
    let left = fs::read_link(planted.join("lock"));
    let _ = fs::remove_dir_all(&planted);
    ensure!(output.status.success(), "{output:?}");
    ensure!(fs::read_to_string(&victim)? == "whole", "a link led to a file of root");
    ensure!(left.is_ok_and(|target| target == victim), "the directory was used");
    node.finish()
}

/// As in a container that is given no controllers.
fn no_limits() -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mounted = |controller: &&str| mounts.contains(&format!(" /sys/fs/cgroup/{controller} cgroup "));
    if !["pids", "memory"].iter().all(mounted) {
        return skip("cgroup v1 has not the controllers here, which could be taken away");
    }
    let node = Node::start()?;
    let script = "umount /sys/fs/cgroup/pids /sys/fs/cgroup/memory && exec \"$@\"";
    let pando = node.command_of(&["doctor", "--self-test", "--json"]);
    let mut command = Command::new("unshare");
    command.args(["--mount", "/bin/sh", "-c", script, "sh"]).arg(pando.get_program()).args(pando.get_args());
    let output = command.output()?;
    ensure!(output.status.success(), "{output:?}");
    for finding in findings(&String::from_utf8_lossy(&output.stdout))? {
        let limit = finding["probe"].as_str().is_some_and(|probe| probe.starts_with("limit"));
        let (verdict, found) = (finding["verdict"].as_str(), finding["found"].as_str().unwrap_or_default());
        ensure!(verdict == Some(if limit { "skipped" } else { "ok" }), "{finding}");
        ensure!(!limit || found.contains("no such controller"), "{finding}");
    }
    node.finish()
}

fn interrupted() -> Result<()> {
    let node = Node::start()?;
    // At once, while there are sandboxes, and while its own process is killed with it.
    for signal in [Signal::INT, Signal::KILL] {
        let mut command = node.command_of(&["doctor", "--self-test"]);
        let mut child = command.process_group(0).stdout(Stdio::null()).spawn()?;
        let (pid, mut dir) = (child.id(), None);
        wait_until("the self-test has sandboxes", Duration::from_secs(20), || {
            dir = directory_of_the_self_test(pid);
            dir.as_deref().is_some_and(has_sandbox)
        })?;
        let dir = dir.context("no directory")?;
        kill_process_group(Pid::from_child(&child), signal)?;
        child.wait()?;
        let group = format!("pando-self-test-{pid}");
        let gone = || !dir.exists() && !is_named(&dir) && cgroups_called(Path::new("/sys/fs/cgroup"), &group) == 0;
        wait_until("nothing of the self-test is left", Duration::from_secs(20), gone)?;
    }
    node.finish()
}

fn command_lines() -> impl Iterator<Item = Vec<String>> {
    let line = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).ok();
    let lines = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(line);
    lines.map(|line| line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// The directory in the command line of the process that `pando doctor`, `pid`, has started.
fn directory_of_the_self_test(pid: u32) -> Option<PathBuf> {
    let group = format!("self-test-{pid}");
    let line = command_lines().find(|line| line.contains(&group))?;
    let at = line.iter().position(|word| word == "--dir")?;
    line.get(at + 1).map(PathBuf::from)
}

fn has_sandbox(dir: &Path) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().join("output").exists())
}

/// Whether a process has the directory in its command line.
fn is_named(dir: &Path) -> bool {
    let dir = dir.to_string_lossy();
    command_lines().any(|line| line.iter().any(|word| *word == dir))
}

fn cgroups_called(folder: &Path, group: &str) -> usize {
    let folders = fs::read_dir(folder).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
    folders
        .map(|entry| {
            usize::from(entry.file_name().to_string_lossy().starts_with(group)) + cgroups_called(&entry.path(), group)
        })
        .sum()
}
