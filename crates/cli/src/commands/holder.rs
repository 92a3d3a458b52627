//! `pando holder`: hidden; holds the commands of sandboxes, also when the node has gone.

use std::{path::PathBuf, process::ExitCode};

use crate::{
    exit,
    output::{self, Log},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Of the node.
    #[arg(long)]
    state: PathBuf,
    /// Which of the processes this one is.
    #[arg(value_parser = parse_role)]
    role: holder::Role,
}

fn parse_role(text: &str) -> Result<holder::Role, String> {
    let roles = [holder::Role::Holder, holder::Role::Spare];
    roles.into_iter().find(|role| role.argument() == text).ok_or_else(|| format!("there is no role {text}"))
}

/// Runs it in this thread, the only one of the process.
pub(crate) fn run(args: &Args, log: &Log) -> ExitCode {
    output::start_logging(log);
    // All but this program's name, and the role at the end.
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    arguments.pop();
    match server::run_holder(args.role, &args.state, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error.context("the holder of commands failed")),
    }
}
