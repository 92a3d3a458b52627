//! `pando env`.

use std::{collections::BTreeMap, io::Write, path::PathBuf, process::ExitCode};

use anyhow::Result;
use node::config::STATE_DIR_DEFAULT;

use crate::output;

const EXAMPLES: &str = "\
Examples:
    eval \"$(pando env)\"
    pando env --lines > sdk.env                         for docker run --env-file and the like";

/// Print the variables with which the E2B SDKs find the running server: the key, the domain, the certificates.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// State directory of the server.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR_DEFAULT)]
    state: PathBuf,
    /// Print KEY=value lines without `export` and quotes.
    #[arg(long)]
    lines: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "lines")]
    json: bool,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let variables = gateway::env::running(&args.state).await?;
    if args.json {
        output::json(&variables.pairs().iter().cloned().collect::<BTreeMap<_, _>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = if args.lines { variables.lines() } else { variables.shell() };
    // To the letter: a shell or a program reads it.
    output::note_failure(std::io::stdout().write_all(text.as_bytes()));
    Ok(ExitCode::SUCCESS)
}
