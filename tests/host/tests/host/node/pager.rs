//! What the operator may choose about the memory of restored programs, and what bounds the pager.

use std::{path::PathBuf, process::Command, thread::sleep, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("pager::zygotes_take_memory_from_the_nodes_that_were_named_and_copies_where_they_run", placed),
        Case::new("pager::a_node_without_memory_is_refused_at_the_start", refused),
        Case::new("pager::what_copies_had_to_wait_for_joins_the_working_set", merged)
            .slow("a recording takes two seconds, and six are waited for"),
        Case::new("pager::its_memory_is_bounded_and_what_it_fills_is_not_its_own", bounded),
        Case::new("pager::at_its_limit_it_is_started_again_and_nothing_is_lost", at_its_limit),
    ]
}

fn node(arguments: &[&str]) -> Result<Node> {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    Node::start_with(Setting { arguments, ..Setting::default() })
}

fn named(node: Node, check: fn(&Node) -> Result<()>) -> Result<()> {
    check(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// The policy of each mapping of a process.
fn policies(pid: i64) -> Result<Vec<String>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/numa_maps"))?;
    // "7f00deadb000 prefer (many):0 anon=1 ...", "... default ..."
    let policy = |line: &str| line.split_once(' ').map(|(_, rest)| rest.replacen("prefer (many)", "prefer_many", 1));
    let policies = maps.lines().filter_map(policy);
    Ok(policies.map(|rest| rest.split(' ').next().unwrap_or_default().to_owned()).collect())
}

pub(crate) fn zygote(node: &Node, template: &str) -> Result<i64> {
    let templates = node.json(&["template", "ls", "--json"])?;
    let found = templates.as_array().into_iter().flatten().find(|found| found["name"] == template);
    found.and_then(|found| found["facts"]["zygote_pid"].as_i64()).with_context(|| format!("no zygote of {template}"))
}

/// Builds a template, starts a checkpoint of one of its copies, and gives the copy of that.
fn restored(node: &Node) -> Result<i64> {
    node.build_geo("geo", &["--nidx", "16"])?;
    let source = node.run("geo", 1)?[0].id.to_string();
    node.ok(&["checkpoint", &source, "--name", "warm"])?;
    node.ok(&["kill", &source])?;
    // The copy, and its zygote, are made of the checkpoint.
    let copy = node.run("warm", 1)?[0].id.clone();
    ensure!(node.ask(copy.as_str(), "GET /verify")?["intact"] == true, "not intact");
    Ok(i64::from(node.inspect(copy.as_str())?.sandbox.main_pid))
}

fn expect_policies(what: &str, pid: i64, expected: &str) -> Result<()> {
    let found = policies(pid)?;
    ensure!(!found.is_empty() && found.iter().all(|policy| policy == expected), "{what} {pid}: {found:?}");
    Ok(())
}

fn placed() -> Result<()> {
    named(node(&["--memory-node", "0"])?, |node| {
        let copy = restored(node)?;
        for template in ["geo", "warm"] {
            expect_policies(template, zygote(node, template)?, "prefer_many:0")?;
        }
        expect_policies("a copy", copy, "default")?;
        for pid in family(node)? {
            expect_policies("the pager's process", i64::from(pid), "prefer_many:0")?;
        }
        Ok(())
    })?;
    named(node(&[])?, |node| {
        let copy = restored(node)?;
        expect_policies("a zygote without a policy", zygote(node, "warm")?, "default")?;
        expect_policies("its copy", copy, "default")
    })
}

fn refused() -> Result<()> {
    let Err(error) = node(&["--memory-node", "0,1000"]) else { bail!("it runs") };
    let text = format!("{error:#}");
    ensure!(text.contains("--memory-node 1000: no such node has memory; this machine has 0"), "{text}");
    Ok(())
}

fn merged() -> Result<()> {
    named(node(&[])?, |node| {
        node.build_geo("geo", &["--nidx", "16"])?;
        let source = node.run("geo", 1)?[0].id.to_string();
        node.ok(&["checkpoint", &source, "--name", "warm"])?;
        node.ok(&["kill", &source])?;
        let manifest = || node.ok(&["checkpoint", "inspect", "warm", "--json"]);
        // A restore, whose copy is asked that, and all that the log has to say of the working set afterwards.
        let restored = |request: &str| -> Result<Vec<String>> {
            let before = node.log()?.len();
            let copy = node.run("warm", 1)?[0].id.to_string();
            node.ask(&copy, request)?;
            // Recording takes two seconds; where nothing is written down nothing is said.
            sleep(Duration::from_millis(3_500));
            node.ok(&["kill", &copy])?;
            node.ok(&["template", "rm", "warm"])?;
            let log = node.log()?[before..].to_owned();
            Ok(log.lines().filter(|line| line.contains("of the checkpoint")).map(str::to_owned).collect())
        };
        let first = restored("GET /health")?;
        ensure!(first.len() == 1 && first[0].contains("recorded what copies"), "{first:?}");
        let recorded = manifest()?;
        ensure!(restored("GET /health")?.is_empty() && manifest()? == recorded, "nothing was missing");
        // All of its memory; of that a set takes as much again as it had.
        let second = restored("GET /verify")?;
        ensure!(second.len() == 1 && second[0].contains("merged what copies") && manifest()? != recorded, "{second:?}");
        let mut merges = 1;
        while !restored("GET /verify")?.is_empty() {
            merges += 1;
            ensure!(merges < 8, "it grows on and on");
        }
        println!("    {merges} merges until it was as large as it may be");
        node.ok(&["checkpoint", "verify", "warm"])?;
        let copy = node.run("warm", 1)?[0].id.to_string();
        ensure!(node.ask(&copy, "GET /verify")?["intact"] == true, "not intact");
        Ok(())
    })
}

/// The processes of a node's pager.
fn family(node: &Node) -> Result<Vec<i32>> {
    super::checkpoint::pagers(node)
}

/// The directory of a process's group in the hierarchy that has the memory controller.
pub(crate) fn memory_group(pid: i32) -> Result<PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let of = |wanted: &str| {
        groups.lines().find_map(|line| {
            let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|found| found == wanted).then(|| group.trim_start_matches('/').to_owned())
        })
    };
    let root = PathBuf::from("/sys/fs/cgroup");
    match (of("memory"), of("")) {
        (Some(group), _) => Ok(root.join("memory").join(group)),
        (None, Some(group)) => Ok(root.join(group)),
        (None, None) => bail!("no group: {groups}"),
    }
}

