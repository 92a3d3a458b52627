//! What `pando doctor` says of this host, and what it leaves.

use anyhow::{Context, Result, ensure};
use pando_host_tests::{node::Node, runner::Case};

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("doctor::the_self_test_forks_compares_and_leaves_nothing", self_test)]
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
    let findings: serde_json::Value = serde_json::from_str(&answer.stdout).with_context(|| answer.to_string())?;
    let findings = findings.as_array().context("no list")?;
    let probes: Vec<&str> = findings.iter().filter_map(|finding| finding["probe"].as_str()).collect();
    ensure!(probes == PROBES && answer.code == 0, "{answer}");
    ensure!(findings.iter().all(|finding| finding["verdict"] == "ok"), "{findings:?}");
    let table = node.ok(&["doctor", "--self-test"])?;
    ensure!(table.lines().count() == PROBES.len() && table.lines().all(|line| line.starts_with("ok ")), "{table}");
    node.finish()
}
