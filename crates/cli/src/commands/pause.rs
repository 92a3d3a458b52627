//! `pando pause`.

use std::process::ExitCode;

use anyhow::Result;
use api::PauseRequest;
use base::text;
use client::Client;

use crate::{
    output::{self, Progress},
    sandbox_id::{Among, SandboxName},
};

const EXAMPLES: &str = "\
Examples:
    pando pause s0123456789ab
    pando pause --files-only s0123456789ab
    pando resume s0123456789ab          on this node, or on any that reaches the object store";

/// Put a running sandbox into the object store, and free its memory and processes.
///
/// After the kept instant the program does nothing: no output, no file, no answer. `pando resume` continues the same sandbox from there. If the
/// sandbox cannot be paused, it goes on, and the message tells why (exit code 1; 5 if the program cannot be captured, for example because it
/// has a child process). A sandbox that is already paused is an error.
///
/// With --files-only, every running sandbox can be paused: its processes end, and `pando resume` continues with its files, its host name and
/// its machine id, and without a program.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Identifier of the sandbox, or its beginning.
    id: SandboxName,
    /// Keep its files only, and end its processes.
    #[arg(long)]
    files_only: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    let mut progress = Progress::new();
    let id = args.id.find(Among::Node, client).await?;
    let paused = client
        .pause(&id, &PauseRequest { memory: !args.files_only }, |stage| progress.show(&output::stage(stage)))
        .await;
    progress.clear();
    let paused = paused?;
    if args.json {
        output::json(&paused)?;
        return Ok(ExitCode::SUCCESS);
    }
    outln!("{}", paused.sandbox.id);
    errln!(
        "{} of memory take {} in the store, file changes {}; {} in all",
        text::bytes(paused.memory_bytes),
        text::bytes(paused.stored_memory_bytes),
        text::bytes(paused.layer_bytes),
        text::micros(paused.total_us)
    );
    Ok(ExitCode::SUCCESS)
}
