//! `pando timeout`.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use base::id::SandboxId;

use crate::{
    exit,
    sandbox_id::{Among, SandboxName},
    target::Target,
};

const EXAMPLES: &str = "\
Examples:
    pando timeout 30m web
    pando timeout 8h $(pando ls -q --label job=42)";

/// Set how long sandboxes live from now on. At the end of its time a server kills a sandbox, or pauses it if it was
/// created so. Prints the identifiers.
///
/// It needs a server: a node keeps no lifetimes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The time: 30s, 2m, 8h, 7d; 30 days at most.
    #[arg(value_name = "TIME", value_parser = super::template::parse_time)]
    timeout: Duration,
    /// Identifiers of the sandboxes, their beginnings, or their names.
    #[arg(value_name = "SANDBOX", required = true)]
    ids: Vec<SandboxName>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let mut ids = Vec::new();
    for name in &args.ids {
        // The others are set all the same.
        match set(name, args.timeout, target).await {
            Ok(id) => ids.push(id),
            Err(error) => code = exit::report(&error),
        }
    }
    super::kill::print(ids, args.json)?;
    Ok(code)
}

async fn set(name: &SandboxName, timeout: Duration, target: &dyn Target) -> Result<SandboxId> {
    let id = name.find(Among::Node, target).await?;
    target.set_timeout(&id, timeout).await?;
    Ok(id)
}
