//! Files of volumes, without a mount.

use std::path::PathBuf;

use anyhow::Result;
use base::id::VolumeName;
use base::text;
use client::{Client, VolumeState};

use crate::transfer;

/// Write all of a volume, or of a snapshot, into a tar archive. THE FILE IS NOT ENCRYPTED.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// Name of the volume, or VOLUME@SNAPSHOT.
    volume: VolumeState,
    /// The new file, readable by its owner only; -: standard output.
    file: PathBuf,
}

/// Unpack a tar archive into a volume. Its files replace those of the same path.
#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    /// Name of the volume.
    volume: VolumeName,
    /// The file; -: standard input.
    file: PathBuf,
    /// Directory of the volume in which it is unpacked.
    #[arg(long, value_name = "DIR", default_value = "/")]
    to: String,
}

/// Print a file of a volume, or of a snapshot.
#[derive(Debug, clap::Args)]
pub(crate) struct CatArgs {
    /// Name of the volume, or VOLUME@SNAPSHOT.
    pub(super) volume: VolumeState,
    /// Path of the file, from the volume's top directory.
    pub(super) path: String,
}

pub(super) async fn export(args: &ExportArgs, client: &Client) -> Result<()> {
    let advice = format!("the node's log says why, and `pando volume verify {}` what is damaged", args.volume.volume);
    if let Some(bytes) = transfer::write(&args.file, client.export_volume(&args.volume), &advice).await? {
        errln!("{}: {}, not encrypted", args.file.display(), text::bytes(bytes));
    }
    Ok(())
}

pub(super) async fn import(args: &ImportArgs, client: &Client) -> Result<()> {
    Ok(client.import_volume(&args.volume, &args.to, transfer::read(&args.file)?).await?)
}

pub(super) async fn cat(args: &CatArgs, client: &Client) -> Result<()> {
    let advice = "the node's log says why";
    let file = client.read_file(&args.volume, &args.path);
    transfer::write(std::path::Path::new(transfer::STANDARD), file, advice).await.map(drop)
}
