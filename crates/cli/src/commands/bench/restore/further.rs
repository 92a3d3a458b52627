//! What one more sandbox of a checkpoint costs in memory, where there is one already.

use anyhow::Result;

use crate::{
    commands::bench::{node::PrivateNode, place::Way, proc::bytes_of, report::Report},
    output,
};

const COPIES: u32 = 100;

/// Started before: then the node has seen what copies touch, and has forked as many ahead as it always will. Those are none of the further copies' cost.
const EARLIER: u32 = 4;

/// The machine's available memory is compared, so what the kernel has for a sandbox counts, too: page tables, network, mounts.
pub(super) async fn memory_of_each(way: &Way, name: &str, report: &mut Report) -> Result<()> {
    let node = PrivateNode::fresh(way).await?;
    for _ in 0..EARLIER {
        node.start_one(name).await?;
    }
    node.wait_filled().await?;
    node.rest().await?;
    let before = available()?;
    let mut mains = Vec::new();
    for _ in 0..COPIES {
        mains.push(node.start_one(name).await?.0.main_pid);
    }
    node.rest().await?;
    let used = before.saturating_sub(available()?) / u64::from(COPIES);
    let mut own = mains.into_iter().map(written).collect::<Result<Vec<_>>>()?;
    own.sort_unstable();
    let own = own[own.len() / 2];
    let value = match used.checked_sub(own) {
        None => "somebody else on this machine has freed memory meanwhile: not known".to_owned(),
        Some(rest) => format!(
            "{} of the machine's memory; {} are pages that it has written, {} the rest",
            output::bytes(used),
            output::bytes(own),
            output::bytes(rest)
        ),
    };
    report.fact(format!("each of {COPIES} further copies on a node, answered once and idle"), value);
    node.stop().await
}

/// Pages that only this process has.
fn written(pid: i32) -> Result<u64> {
    bytes_of(&format!("/proc/{pid}/smaps_rollup"), "Private_Dirty:")
}

fn available() -> Result<u64> {
    bytes_of("/proc/meminfo", "MemAvailable:")
}
