//! `pando rm`.

use std::{io::IsTerminal, process::ExitCode};

use anyhow::{Context, Result};
use api::{Sandbox, SandboxState};
use client::Client;

use crate::{
    exit::{self, Failure},
    output,
    sandbox_id::{Among, SandboxName},
};

/// Remove sandboxes, running, paused or ended, with all that they wrote except their volumes. Prints the identifiers of the removed ones.
///
/// A paused sandbox that is removed cannot be resumed on any node. If any sandbox is paused, --all asks first on a terminal, and needs --force
/// elsewhere.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["ids", "all"]))]
pub(crate) struct Args {
    /// Identifiers of the sandboxes, or their beginnings.
    ids: Vec<SandboxName>,
    /// Remove every sandbox of the node.
    #[arg(long)]
    all: bool,
    /// With --all: do not ask about paused sandboxes.
    #[arg(short, long, requires = "all")]
    force: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    if args.all {
        return remove_all(args.force, client).await;
    }
    let mut code = ExitCode::SUCCESS;
    for name in &args.ids {
        // The others are removed all the same.
        match remove(name, client).await {
            Ok(id) => outln!("{id}"),
            Err(error) => code = exit::report(&error),
        }
    }
    Ok(code)
}

async fn remove(name: &SandboxName, client: &Client) -> Result<base::id::SandboxId> {
    let id = name.find(Among::Store, client).await?;
    client.remove(&id).await?;
    Ok(id)
}

async fn remove_all(force: bool, client: &Client) -> Result<ExitCode> {
    let agreed = force || agree(&client.sandboxes().await?)?;
    // One that is paused in between was not asked about.
    let removed = if agreed { client.remove_all().await? } else { client.remove_all_but_paused().await? };
    removed.sandboxes.iter().for_each(|id| outln!("{id}"));
    Ok(ExitCode::SUCCESS)
}

/// Whether the user wants the paused ones among them removed, too. False: there are none.
fn agree(sandboxes: &[Sandbox]) -> Result<bool> {
    let is_paused = |sandbox: &&Sandbox| matches!(sandbox.state, SandboxState::Paused | SandboxState::Pausing);
    let paused = sandboxes.iter().filter(is_paused).count();
    if paused == 0 {
        return Ok(false);
    }
    let what = match paused {
        1 => format!(
            "1 of {} sandboxes is paused: to remove it destroys it for good, in the store as well",
            sandboxes.len()
        ),
        _ => format!(
            "{paused} of {} sandboxes are paused: to remove them destroys them for good, in the store as well",
            sandboxes.len()
        ),
    };
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        let message = format!("{what}. Nothing was removed; `pando rm --all --force` removes all");
        return Err(Failure::Usage(message).into());
    }
    output::ask(format_args!("{what}. Remove all {}? [y/N] ", sandboxes.len())).context("cannot ask")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(true),
        _ => Err(Failure::Interrupted("nothing was removed".to_owned()).into()),
    }
}
