//! What `pando doctor` says of this host, and what it leaves.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use pando_host_tests::{
    node::Node,
    runner::{Case, skip},
};
use serde_json::Value;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("doctor::the_self_test_forks_compares_and_leaves_nothing", self_test),
        Case::new("doctor::files_of_the_self_test_are_where_no_link_leads", planted),
        Case::new("doctor::limits_that_do_not_hold_are_not_tried", no_limits),
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
