//! `pando fork`.

use std::process::ExitCode;

use anyhow::Result;
use api::ForkRequest;
use base::text;
use client::Client;

use super::{
    interrupts, removed_again,
    run::{print_started, report_failures},
};
use crate::{
    output,
    sandbox_id::{Among, SandboxName},
};

/// Fork a running sandbox. It goes on; the copies start from this instant.
///
/// A paused sandbox can be forked as well, whichever node has paused it. It stays paused.
///
/// Copies have its memory, threads, open files and changed files, and forks of the volumes that it can write. Commands of `pando exec` are
/// not copied. Established TCP connections are reset in the copies. A program with child processes cannot be forked (exit code 5, with the
/// reasons). With --files-only, every running sandbox can be forked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identifier of the sandbox, or its beginning.
    id: SandboxName,
    /// Number of copies.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    count: u32,
    /// Copy its files only: the copies have no program.
    #[arg(long)]
    files_only: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    let id = args.id.find(Among::Store, client).await?;
    let request = ForkRequest { count: args.count, memory: !args.files_only };
    let started = client.fork_until(&mut interrupts()?, &id, &request).await?;
    let response = started.ok_or_else(removed_again)?;
    if args.json {
        output::json(&response)?;
    } else {
        print_started(&response.sandboxes);
        errln!("{id} stood still for {}; {} in all", text::micros(response.pause_us), text::micros(response.total_us));
    }
    Ok(report_failures(&response.failures))
}
