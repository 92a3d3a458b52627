//! `pando image`.

pub(super) mod pull;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use api::{Image, ImportRequest, KeptImage};
use base::text;
use client::Client;

use super::{interrupted, interruptible, interrupts};
use crate::output::{self, Progress};

const EXAMPLES: &str = "\
Examples:
    docker save python:3.12-slim -o python.tar
    pando image import python.tar
    pando template build py --image python:3.12-slim -- python3 -m http.server 8080
    pando image import rootfs.tar.zst --name tools";

/// What can be done with images.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Pull(pull::Args),
    Import(ImportArgs),
    /// List the images of the node.
    Ls(JsonArgs),
    /// Show what an image says of its programs.
    Inspect(InspectArgs),
    /// Forget images. Templates that were built of them stay.
    Rm(RemoveArgs),
    /// Remove images that lost their names, layers that no image has, unless something stands on them, and interrupted downloads.
    Prune(JsonArgs),
}

/// Take in an image from an archive or directory on the node's machine.
///
/// It may be an archive of `docker save`, an oci-layout (a directory or an archive of one), or the tarball of a root filesystem: plain, or
/// compressed by gzip, xz or zstd. Layers are checked against their digests, and shared by all images that have them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ImportArgs {
    /// The archive, or the directory of an oci-layout.
    path: PathBuf,
    /// What it is called on the node. Default: as it calls itself. The tarball of a root filesystem has no name of its own.
    #[arg(long)]
    name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct JsonArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// Name of the image.
    #[arg(value_parser = parse_name)]
    name: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// Names of the images.
    #[arg(required = true, value_parser = parse_name)]
    names: Vec<String>,
}

/// Only what can be a name: others mean something else in a URL.
fn parse_name(text: &str) -> Result<String, String> {
    match text.parse() {
        Ok(Image::Named(name)) => Ok(name),
        Ok(Image::Host | Image::Path(_)) => Err("give the name of an image, as `pando image ls` shows it".to_owned()),
        Err(error) => Err(error),
    }
}

pub(crate) async fn run(command: Command, client: &Client) -> Result<ExitCode> {
    match command {
        Command::Pull(args) => pull::run(args, client).await,
        Command::Import(args) => import(args, client).await,
        Command::Ls(args) => interruptible("", list(&args, client)).await,
        Command::Inspect(args) => interruptible("", inspect(&args, client)).await,
        Command::Rm(args) => interruptible("", remove(&args, client)).await,
        Command::Prune(args) => interruptible("a removal that was begun is completed", prune(&args, client)).await,
    }
}

async fn import(args: ImportArgs, client: &Client) -> Result<ExitCode> {
    let mut interrupts = interrupts()?;
    // The node may have another working directory.
    let request = ImportRequest { path: std::path::absolute(&args.path)?, name: args.name };
    let mut progress = Progress::new();
    let show = |done, all| progress.show(&format!("{done} of {all} layers"));
    let imported = client.import_image_until(&mut interrupts, &request, show).await;
    progress.clear();
    let image = imported?.ok_or_else(|| interrupted("the node completes the import"))?;
    if args.json {
        output::json(&image)?;
    } else {
        outln!("{}: {} in {} layers", image.name, text::bytes(image.bytes), image.layers);
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(args: &JsonArgs, client: &Client) -> Result<ExitCode> {
    let images = client.images().await?;
    if args.json {
        output::json(&images)?;
        return Ok(ExitCode::SUCCESS);
    }
    let column = |name, text: fn(&KeptImage) -> String| output::Column::always(name, images.iter().map(text).collect());
    output::columns(&[
        column("NAME", |image| image.name.clone()),
        column("SIZE", |image| text::bytes(image.bytes)),
        column("LAYERS", |image| image.layers.to_string()),
        column("MADE", |image| format!("{} ago", text::age(output::since_ms(image.created_ms)))),
    ]);
    Ok(ExitCode::SUCCESS)
}

async fn inspect(args: &InspectArgs, client: &Client) -> Result<ExitCode> {
    let image = client.image(&args.name).await?;
    if args.json {
        output::json(&image)?;
        return Ok(ExitCode::SUCCESS);
    }
    let KeptImage { name, digest, created_ms, bytes, layers, env, user, working_dir, entrypoint, command, ports } =
        image;
    outln!("name        {}", text::one_line(&name));
    outln!("digest      {digest}");
    outln!("made        {} ago", text::age(output::since_ms(created_ms)));
    outln!("size        {} in {layers} layers", text::bytes(bytes));
    outln!("user        {}", text::one_line(if user.is_empty() { "root" } else { &user }));
    outln!("directory   {}", text::one_line(if working_dir.is_empty() { "/" } else { &working_dir }));
    outln!("entrypoint  {}", text::one_line(&entrypoint.join(" ")));
    outln!("command     {}", text::one_line(&command.join(" ")));
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    outln!("ports       {}", ports.join(", "));
    for (key, value) in env {
        outln!("env         {}", text::one_line(&format!("{key}={value}")));
    }
    Ok(ExitCode::SUCCESS)
}

async fn remove(args: &RemoveArgs, client: &Client) -> Result<ExitCode> {
    for name in &args.names {
        client.remove_image(name).await?;
        outln!("{name}");
    }
    Ok(ExitCode::SUCCESS)
}

async fn prune(args: &JsonArgs, client: &Client) -> Result<ExitCode> {
    let pruned = client.prune_images().await?;
    if args.json {
        output::json(&pruned)?;
    } else {
        let count = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let downloads = match pruned.downloads {
            0 => String::new(),
            downloads => format!(" and {}", count(downloads, "interrupted download")),
        };
        outln!("removed {}{downloads}", count(pruned.layers, "layer"));
    }
    Ok(ExitCode::SUCCESS)
}