pub(crate) fn read_number(group: &std::path::Path, names: [&str; 2]) -> Result<u64> {
    let text = names.iter().find_map(|name| std::fs::read_to_string(group.join(name)).ok());
    Ok(text.with_context(|| format!("no {names:?} in {}", group.display()))?.trim().parse()?)
}

fn bounded() -> Result<()> {
    const LIMIT: u64 = 96 << 20;
    let node = node(&["--pager-memory", "96M"])?;
    let mut group = PathBuf::new();
    let mut check = || {
        let copy = restored(&node)?;
        let family = family(&node)?;
        ensure!(family.len() == 3, "{family:?}");
        group = memory_group(family[0])?;
        ensure!(group.ends_with("pager"), "{}", group.display());
        for pid in &family {
            ensure!(memory_group(*pid)? == group, "{pid} is in {}", memory_group(*pid)?.display());
        }
        ensure!(read_number(&group, ["memory.limit_in_bytes", "memory.max"])? == LIMIT);
        // Every page of the program was filled by the pager and is charged to the copy or its zygote.
        let used = read_number(&group, ["memory.usage_in_bytes", "memory.current"])?;
        let resident = std::fs::read_to_string(format!("/proc/{copy}/status"))?;
        println!(
            "   the pager's group holds {} MiB; the copy: {:?}",
            used >> 20,
            resident.lines().find(|l| l.starts_with("VmRSS"))
        );
        let score = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"));
        let scores: Vec<String> = family.iter().map(|pid| score(*pid)).collect::<std::io::Result<_>>()?;
        // Some containers do not permit it.
        let permitted =
            Command::new("sh").args(["-c", "echo -1000 2>/dev/null >/proc/self/oom_score_adj"]).status()?.success();
        ensure!(!permitted || scores == ["-1000\n", "-1000\n", "0\n"], "{scores:?}");
        Ok(())
    };
    let checked = check();
    checked.with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()?;
    ensure!(!group.exists(), "{} is left", group.display());
    Ok(())
}

fn at_its_limit() -> Result<()> {
    // Less than it takes for the packed and the plain pages of a few chunks.
    named(node(&["--pager-memory", "6M"])?, |node| {
        // Asks for every byte.
        restored(node)?;
        let family = family(node)?;
        let group = memory_group(family[0])?;
        let events = ["memory.oom_control", "memory.events"].map(|name| std::fs::read_to_string(group.join(name)));
        let events: String = events.into_iter().flatten().collect();
        let killed = events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse::<u64>().ok());
        println!("   {killed:?} kills; {family:?}");
        ensure!(killed > Some(0), "the limit was not reached: {events}");
        Ok(())
    })
}
