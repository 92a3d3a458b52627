//! `pando kill`.

use std::{io::IsTerminal, process::ExitCode};

use anyhow::{Context, Result};
use api::{Removed, SandboxState};
use base::id::SandboxId;

use crate::{
    exit::{self, Failure},
    output,
    sandbox_id::{Among, SandboxName},
    target::{Paused, Shown, Target},
};

/// Remove sandboxes, running, paused or ended, with all that they wrote except their volumes. Prints the identifiers of the removed ones.
///
/// A paused sandbox that is removed cannot be resumed on any node. If any sandbox is paused, --all asks first on a terminal, and needs --force
/// or --running elsewhere.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["ids", "all"]))]
pub(crate) struct Args {
    /// Identifiers of the sandboxes, their beginnings, or their names.
    #[arg(value_name = "SANDBOX")]
    ids: Vec<SandboxName>,
    /// Remove every sandbox of the node, or of the server's team.
    #[arg(long)]
    all: bool,
    /// With --all: do not ask about paused sandboxes.
    #[arg(short, long, requires = "all")]
    force: bool,
    /// With --all: keep paused sandboxes.
    #[arg(long, requires = "all", conflicts_with = "force")]
    running: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let sandboxes = if args.all {
        let agreed = !args.running && (args.force || agree(&target.list(Among::Node).await?)?);
        // One that is paused in between was not asked about.
        target.kill_all(if agreed { Paused::Killed } else { Paused::Kept }).await?
    } else {
        let mut killed = Vec::new();
        for name in &args.ids {
            // The others are removed all the same.
            match kill(name, target).await {
                Ok(id) => killed.push(id),
                Err(error) => code = exit::report(&error),
            }
        }
        killed
    };
    print(sandboxes, args.json)?;
    Ok(code)
}

/// Sandboxes that something was done with.
pub(super) fn print(sandboxes: Vec<SandboxId>, json: bool) -> Result<()> {
    if json {
        return output::json(&Removed { sandboxes });
    }
    sandboxes.iter().for_each(|id| outln!("{id}"));
    Ok(())
}

async fn kill(name: &SandboxName, target: &dyn Target) -> Result<SandboxId> {
    let id = name.find(Among::Store, target).await?;
    target.kill(&id).await?;
    Ok(id)
}

/// Whether the user wants the paused ones among them removed, too. False: there are none.
fn agree(sandboxes: &[Shown]) -> Result<bool> {
    let is_paused = |sandbox: &&Shown| matches!(sandbox.state, SandboxState::Paused | SandboxState::Pausing);
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
        let message =
            format!("{what}. Nothing was removed; `pando kill --all --running` keeps the paused, --force removes all");
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
