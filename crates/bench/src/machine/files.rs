//! Files that a sandbox changes, and forks of it.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    node::{Ahead, PrivateNode, Started},
    program,
    report::{Goal, Report, duration, median, progress},
    start,
};

pub(super) const FILES: &str = include_str!("files.py");

/// How much is changed, and how often what is measured.
#[derive(Debug, Clone, Copy)]
struct Extent {
    files: u32,
    mib: u32,
    rounds: u32,
}

/// 2 GB in 100,000 files.
const LONG: Extent = Extent { files: 100_000, mib: 1_600, rounds: 10 };
const SHORT: Extent = Extent { files: 10_000, mib: 160, rounds: 5 };

/// Files that change between two forks.
const TOUCHED: u32 = 2_000;
/// What a neighbour writes meanwhile, in MiB a second.
const NEIGHBOUR: u32 = 200;
/// How long, at least, before the forks beside it begin: until it writes at that rate.
const NEIGHBOUR_AHEAD: Duration = Duration::from_secs(2);

pub(super) async fn measure(quick: bool, report: &mut Report) -> Result<()> {
    let extent = if quick { SHORT } else { LONG };
    for kind in ["btrfs", "copy"] {
        progress(&format!("starting a private node with --layers {kind}"));
        let node = PrivateNode::start_with(Ahead::Yes, &["--layers".into(), kind.into()]).await?;
        // A fork that copies takes as long as that.
        let rounds = if kind == "copy" { extent.rounds.div_ceil(4) } else { extent.rounds };
        let measured = layers(&node, kind, Extent { rounds, ..extent }, report).await;
        node.stop().await?;
        measured?;
    }
    Ok(())
}

async fn layers(node: &PrivateNode, kind: &str, extent: Extent, report: &mut Report) -> Result<()> {
    let Extent { files, mib, rounds } = extent;
    let found = node.layers().await?;
    ensure!(
        found == kind,
        "the private node keeps changes by {found}, not by {kind}: `pando doctor` says what is missing"
    );
    node.build("files", program::python(FILES, &[&program::PORT.to_string()])).await?;
    node.rest().await?;
    progress("starts");
    let started = start::series(node, "files", rounds * 3).await?;
    let times = |of: fn(&Started) -> Duration| started.iter().map(of).collect();
    report.add(format!("{kind}: start from the pool, until it runs"), times(|started| started.running), "");
    let (sandbox, _) = node.start_one("files").await?;
    progress(&format!("{files} files and {mib} MiB"));
    let took = node.ask(&sandbox.id, &format!("fill/{files}/{mib}")).await?;
    report.add(format!("{kind}: {files} files of 4,000 bytes and one of {mib} MiB are written"), vec![took], "");
    forks(node, &sandbox.id, (kind, "the first fork after that"), 1, 0, report).await?;
    let (pause, ready) = forks(node, &sandbox.id, (kind, "fork"), rounds, 0, report).await?;
    forks(node, &sandbox.id, (kind, "fork after 2,000 files changed"), rounds, TOUCHED, report).await?;
    let walk = node.ask(&sandbox.id, "walk").await?;
    report.fact(format!("{kind}: one walk over all entries, in the sandbox"), duration(walk));
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    match kind {
        "btrfs" => {
            report.goal(Goal::at_most("btrfs: pause of a fork", "ms", None, ms(pause), 10.0));
            report.goal(Goal::at_most("btrfs: fork until it runs", "ms", None, ms(ready), 100.0));
        }
        _ => report.goal(Goal::at_most("copy: pause of a fork", "ms", None, ms(pause), 250.0)),
    }
    node.remove_all().await?;
    beside_a_neighbour(node, kind, rounds, report).await
}

/// Forks of a sandbox that has changed little, beside one that writes all the time.
async fn beside_a_neighbour(node: &PrivateNode, kind: &str, rounds: u32, report: &mut Report) -> Result<()> {
    progress(&format!("forks beside a neighbour that writes {NEIGHBOUR} MiB a second"));
    let (neighbour, _) = node.start_one("files").await?;
    let (sandbox, _) = node.start_one("files").await?;
    forks(node, &sandbox.id, (kind, "fork with nothing changed"), rounds, 0, report).await?;
    node.ask(&neighbour.id, &format!("write/{}/{NEIGHBOUR}", 5 + rounds)).await?;
    tokio::time::sleep(NEIGHBOUR_AHEAD).await;
    let what = format!("the same beside {NEIGHBOUR} MiB/s of another sandbox");
    forks(node, &sandbox.id, (kind, &what), rounds, 0, report).await?;
    node.remove_all().await
}

/// Gives the medians of the pause and of the time until the copy runs.
async fn forks(
    node: &PrivateNode,
    id: &base::id::SandboxId,
    (kind, what): (&str, &str),
    rounds: u32,
    touched: u32,
    report: &mut Report,
) -> Result<(Duration, Duration)> {
    progress(what);
    let (mut pauses, mut totals) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        if touched > 0 {
            node.ask(id, &format!("touch/{touched}")).await?;
        }
        let response = node.fork(id, 1).await?;
        pauses.push(Duration::from_micros(response.pause_us));
        totals.push(Duration::from_micros(response.total_us));
        for copy in response.sandboxes {
            node.request(&copy.id).await?;
            node.remove(&copy.id).await?;
        }
    }
    let medians = (median(&pauses), median(&totals));
    report.add(format!("{kind}: {what}, pause"), pauses, "");
    report.add(format!("{kind}: {what}, until it runs"), totals, "");
    Ok(medians)
}
