//! `pando pause`.

use std::process::ExitCode;

use anyhow::Result;
use base::text;

use crate::{
    exit,
    output::{self, Progress},
    sandbox_id::{Among, SandboxName},
    target::{Kept, Target},
};

const EXAMPLES: &str = "\
Examples:
    pando pause s0123456789ab
    pando pause --files-only s0123456789ab
    pando resume s0123456789ab          on this node, or on any that reaches the object store";

/// Put running sandboxes into the object store, and free their memory and processes.
///
/// After the kept instant the program does nothing: no output, no file, no answer. `pando resume` continues the same sandbox from there. If the
/// sandbox cannot be paused, it goes on, and the message tells why (exit code 1; 5 if the program cannot be captured, for example because
/// a command runs beside it). A sandbox that is already paused is an error.
///
/// With --files-only, every running sandbox can be paused: its processes end, and `pando resume` continues with its files, its host name and
/// its machine id, and without a program.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Identifiers of the sandboxes, their beginnings, or their names.
    #[arg(value_name = "SANDBOX", required = true)]
    ids: Vec<SandboxName>,
    /// Keep files only, and end the processes.
    #[arg(long)]
    files_only: bool,
    /// Print JSON: one document for each sandbox.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for name in &args.ids {
        // The others are paused all the same.
        match pause(name, args.files_only, target).await {
            Ok(kept) if args.json => output::json(&kept)?,
            Ok(kept) => print(&kept),
            Err(error) => code = exit::report(&error),
        }
    }
    Ok(code)
}

async fn pause(name: &SandboxName, files_only: bool, target: &dyn Target) -> Result<Kept> {
    let id = name.find(Among::Node, target).await?;
    let mut progress = Progress::new();
    let paused = target.pause(&id, files_only, &mut progress).await;
    progress.clear();
    paused
}

fn print(kept: &Kept) {
    outln!("{}", kept.sandbox.id);
    match (kept.memory_bytes, kept.stored_memory_bytes, kept.layer_bytes) {
        (Some(memory), Some(stored), Some(layer)) => errln!(
            "{} of memory take {} in the store, file changes {}; {} in all",
            text::bytes(memory),
            text::bytes(stored),
            text::bytes(layer),
            text::micros(kept.total_us)
        ),
        _ => errln!("paused in {}", text::micros(kept.total_us)),
    }
}
