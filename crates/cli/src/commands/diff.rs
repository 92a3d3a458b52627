//! `pando diff`.

use std::process::ExitCode;

use anyhow::Result;
use api::{Differences, FileAspect, FileChange, FileDifference, ProcessInfo};
use base::text;
use client::Client;

use crate::{
    output,
    sandbox_id::{Among, SandboxName},
};

const EXAMPLES: &str = "\
Examples:
    pando diff web web-fork             what the fork has changed
    pando diff A B --json | jq '.files[] | select(.change == \"added\").path'";

/// Show how two sandboxes of a node differ: their files and processes.
///
/// A line for each file that is not the same: `+` only the second has it, `-` only the first has it, `M` both have it, and what differs
/// follows. A directory that only one has is one line. What makes a sandbox a machine of its own (host name, machine id) is left out, and so are
/// volumes (`pando volume diff`). Both may run: what they write meanwhile may be seen or not.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Identifier of the first sandbox, its beginning, or its name.
    #[arg(value_name = "SANDBOX")]
    first: SandboxName,
    /// The second.
    #[arg(value_name = "OTHER")]
    second: SandboxName,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    let first = args.first.find(Among::Node, client).await?;
    let second = args.second.find(Among::Node, client).await?;
    let found = client.differences(&first, &second).await?;
    if args.json {
        output::json(&found)?;
    } else {
        lines(&found).into_iter().for_each(|line| outln!("{line}"));
        if found.truncated {
            errln!("more files differ than these {}", found.files.len());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(found: &Differences) -> Vec<String> {
    let processes = |sign: char, all: &[ProcessInfo]| -> Vec<String> {
        all.iter()
            .map(|process| format!("{sign} process {} ({})", process.inner_pid, text::one_line(&process.name)))
            .collect()
    };
    let files = found.files.iter().map(file);
    let processes = [processes('-', &found.removed_processes), processes('+', &found.added_processes)];
    files.chain(processes.into_iter().flatten()).collect()
}

pub(super) fn file(FileDifference { path, change, aspects, directory }: &FileDifference) -> String {
    let path = text::one_line(&if *directory { format!("{path}/") } else { path.clone() });
    match change {
        FileChange::Added => format!("+ {path}"),
        FileChange::Removed => format!("- {path}"),
        FileChange::Changed => {
            let aspects: Vec<&str> = aspects.iter().map(|aspect| word(*aspect)).collect();
            format!("M {path}  {}", aspects.join(", "))
        }
    }
}

fn word(aspect: FileAspect) -> &'static str {
    match aspect {
        FileAspect::Kind => "kind",
        FileAspect::Content => "content",
        FileAspect::Mode => "mode",
        FileAspect::Owner => "owner",
        FileAspect::Attributes => "attributes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_differs() {
        let of = |path: &str, change, aspects: &[FileAspect], directory| {
            file(&FileDifference { path: path.into(), change, aspects: aspects.to_vec(), directory })
        };
        assert_eq!(of("/opt", FileChange::Added, &[], true), "+ /opt/");
        assert_eq!(of("/etc/x", FileChange::Removed, &[], false), "- /etc/x");
        let aspects = [FileAspect::Content, FileAspect::Mode];
        assert_eq!(of("/a", FileChange::Changed, &aspects, false), "M /a  content, mode");
    }
}
