//! `pando ps`.

use std::process::ExitCode;

use anyhow::Result;
use api::{ExitStatus, PausedSandbox, Sandbox, SandboxState};
use base::text;
use client::Client;

use crate::output;

/// List sandboxes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print identifiers only.
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Instead, list the paused sandboxes of the store, whichever node paused them, and the node that holds each. With -q only those that no
    /// node holds: they can be resumed here.
    #[arg(long)]
    paused: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    if args.paused {
        return paused(&args, client).await;
    }
    let sandboxes = client.sandboxes().await?;
    if args.json {
        output::json(&sandboxes)?;
    } else if args.quiet {
        sandboxes.iter().for_each(|sandbox| outln!("{}", sandbox.id));
    } else {
        list(&sandboxes);
    }
    Ok(ExitCode::SUCCESS)
}

async fn paused(args: &Args, client: &Client) -> Result<ExitCode> {
    let sandboxes = client.paused().await?;
    if args.json {
        output::json(&sandboxes)?;
    } else if args.quiet {
        sandboxes.iter().filter(|sandbox| sandbox.holder.is_none()).for_each(|sandbox| outln!("{}", sandbox.id));
    } else {
        let this = client.node().await?.id;
        let row = |sandbox: &PausedSandbox| {
            [
                sandbox.id.to_string(),
                sandbox.template.to_string(),
                format!("{} ago", text::age(output::since_ms(sandbox.paused_ms))),
                match &sandbox.holder {
                    None => "-".to_owned(),
                    Some(node) if *node == this => "this node".to_owned(),
                    Some(node) => format!("node {node}"),
                },
            ]
        };
        let rows: Vec<_> = sandboxes.iter().map(row).collect();
        output::table(["ID", "TEMPLATE", "PAUSED", "IN THE HANDS OF"], &rows);
    }
    Ok(ExitCode::SUCCESS)
}

/// With the reasons of their ends, if any is known.
fn list(sandboxes: &[Sandbox]) {
    let head = ["ID", "TEMPLATE", "STATE", "AGE", "START", "FORKED FROM"];
    if sandboxes.iter().all(|sandbox| sandbox.reason.is_none()) {
        return output::table(head, &sandboxes.iter().map(row).collect::<Vec<_>>());
    }
    let [id, template, state, age, start, parent] = head;
    let with_reason = |sandbox: &Sandbox| {
        let [id, template, state, age, start, parent] = row(sandbox);
        [id, template, state, age, start, parent, sandbox.reason.clone().unwrap_or_default()]
    };
    let rows: Vec<_> = sandboxes.iter().map(with_reason).collect();
    output::table([id, template, state, age, start, parent, "BECAUSE"], &rows);
}

fn row(sandbox: &Sandbox) -> [String; 6] {
    [
        sandbox.id.to_string(),
        sandbox.template.to_string(),
        state(sandbox.state),
        text::age(output::since_ms(sandbox.created_ms)),
        text::micros(sandbox.start_us),
        sandbox.parent.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
    ]
}

/// A state in a word or two.
pub(super) fn state(state: SandboxState) -> String {
    match state {
        SandboxState::Running => "running".to_owned(),
        SandboxState::Pausing => "pausing".to_owned(),
        SandboxState::Paused => "paused".to_owned(),
        SandboxState::Exited(ExitStatus::Code(code)) => format!("exited ({code})"),
        SandboxState::Exited(ExitStatus::Signal(signal)) => format!("killed ({signal})"),
        SandboxState::Exited(ExitStatus::Unknown) => "exited (unknown)".to_owned(),
        SandboxState::Lost => "lost".to_owned(),
    }
}
