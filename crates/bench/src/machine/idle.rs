//! What sandboxes cost that do nothing, and what it takes to have one ready.

use std::{path::Path, time::Duration};

use anyhow::Result;
use base::text;

use crate::{
    node::{Ahead, PrivateNode},
    proc::{bytes_of, cpu_of},
    report::{Goal, Report, duration, progress},
};

const IDLE: u32 = 500;
/// What the template may take to be made.
const TEMPLATE_WAIT: Duration = Duration::from_secs(120);
/// Blanks in a pool.
const BLANKS: u32 = 64;
/// Until nothing is at work any more.
const CALM: Duration = Duration::from_secs(3);

/// Memory that programs could have.
fn available() -> Result<u64> {
    bytes_of("/proc/meminfo", "MemAvailable:")
}

/// `base` sandboxes with a network of their own.
pub(super) async fn memory(root: Option<&Path>, report: &mut Report) -> Result<()> {
    let Some(root) = root else {
        report.fact("500 idle sandboxes", "left out: --base names no root filesystem");
        return Ok(());
    };
    progress("starting a private server with the template base");
    let asked = ["--base".into(), root.as_os_str().to_owned(), "--network".into(), "on".into()];
    let (node, _) = PrivateNode::serve(&asked).await?;
    let measured = five_hundred(&node, report).await;
    node.stop().await?;
    measured
}

async fn five_hundred(node: &PrivateNode, report: &mut Report) -> Result<()> {
    node.await_templates(&["base"], TEMPLATE_WAIT).await?;
    node.settle().await?;
    node.rest().await?;
    progress(&format!("{IDLE} sandboxes"));
    let before = available()?;
    let began = std::time::Instant::now();
    for _ in 0..IDLE / 50 {
        node.start_many("base", 50).await?;
    }
    let took = began.elapsed();
    node.rest().await?;
    tokio::time::sleep(CALM).await;
    let cost = before.saturating_sub(available()?);
    let each = text::bytes(cost / u64::from(IDLE));
    report.fact(
        "500 idle sandboxes of base, with network",
        format!("{} of the machine's memory, {each} each; started in {}", text::bytes(cost), duration(took)),
    );
    report.goal(Goal::at_most("500 idle sandboxes of base", "GiB", None, cost as f64 / f64::from(1 << 30), 3.0));
    node.remove_all().await
}

/// The processor time of the node and its processes for a sandbox that waits for its program.
pub(super) async fn blanks(report: &mut Report) -> Result<()> {
    progress(&format!("a pool of {BLANKS}"));
    let mut took = Vec::new();
    for size in [0, BLANKS] {
        let asked = ["--pool".into(), size.to_string().into(), "--network".into(), "on".into()];
        let node = PrivateNode::start_with(Ahead::No, &asked).await?;
        let measured = async {
            node.settle().await?;
            tokio::time::sleep(CALM).await;
            cpu_of(&node.processes()?)
        };
        let measured = measured.await;
        node.stop().await?;
        took.push(measured?);
    }
    let each = took[1].saturating_sub(took[0]) / BLANKS;
    report.fact("a blank with user namespace, network and layer", format!("{} of processor time", duration(each)));
    report.goal(Goal::at_most("processor time of a blank", "ms", None, each.as_secs_f64() * 1e3, 5.0));
    Ok(())
}
