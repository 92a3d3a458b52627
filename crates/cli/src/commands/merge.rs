//! `pando merge`.

use std::process::ExitCode;

use anyhow::Result;
use api::{FileChange, Merge, MergeConflict, MergeRequest};
use base::text;
use client::Client;

use super::diff;
use crate::{
    output,
    sandbox_id::{Among, SandboxName},
};

const EXAMPLES: &str = "\
Examples:
    pando merge web web-fork --dry-run              what the fork has changed and web has not
    pando merge web web-fork --path /home/user      only what is below one directory
    pando merge A B && pando kill B                 take over what B has done, and remove it";

/// Bring what one sandbox has changed in its files into another.
///
/// Both descend from one sandbox, or one of them from the other. What SANDBOX and OTHER have changed since that fork is compared entry by entry: what
/// only OTHER has changed is taken over, with owners, modes and links, and what only SANDBOX has changed stays. If both have changed an entry in
/// different ways, this is a conflict: all conflicts are named, and nothing is changed. The content of a file is taken whole, it is not merged line by
/// line.
///
/// A line for each entry that is taken, as `pando diff SANDBOX OTHER` shows it, and `C` for a conflict. Volumes, memory and processes stay as they
/// are; what makes a sandbox a machine of its own is left out. Both may run: a program that has a file open keeps the old one, and what is written
/// meanwhile may be merged or not. A node remembers the last 8 forks that a sandbox descends from.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Identifier of the sandbox that gets the changes, its beginning, or its name.
    #[arg(value_name = "SANDBOX")]
    into: SandboxName,
    /// The sandbox that has them.
    #[arg(value_name = "OTHER")]
    from: SandboxName,
    /// Only show what would be done. Exits with 1 if there are conflicts.
    #[arg(long)]
    dry_run: bool,
    /// Only what is at this absolute path or below it. Can be repeated.
    #[arg(long = "path", value_name = "PATH")]
    paths: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    let into = args.into.find(Among::Node, client).await?;
    let from = args.from.find(Among::Node, client).await?;
    let found = client.merge(&into, &MergeRequest { from, dry_run: args.dry_run, paths: args.paths }).await?;
    if args.json {
        output::json(&found)?;
    } else {
        lines(&found).into_iter().for_each(|line| outln!("{line}"));
    }
    Ok(if found.conflicts.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn lines(found: &Merge) -> Vec<String> {
    found.files.iter().map(diff::file).chain(found.conflicts.iter().map(conflict)).collect()
}

fn conflict(MergeConflict { path, directory, ours, theirs }: &MergeConflict) -> String {
    let path = text::one_line(&if *directory { format!("{path}/") } else { path.clone() });
    let ours =
        ours.map_or_else(|| "a mount of SANDBOX is in the way".to_owned(), |ours| format!("SANDBOX {}", word(ours)));
    format!("C {path}  {ours}, OTHER {}", word(*theirs))
}

fn word(change: FileChange) -> &'static str {
    match change {
        FileChange::Added => "added it",
        FileChange::Removed => "removed it",
        FileChange::Changed => "changed it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_says_what_each_has_done() {
        let of = |ours, theirs, directory| conflict(&MergeConflict { path: "/a".into(), directory, ours, theirs });
        let both = of(Some(FileChange::Removed), FileChange::Changed, true);
        assert_eq!(both, "C /a/  SANDBOX removed it, OTHER changed it");
        assert_eq!(of(None, FileChange::Added, false), "C /a  a mount of SANDBOX is in the way, OTHER added it");
    }
}
