//! `pando keeper`: hidden; its standard input is the server's socket.

use std::{
    os::fd::{AsFd, OwnedFd},
    process::ExitCode,
};

use anyhow::{Context, Result};

use super::node::MemoryArgs;
use crate::{
    exit,
    output::{self, Log},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identifier of the node; names its control group.
    #[arg(long)]
    node: String,
    #[command(flatten)]
    memory: MemoryArgs,
}

/// Runs the keeper in this thread, the only one of the process.
pub(crate) fn run(args: &Args, log: &Log) -> ExitCode {
    output::start_logging(log);
    match keep(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error.context("the keeper failed")),
    }
}

fn keep(args: &Args) -> Result<()> {
    let socket: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().context("cannot take the socket")?;
    // Children must not inherit it as their standard input: the server would never see its end.
    let null = std::fs::File::open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdin(null).context("cannot replace standard input")?;
    keeper::run(socket, &args.node, args.memory.nodes.clone())?;
    Ok(())
}
