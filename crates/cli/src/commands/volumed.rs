//! `pando volumed`: hidden; has the volumes of a node, also when the node has gone.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;

use super::node::{LagArgs, StoreArgs};
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
    lag: LagArgs,
    /// Join the control group whose `cgroup.procs` is the standard input.
    #[arg(long)]
    join: bool,
    /// Which of the processes this one is.
    role: volumed::Role,
}

/// Runs it in this thread, the only one of the process.
pub(crate) fn run(args: &Args, log: &Log) -> ExitCode {
    output::start_logging(log);
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error.context("the process of volumes failed")),
    }
}

fn serve(args: &Args) -> Result<()> {
    let settings = args.store.settings()?;
    if args.join {
        super::join_group()?;
    }
    // All but this program's name, and the role at the end. Whom it starts is in its group.
    let mut arguments: Vec<_> = std::env::args_os().skip(1).filter(|argument| argument != "--join").collect();
    arguments.pop();
    server::run_volumes(args.role, settings, &args.state, args.lag.volumes_lag, arguments)
}
