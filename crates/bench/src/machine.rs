//! What a sandbox has of a machine: files that it changes, a network, images, and what all of that costs.

mod files;
mod idle;
mod images;
mod network;

use anyhow::Result;
use clap::ValueEnum;

use super::{MachineArgs, report::Report};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// Changed files, and forks of them.
    Files,
    /// Throughput and latency, beside a plain veth.
    Network,
    /// An import beside `tar -x`; a build of cached steps.
    Images,
    /// A blank of the pool; 500 sandboxes that do nothing.
    Idle,
}

pub(super) async fn measure(args: &MachineArgs) -> Result<Report> {
    let mut report = Report::of("Python servers that make files, and traffic");
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    if wanted(Part::Files) {
        files::measure(args.quick, &mut report).await?;
    }
    if wanted(Part::Network) {
        network::measure(args.quick, &mut report).await?;
    }
    if wanted(Part::Images) {
        images::measure(&mut report).await?;
    }
    if wanted(Part::Idle) {
        idle::blanks(&mut report).await?;
        idle::memory(args.base.as_deref(), &mut report).await?;
    }
    Ok(report)
}
