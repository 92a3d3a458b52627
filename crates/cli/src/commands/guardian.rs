//! `pando guardian`: hidden; serves the memory of restored programs, also when its node has gone.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;

use super::node::{MemoryArgs, StoreArgs};
use crate::{
    exit,
    output::{self, Log},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Of the node.
    #[arg(long)]
    state: PathBuf,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Join the control group whose `cgroup.procs` is the standard input.
    #[arg(long)]
    join: bool,
}

/// Runs the guardian in this thread, the only one of the process.
pub(crate) fn run(args: &Args, log: &Log) -> ExitCode {
    output::start_logging(log);
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error.context("the pager failed")),
    }
}

fn serve(args: &Args) -> Result<()> {
    let settings = args.store.settings()?;
    if args.join {
        super::join_group()?;
    }
    // A page that arrives by fault is taken where the policy of the process says that fills it.
    args.memory.prefer()?;
    server::run_pager(settings, &args.state)
}
