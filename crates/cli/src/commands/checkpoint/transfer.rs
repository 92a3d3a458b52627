//! `pando checkpoint verify`, `export` and `import`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use api::CheckpointVerification;
use base::id::TemplateName;
use base::text;
use client::Client;

use crate::{
    commands::store::{exit_code, verdict},
    output, transfer,
};

#[derive(Debug, clap::Args)]
pub(super) struct VerifyArgs {
    /// Name of the checkpoint.
    name: TemplateName,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {
    /// Name of the checkpoint.
    name: TemplateName,
    /// The new file, readable by its owner only; -: standard output.
    file: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(super) struct ImportArgs {
    /// The file; -: standard input.
    file: PathBuf,
    /// Name of the checkpoint here. Default: the name that it had.
    #[arg(long)]
    name: Option<TemplateName>,
    /// Replace the checkpoint of that name.
    #[arg(long)]
    replace: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn verify(args: &VerifyArgs, client: &Client) -> Result<ExitCode> {
    let seen = client.verify_checkpoint(&args.name).await?;
    if args.json {
        output::json(&seen)?;
    } else {
        let CheckpointVerification { segments, chunks, pages, files, damage, unreachable, .. } = &seen;
        outln!("read {segments} segments, {chunks} chunks, {pages} pages of memory, {files} files");
        for found in damage {
            outln!("damaged: {}: {}", found.part, found.problem);
        }
        for found in unreachable {
            outln!("out of reach: {}: {}", found.part, found.problem);
        }
        outln!("{}", verdict(damage.len(), unreachable.len()));
    }
    Ok(exit_code(seen.damage.len(), seen.unreachable.len()))
}

pub(super) async fn export(args: &ExportArgs, client: &Client) -> Result<()> {
    let advice = format!("the node's log says why, and `pando checkpoint verify {}` what is damaged", args.name);
    if let Some(bytes) = transfer::write(&args.file, client.export_checkpoint(&args.name), &advice).await? {
        errln!("{}: {}, not encrypted", args.file.display(), text::bytes(bytes));
    }
    Ok(())
}

pub(super) async fn import(args: &ImportArgs, client: &Client) -> Result<()> {
    let file = transfer::read(&args.file)?;
    let checkpoint = client.import_checkpoint(args.name.as_ref(), args.replace, file).await?;
    if args.json {
        return output::json(&checkpoint);
    }
    outln!("{}", checkpoint.name);
    super::note_hidden(&checkpoint);
    Ok(())
}
