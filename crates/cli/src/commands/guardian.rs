//! `pando guardian`: hidden; serves the memory of restored programs, also when its node has gone.

use std::{path::PathBuf, process::ExitCode};

use super::node::StoreArgs;
use crate::{exit, output};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Of the node.
    #[arg(long)]
    state: PathBuf,
    #[command(flatten)]
    store: StoreArgs,
}

/// Runs the guardian in this thread, the only one of the process.
pub(crate) fn run(args: &Args, log: &str) -> ExitCode {
    output::start_logging(log);
    let ran = args.store.settings().and_then(|settings| Ok(node::run_pager(settings, &args.state)?));
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error.context("the pager failed")),
    }
}
