//! `pando self-test`: hidden; one run of the probes that `pando doctor --self-test` and a node's start ask for.

use std::{path::PathBuf, process::ExitCode};

use node::self_test::Scope;

use crate::output::{self, Log};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// An existing directory for its files.
    #[arg(long)]
    dir: PathBuf,
    /// Names its control group.
    #[arg(long)]
    group: String,
    #[arg(long, value_enum)]
    scope: ScopeArg,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ScopeArg {
    Nothing,
    Registers,
    All,
}

/// Runs the probes in this thread, the only one of the process, and prints what they found as JSON.
pub(crate) fn run(args: &Args, log: &Log) -> ExitCode {
    output::start_logging(log);
    let scope = match args.scope {
        ScopeArg::Nothing => Scope::Nothing,
        ScopeArg::Registers => Scope::Registers,
        ScopeArg::All => Scope::All,
    };
    let findings = node::self_test::run(&args.dir, &args.group, scope);
    output::exit_code(match output::json(&findings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::exit::report(&error),
    })
}
