//! `pando tree` and `pando pick`: who was forked from whom, and the choice of one of several forks.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
};

use anyhow::{Context, Result};
use api::Relative;
use base::{id::SandboxId, text::age};
use client::Client;
use serde::Serialize;

use super::ls;
use crate::{
    exit::Failure,
    output,
    sandbox_id::{Among, SandboxName},
};

/// Show which sandboxes of a node were forked from which.
///
/// A sandbox that was removed is shown as long as one descends from it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the tree that this sandbox is in.
    #[arg(value_name = "SANDBOX")]
    sandbox: Option<SandboxName>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Keep one of several forks: remove its siblings.
///
/// Siblings are all sandboxes that were forked from the same one, whether they run or are paused. The one that they were forked from stays, and so do
/// sandboxes that were forked from a sibling. Prints the identifiers of the removed ones.
#[derive(Debug, clap::Args)]
pub(crate) struct PickArgs {
    /// Identifier of the sandbox to keep, its beginning, or its name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxName,
    /// Only list what would be removed.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    let mut all = client.tree().await?;
    if let Some(name) = args.sandbox {
        let id = name.find(Among::Node, client).await?;
        all = family(all, &id);
    }
    if args.json {
        output::json(&all)?;
    } else {
        draw(&all).into_iter().for_each(|line| outln!("{line}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Those that have the same root.
fn family(all: Vec<Relative>, of: &SandboxId) -> Vec<Relative> {
    let parents: BTreeMap<SandboxId, Option<SandboxId>> =
        all.iter().map(|one| (one.id.clone(), one.parent.clone())).collect();
    let root = |id: &SandboxId| {
        let mut root = id.clone();
        while let Some(Some(parent)) = parents.get(&root) {
            root = parent.clone();
        }
        root
    };
    let wanted = root(of);
    all.into_iter().filter(|one| root(&one.id) == wanted).collect()
}

/// A line for each, below the one that it was forked from.
fn draw(all: &[Relative]) -> Vec<String> {
    let known: BTreeSet<&SandboxId> = all.iter().map(|one| &one.id).collect();
    let mut children: BTreeMap<Option<&SandboxId>, Vec<&Relative>> = BTreeMap::new();
    for one in all {
        children.entry(one.parent.as_ref().filter(|parent| known.contains(parent))).or_default().push(one);
    }
    let mut lines = Vec::new();
    // Not by recursion: a chain of forks may be long.
    let mut left: Vec<(&Relative, String, String)> = Vec::new();
    for root in children.get(&None).into_iter().flatten().rev() {
        left.push((root, String::new(), String::new()));
    }
    while let Some((one, head, below)) = left.pop() {
        lines.push(format!("{head}{}", describe(one)));
        let own = children.get(&Some(&one.id)).map(Vec::as_slice).unwrap_or_default();
        for (at, child) in own.iter().enumerate().rev() {
            let (branch, rest) = if at + 1 == own.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            left.push((child, format!("{below}{branch}"), format!("{below}{rest}")));
        }
    }
    lines
}

fn describe(one: &Relative) -> String {
    let ago = |moment_ms: u64| age(output::since_ms(moment_ms));
    let state = match (one.state, one.gone_ms) {
        (Some(state), _) => ls::state(state),
        (None, gone) => format!("removed {} ago", gone.map(ago).unwrap_or_default()),
    };
    let begun = if one.parent.is_some() { "forked" } else { "started" };
    format!("{}  {}  {state}, {begun} {} ago", one.id, one.template, ago(one.created_ms))
}

/// What `pando pick --json` prints.
#[derive(Debug, Serialize)]
struct Picked {
    kept: SandboxId,
    removed: Vec<SandboxId>,
    dry_run: bool,
}

pub(crate) async fn pick(args: PickArgs, client: &Client) -> Result<ExitCode> {
    let kept = args.sandbox.find(Among::Node, client).await?;
    let all = client.tree().await?;
    let siblings = siblings(&all, &kept)?;
    if !args.dry_run {
        for sibling in &siblings {
            client.remove(sibling).await.with_context(|| format!("cannot remove {sibling}"))?;
            if !args.json {
                outln!("{sibling}");
            }
        }
    }
    if args.json {
        output::json(&Picked { kept, removed: siblings, dry_run: args.dry_run })?;
    } else if args.dry_run {
        siblings.iter().for_each(|id| outln!("{id}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn siblings(all: &[Relative], of: &SandboxId) -> Result<Vec<SandboxId>> {
    let parent = all.iter().find(|one| one.id == *of).and_then(|one| one.parent.as_ref());
    let parent = parent.ok_or_else(|| Failure::Usage(format!("sandbox {of} was not forked: it has no siblings")))?;
    let is_sibling = |one: &&Relative| one.parent.as_ref() == Some(parent) && one.id != *of && one.state.is_some();
    Ok(all.iter().filter(is_sibling).map(|one| one.id.clone()).collect())
}

#[cfg(test)]
mod tests {
    use api::SandboxState;

    use super::*;

    fn id(number: u32) -> SandboxId {
        format!("s{number:012x}").parse().unwrap()
    }

    fn one(number: u32, parent: Option<u32>, gone: bool) -> Relative {
        let state = (!gone).then_some(SandboxState::Running);
        let gone_ms = gone.then_some(2);
        Relative {
            id: id(number),
            parent: parent.map(id),
            template: "geo".parse().unwrap(),
            state,
            created_ms: 1,
            gone_ms,
        }
    }

    #[test]
    fn forks_are_drawn_below_their_originals() {
        let all = [
            one(1, None, true),
            one(2, Some(1), false),
            one(3, Some(2), false),
            one(4, Some(1), false),
            one(5, Some(9), false),
        ];
        let lines: Vec<String> = draw(&all).iter().map(|line| line.split("  geo").next().unwrap().to_owned()).collect();
        assert_eq!(
            lines,
            ["s000000000001", "├─ s000000000002", "│  └─ s000000000003", "└─ s000000000004", "s000000000005",]
        );
    }

    #[test]
    fn a_family_has_one_root_and_siblings_are_there() {
        let all = vec![
            one(1, None, true),
            one(2, Some(1), false),
            one(3, Some(2), false),
            one(4, Some(1), false),
            one(6, None, false),
        ];
        assert_eq!(family(all.clone(), &id(3)).len(), 4);
        assert_eq!(siblings(&all, &id(2)).unwrap(), [id(4)]);
        assert!(siblings(&all, &id(6)).is_err());
    }
}
