//! `pando ls`.

use std::process::ExitCode;

use anyhow::Result;
use api::{ExitStatus, PausedSandbox, SandboxState};
use base::text;
use client::Client;

use crate::{
    output::{self, Column},
    sandbox_id::Among,
    target::{NAME_LABEL, Shown, Target},
};

/// List sandboxes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print identifiers only.
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Only those with this label. If it is repeated: with all of them.
    #[arg(short, long = "label", value_name = "K=V", value_parser = super::template::parse_variable)]
    labels: Vec<(String, String)>,
    /// Only paused sandboxes. By socket: those of the store, whichever node paused them, and the node that holds each; with -q only those
    /// that no node holds: they can be resumed here.
    #[arg(long, conflicts_with = "labels")]
    paused: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    if let Some(node) = target.as_node().filter(|_| args.paused) {
        return paused(&args, node).await;
    }
    let mut sandboxes = target.list(Among::Node).await?;
    sandboxes.retain(|shown| !args.paused || shown.state == SandboxState::Paused);
    sandboxes.retain(|shown| args.labels.iter().all(|(name, value)| shown.labels.get(name) == Some(value)));
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

/// Names, lifetimes, labels and reasons of ends only if any is known.
fn list(sandboxes: &[Shown]) {
    let always = |head, cell: fn(&Shown) -> String| Column::always(head, sandboxes.iter().map(cell).collect());
    let if_any = |head, cell: fn(&Shown) -> Option<String>| Column::if_any(head, sandboxes.iter().map(cell).collect());
    let columns = [
        always("ID", |shown| shown.id.to_string()),
        if_any("NAME", |shown| shown.name.clone()),
        always("TEMPLATE", |shown| shown.template.clone()),
        always("STATE", |shown| state(shown.state)),
        always("AGE", |shown| text::age(output::since_ms(shown.created_ms))),
        if_any("ENDS IN", |shown| shown.ends_ms.map(|end| text::age(output::until_ms(end)))),
        always("START", super::create::start),
        always("FORKED FROM", |shown| shown.parent.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)),
        if_any("LABELS", labels),
        if_any("BECAUSE", |shown| shown.reason.clone()),
    ];
    output::columns(&columns);
}

/// All but the name.
fn labels(shown: &Shown) -> Option<String> {
    let others = shown.labels.iter().filter(|(name, _)| *name != NAME_LABEL);
    let others: Vec<String> = others.map(|(name, value)| format!("{name}={value}")).collect();
    (!others.is_empty()).then(|| others.join(","))
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
