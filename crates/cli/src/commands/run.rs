//! `pando run`.

use std::process::ExitCode;

use anyhow::Result;
use api::{ErrorDetail, Interpreter, RunRequest, Sandbox, VolumeMount};
use base::id::TemplateName;
use base::text;
use client::Client;

use super::{interrupts, removed_again};
use crate::{exit::code_of, output};

/// Start sandboxes from a template or a checkpoint. Prints the identifier of each and how long its start took.
///
/// The first run of a checkpoint on a node restores it there; it is a template of that node afterwards. After a restart of the node, the first
/// run of a template starts its program again, which takes as long as the program takes to get ready. Ctrl-C removes what was started.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the template or checkpoint.
    template: TemplateName,
    /// Number of sandboxes to start, side by side.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    count: u32,
    /// Start in a second, slower way, which tests compare with the usual one.
    #[arg(long)]
    stepping: bool,
    /// Mount a volume, or a snapshot of one, on a mount point of the template. May be repeated. With `:ro` the mount is read-only; if another
    /// node writes the volume, it stays the writer, and its commits show here some seconds later.
    #[arg(long = "volume", value_name = "VOLUME[@SNAPSHOT]:DIR[:ro]", value_parser = super::volume::parse_mount)]
    volumes: Vec<VolumeMount>,
    /// Print identifiers only, one per line.
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    let interpreter = if args.stepping { Interpreter::Stepping } else { Interpreter::InProcess };
    let request = RunRequest { count: args.count, interpreter, volumes: args.volumes };
    let started = client.run_until(&mut interrupts()?, &args.template, &request).await?;
    let response = started.ok_or_else(removed_again)?;
    response.notices.iter().for_each(|notice| errln!("pando: note: {notice}"));
    if args.json {
        output::json(&response)?;
    } else if args.quiet {
        response.sandboxes.iter().for_each(|sandbox| outln!("{}", sandbox.id));
    } else {
        print_started(&response.sandboxes);
        if response.sandboxes.len() > 1 {
            errln!("{} sandboxes in {}", response.sandboxes.len(), text::micros(response.total_us));
        }
    }
    Ok(report_failures(&response.failures))
}

/// Ids and start times, and which volumes each has if any has one.
pub(super) fn print_started(sandboxes: &[Sandbox]) {
    if sandboxes.is_empty() {
        return;
    }
    if sandboxes.iter().any(|sandbox| !sandbox.volumes.is_empty()) {
        let volumes = |sandbox: &Sandbox| {
            let mounts = sandbox.volumes.iter().map(super::volume::describe_mount);
            mounts.collect::<Vec<_>>().join(", ")
        };
        let row = |sandbox: &Sandbox| [sandbox.id.to_string(), text::micros(sandbox.start_us), volumes(sandbox)];
        let rows: Vec<_> = sandboxes.iter().map(row).collect();
        return output::table(["ID", "START", "VOLUMES"], &rows);
    }
    let rows: Vec<_> =
        sandboxes.iter().map(|sandbox| [sandbox.id.to_string(), text::micros(sandbox.start_us)]).collect();
    output::table(["ID", "START"], &rows);
}

/// Prints each failure once, with how often it happened; the exit code is that of the first.
pub(super) fn report_failures(failures: &[ErrorDetail]) -> ExitCode {
    let Some(first) = failures.first() else { return ExitCode::SUCCESS };
    let mut seen: Vec<(&ErrorDetail, usize)> = Vec::new();
    for failure in failures {
        match seen.iter_mut().find(|(other, _)| other.message == failure.message) {
            Some((_, count)) => *count += 1,
            None => seen.push((failure, 1)),
        }
    }
    for (failure, count) in seen {
        errln!("pando: {count} not started: {}", failure.message);
        failure.details.iter().for_each(|line| errln!("    {line}"));
        if let Some(hint) = &failure.hint {
            errln!("hint: {hint}");
        }
    }
    ExitCode::from(code_of(first.code))
}
