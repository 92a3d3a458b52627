//! `pando rm`.

use std::process::ExitCode;

use anyhow::Result;
use api::Removed;
use base::id::SandboxId;

use crate::{client::Client, exit};

/// Remove sandboxes, running or not, with all that they wrote. Prints the identifiers of those that are gone.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["ids", "all"]))]
pub(crate) struct Args {
    /// Identifiers of the sandboxes.
    ids: Vec<SandboxId>,
    /// Remove every sandbox of the node.
    #[arg(long)]
    all: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    if args.all {
        let removed: Removed = client.delete("/sandboxes").await?;
        removed.sandboxes.iter().for_each(|id| outln!("{id}"));
        return Ok(ExitCode::SUCCESS);
    }
    let mut code = ExitCode::SUCCESS;
    for id in &args.ids {
        // The others are removed all the same.
        match client.delete::<Removed>(&format!("/sandboxes/{id}")).await {
            Ok(_) => outln!("{id}"),
            Err(error) => code = exit::report(&error),
        }
    }
    Ok(code)
}
