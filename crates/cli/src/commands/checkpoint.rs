//! `pando checkpoint`.

mod transfer;

use std::process::ExitCode;

use anyhow::Result;
use api::{Checkpoint, CheckpointRequest};
use base::id::{SandboxId, TemplateName};
use base::text;
use client::Client;

use crate::{
    exit::Failure,
    output::{self, Progress},
    sandbox_id::{Among, SandboxName},
};

const EXAMPLES: &str = "\
Examples:
    pando checkpoint s0123456789ab --name warm      take one; the sandbox goes on
    pando create warm -n 5                          on this node, or on any that reaches the object store
    pando checkpoint ls";

/// Keep a running sandbox in the object store, as it is now: memory, kernel state, changed files and volumes.
///
/// The sandbox stands still for milliseconds and goes on while its memory is stored. `pando create NAME` starts copies, on this node or on any
/// node that reaches the store and has the same image.
///
/// With --files-only, the checkpoint has the changed files and volumes of any running sandbox, whatever processes it has. Its copies have no
/// program.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Identifier of the sandbox, or its beginning.
    #[arg(required = true)]
    id: Option<SandboxName>,
    /// Name of the checkpoint: small letters, digits, '-', '_' and '.'. Default: the template's name with a suffix.
    #[arg(long)]
    name: Option<TemplateName>,
    /// Replace the checkpoint of that name.
    #[arg(long, requires = "name")]
    replace: bool,
    /// Keep its files only.
    #[arg(long)]
    files_only: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List checkpoints.
    Ls(ListArgs),
    /// Show everything about a checkpoint.
    Inspect(InspectArgs),
    /// Remove a checkpoint. Sandboxes that were started from it run on.
    Rm(NameArgs),
    /// Read, open and unpack all of a checkpoint, and name what is damaged. Exits with 1 if something is damaged.
    Verify(transfer::VerifyArgs),
    /// Write a checkpoint and its volumes into one file, for another store. THE FILE IS NOT ENCRYPTED: it has the program's memory and
    /// files, with every secret that the program knows. Encrypt it on its way: `pando checkpoint export NAME - | age -r KEY > FILE`.
    Export(transfer::ExportArgs),
    /// Read a checkpoint from a file. Everything in it is checked before it gets its name. A checkpoint is a program that will run:
    /// import files only from people whose programs you would run.
    Import(transfer::ImportArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct InspectArgs {
    /// Name of the checkpoint.
    name: TemplateName,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct NameArgs {
    /// Name of the checkpoint.
    name: TemplateName,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    match (args.command, args.id) {
        (Some(Command::Ls(args)), _) => list(&args, client).await?,
        (Some(Command::Inspect(args)), _) => inspect(&args, client).await?,
        (Some(Command::Rm(NameArgs { name })), _) => client.remove_checkpoint(&name).await?,
        (Some(Command::Verify(args)), _) => return transfer::verify(&args, client).await,
        (Some(Command::Export(args)), _) => transfer::export(&args, client).await?,
        (Some(Command::Import(args)), _) => transfer::import(&args, client).await?,
        (None, Some(id)) => {
            let id = id.find(Among::Node, client).await?;
            let request = CheckpointRequest { name: args.name, replace: args.replace, memory: !args.files_only };
            take(&id, &request, args.json, client).await?
        }
        (None, None) => return Err(Failure::Usage("name a sandbox".to_owned()).into()),
    }
    Ok(ExitCode::SUCCESS)
}

async fn take(id: &SandboxId, request: &CheckpointRequest, json: bool, client: &Client) -> Result<()> {
    let mut progress = Progress::new();
    let taken = client.take_checkpoint(id, request, |stage| progress.show(&output::stage(stage))).await;
    progress.clear();
    let checkpoint = taken?;
    if json {
        return output::json(&checkpoint);
    }
    outln!("{}", checkpoint.name);
    note_hidden(&checkpoint);
    errln!(
        "{id} stood still for {}; {} of memory take {}, file changes {}",
        text::micros(checkpoint.pause_us),
        text::bytes(checkpoint.memory_bytes),
        text::bytes(checkpoint.stored_memory_bytes),
        text::bytes(checkpoint.layer_bytes)
    );
    Ok(())
}

/// Why `create` does not start it here, and what to do about that.
fn hidden_by(name: &TemplateName) -> String {
    format!(
        "on this node `pando create {name}` starts the template of that name; to start the checkpoint, remove the template's sandboxes, then run `pando template rm {name}`"
    )
}

/// Tells who has just made it.
fn note_hidden(checkpoint: &Checkpoint) {
    if checkpoint.hidden {
        errln!("pando: note: {}", hidden_by(&checkpoint.name));
    }
}

async fn inspect(args: &InspectArgs, client: &Client) -> Result<()> {
    let checkpoint = client.checkpoint(&args.name).await?;
    if args.json {
        return output::json(&checkpoint);
    }
    outln!("name       {}", checkpoint.name);
    outln!("taken      {} ago", text::age(output::since_ms(checkpoint.created_ms)));
    outln!("manifest   {}", checkpoint.manifest);
    outln!("command    {}", text::one_line(&checkpoint.command.join(" ")));
    outln!("image      {}", text::one_line(&checkpoint.image.to_string()));
    outln!("pause      {}", text::micros(checkpoint.pause_us));
    outln!(
        "memory     {}, of which {} are zeros or equal to others; {} stored",
        text::bytes(checkpoint.memory_bytes),
        text::bytes(checkpoint.redundant_bytes),
        text::bytes(checkpoint.stored_memory_bytes)
    );
    outln!("files      {} of changes stored", text::bytes(checkpoint.layer_bytes));
    for volume in &checkpoint.volumes {
        outln!("volume     {} on {}, state {}", volume.volume, volume.path, volume.state.manifest);
    }
    if checkpoint.hidden {
        outln!("hidden     {}", hidden_by(&checkpoint.name));
    }
    Ok(())
}

async fn list(args: &ListArgs, client: &Client) -> Result<()> {
    let checkpoints = client.checkpoints().await?;
    if args.json {
        return output::json(&checkpoints);
    }
    let row = |checkpoint: &Checkpoint| {
        [
            if checkpoint.hidden { format!("{} (hidden)", checkpoint.name) } else { checkpoint.name.to_string() },
            text::age(output::since_ms(checkpoint.created_ms)),
            text::bytes(checkpoint.memory_bytes),
            text::bytes(checkpoint.stored_memory_bytes + checkpoint.layer_bytes),
            checkpoint.command.join(" "),
        ]
    };
    let rows: Vec<_> = checkpoints.iter().map(row).collect();
    output::table(["NAME", "AGE", "MEMORY", "STORED", "COMMAND"], &rows);
    Ok(())
}
