//! What one more sandbox of a checkpoint costs in memory, where there is one already.

use anyhow::Result;

use crate::{node::PrivateNode, place::Way, proc::bytes_of, report::Report};

const COPIES: u32 = 100;

/// Started before anything else: then the node has seen what copies touch.
const FIRST: u32 = 4;

/// What `/proc/meminfo` counts of memory that a sandbox can hold: of programs (this node's server and keepers, too), then the kernel's own.
/// Files' pages, which the copies share with the zygote, are not among it. `MemAvailable` would hold all of it, and whatever else
/// the machine frees or keeps meanwhile: it differed by more than the copies had.
const COUNTED: [(&str, &str); 6] = [
    ("AnonPages:", "of programs"),
    ("Shmem:", "in memory filesystems"),
    ("PageTables:", "page tables"),
    ("Slab:", "slab"),
    ("KernelStack:", "kernel stacks"),
    ("Percpu:", "per processor"),
];

/// Compares sums over the machine before and after: what the kernel has for a sandbox counts, too (page tables, network, mounts).
pub(super) async fn memory_of_each(way: &Way, name: &str, report: &mut Report) -> Result<()> {
    let node = PrivateNode::fresh(way).await?;
    start(&node, name, FIRST).await?;
    node.wait_filled().await?;
    // Uses up every copy that was forked ahead before: such a copy lacks the pages that the zygote lacked, and gets them for itself.
    let ahead = node.pool().await?.ahead_limit;
    start(&node, name, ahead as u32 + FIRST).await?;
    node.rest().await?;
    let before = counted()?;
    let mains = start(&node, name, COPIES).await?;
    node.rest().await?;
    let each: Vec<i64> =
        counted()?.iter().zip(before).map(|(after, before)| (after - before) / i64::from(COPIES)).collect();
    let own = mains.into_iter().map(written).sum::<Result<i64>>()? / i64::from(COPIES);
    let parts: Vec<String> =
        each.iter().zip(COUNTED).map(|(each, (_, what))| format!("{what} {}", kib(*each))).collect();
    let all: i64 = each.iter().sum();
    let (all, rest, parts) = (kib(all), kib(all - own), parts.join(", "));
    let value = format!("{all} ({parts}); {} are pages that it has written, {rest} the rest", kib(own));
    report.fact(format!("memory of each of {COPIES} further copies on a node, answered once and idle"), value);
    node.stop().await
}

/// Starts so many, one after the other, each until it has answered. Returns their main processes.
async fn start(node: &PrivateNode, name: &str, count: u32) -> Result<Vec<i32>> {
    let mut mains = Vec::new();
    for _ in 0..count {
        mains.push(node.start_one(name).await?.0.main_pid);
    }
    Ok(mains)
}

/// Pages that only this process has.
fn written(pid: i32) -> Result<i64> {
    Ok(bytes_of(&format!("/proc/{pid}/smaps_rollup"), "Private_Dirty:")? as i64)
}

fn counted() -> Result<Vec<i64>> {
    COUNTED.iter().map(|(key, _)| Ok(bytes_of("/proc/meminfo", key)? as i64)).collect()
}

/// Something else on the machine may have freed more than the copies took.
fn kib(bytes: i64) -> String {
    format!("{} KiB", bytes / 1024)
}
