//! What an idle copy costs.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use testkit::{node::Node, runner::Case};

const COPIES: usize = 50;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("memory::each_of_50_idle_copies_costs_at_most_5_percent", || {
            let node = Node::start()?;
            shares(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
            node.finish()
        })
        .slow("fifty copies have to come to rest"),
    ]
}

fn shares(node: &Node) -> Result<()> {
    let original = original_rss_bytes(&node.program("geo.py"))?;
    node.build_geo("geo", &[])?;
    let sandboxes = node.run("geo", COPIES)?;
    // Idle, not untouched: its threads tick and each has answered once.
    for sandbox in &sandboxes {
        node.ask(sandbox.id.as_str(), "GET /health")?;
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    let mut shares = Vec::new();
    for sandbox in &sandboxes {
        let detail = node.inspect(sandbox.id.as_str())?;
        let main =
            detail.processes.iter().find(|process| process.pid == detail.sandbox.main_pid).context("no program")?;
        shares.push(main.pss_bytes);
    }
    shares.sort_unstable();
    let percent = |bytes: u64| bytes as f64 / original as f64 * 100.0;
    let (median, most) = (percent(shares[COPIES / 2]), percent(shares[COPIES - 1]));
    println!(
        "memory: original {original} bytes resident, a copy of {COPIES} {median:.1} % (median), {most:.1} % (most)"
    );
    ensure!(most <= 5.0, "a copy costs {most:.1} % of the original");
    Ok(())
}

fn original_rss_bytes(service: &str) -> Result<u64> {
    let mut child = Command::new("/usr/bin/python3").args([service, "--port", "0"]).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    let read = child
        .stdout
        .as_mut()
        .context("no output")
        .and_then(|output| Ok(std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)?));
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
    child.kill()?;
    child.wait()?;
    read?;
    let status = status?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    Ok(kib.context("no VmRSS")?.trim().parse::<u64>()? * 1024)
}
