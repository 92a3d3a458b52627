//! `pando bench`: measured comparisons. Each compares within one run on one machine; ratios carry over, times do not.

mod cold;
mod criu;
mod node;
mod program;
mod report;
mod start;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Subcommand;

use crate::output;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Starts: cold, the kernel's bare fork, and Pando's, of the same program.
    Start(StartArgs),
}

/// Measure starts. A private node is started for it and removed again; needs root, python3 and some minutes.
#[derive(Debug, clap::Args)]
pub(crate) struct StartArgs {
    /// Starts measured one at a time.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(5..=1000))]
    rounds: u32,
    /// Leave out the long ones: 50 cold starts at once, 500 MB and 1 GB.
    #[arg(long)]
    quick: bool,
    /// The CRIU to compare with, 4.1 or newer; may be a wrapper script. Without it the one in PATH, if it is new enough.
    #[arg(long, value_name = "PATH")]
    criu: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    let Command::Start(args) = command;
    let report = start::measure(&args).await?;
    if args.json {
        output::json(&report)?
    } else {
        report.print()
    }
    Ok(ExitCode::SUCCESS)
}
