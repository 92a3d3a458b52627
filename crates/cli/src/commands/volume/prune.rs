//! `pando volume prune`.

use std::{collections::BTreeSet, fmt::Display, io::IsTerminal, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use base::id::{SandboxId, VolumeName};
use client::Client;
use serde::Serialize;

use crate::{
    exit::{self, Failure},
    output,
    sandbox_id::Among,
    target::Target,
};

/// Remove the volumes that forks of sandboxes got, where the sandbox is gone: those named VOLUME-SANDBOX. Prints what is
/// removed. Their snapshots are treated as by `pando volume rm`.
///
/// Volumes with other names stay, and so do those that are mounted. It asks first on a terminal, and needs --force
/// elsewhere. A node that shares its store does not know the sandboxes of other nodes, and refuses.
#[derive(Debug, clap::Args)]
pub(crate) struct PruneArgs {
    /// Only volumes that were made this long ago: a start that is under way has its volumes before its sandbox.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = super::super::template::parse_time)]
    pub(super) older: Duration,
    /// Do not ask.
    #[arg(short, long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What was removed, as it is printed.
#[derive(Debug, Serialize)]
struct Pruned<Name> {
    volumes: Vec<Name>,
}

pub(super) async fn prune(args: &PruneArgs, client: &Client) -> Result<ExitCode> {
    if client.node().await?.shares_store {
        let message = "this node shares its store, and volumes may be those of sandboxes on other nodes: nothing was removed. \
                       `pando volume rm` removes volumes by name, and `pando --url` prunes those of a team";
        return Err(Failure::Usage(message.to_owned()).into());
    }
    let left = orphans(args.older, client).await?;
    remove(left, args, async |name: VolumeName| Ok(client.remove_volume(&name.to_string().parse()?).await?)).await
}

/// Asks, removes these volumes one by one, and prints them.
pub(super) async fn remove<Name: Display + Serialize + Clone>(
    left: Vec<Name>,
    args: &PruneArgs,
    remove: impl AsyncFn(Name) -> Result<()>,
) -> Result<ExitCode> {
    if !left.is_empty() && !args.force {
        agree(&left)?;
    }
    let mut code = ExitCode::SUCCESS;
    let mut volumes = Vec::new();
    for name in left {
        // The others are removed all the same.
        match remove(name.clone()).await {
            Ok(()) => volumes.push(name),
            Err(error) => code = exit::report(&error),
        }
    }
    if args.json {
        output::json(&Pruned { volumes })?;
    } else {
        volumes.iter().for_each(|name| outln!("{name}"));
    }
    Ok(code)
}

/// Volumes of sandboxes that are gone from this node and from the store.
async fn orphans(older: Duration, client: &Client) -> Result<Vec<VolumeName>> {
    let volumes = client.volumes().await?;
    let there: BTreeSet<SandboxId> = client.list(Among::Store).await?.into_iter().map(|shown| shown.id).collect();
    let is_orphan = |volume: &api::volume::Volume| {
        let is_old = volume.created_ms.is_some_and(|made| output::since_ms(made) >= older.as_millis() as u64);
        let unused = volume.open.as_ref().is_none_or(|open| open.holders.is_empty());
        is_old && unused && sandbox_of(&volume.name).is_some_and(|id| !there.contains(&id))
    };
    Ok(volumes.into_iter().filter(is_orphan).map(|volume| volume.name).collect())
}

/// The sandbox whose fork of a volume this is.
pub(super) fn sandbox_of(name: &VolumeName) -> Option<SandboxId> {
    name.as_str().rsplit_once('-')?.1.parse().ok()
}

fn agree(left: &[impl Display]) -> Result<()> {
    let names: Vec<String> = left.iter().map(ToString::to_string).collect();
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        let message = format!(
            "these volumes would be removed: {}. Nothing was removed; `pando volume prune --force` removes them",
            names.join(", ")
        );
        return Err(Failure::Usage(message).into());
    }
    output::ask(format_args!("Remove {}? [y/N] ", names.join(", "))).context("cannot ask")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::Interrupted("nothing was removed".to_owned()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_end_with_a_sandbox_are_of_one() {
        let of = |name: &str| sandbox_of(&name.parse().unwrap()).map(|id| id.to_string());
        assert_eq!(of("ws-s0123456789ab").as_deref(), Some("s0123456789ab"));
        for other in ["ws", "ws-2", "s0123456789ab", "ws-s0123456789ab-2", "ws-s0123456789"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
