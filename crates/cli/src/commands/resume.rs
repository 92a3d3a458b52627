//! `pando resume`.

use std::process::ExitCode;

use anyhow::Result;
use api::ResumeRequest;
use client::Client;

use super::run::print_started;
use crate::{
    output,
    sandbox_id::{Among, SandboxName},
};

/// Continue a paused sandbox: the same one, with its id, host name, machine id, memory and files.
///
/// Any node that reaches the object store and has the image can resume it. If several try at once, exactly one does. On the node where it was
/// paused, its output goes on in the same log. Established connections are reset. A sandbox that is not paused is an error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identifier of the sandbox, or its beginning.
    id: SandboxName,
    /// Resume it although another node holds it, because that node was killed in between. If that node comes back, the sandbox may run twice.
    #[arg(long)]
    force: bool,
    /// Continue with its files only: as the same machine, booted anew, and without its program.
    #[arg(long)]
    files_only: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    let id = args.id.find(Among::Store, client).await?;
    let sandbox = client.resume(&id, &ResumeRequest { force: args.force, memory: !args.files_only }).await?;
    if args.json {
        output::json(&sandbox)?;
    } else {
        print_started(&[sandbox]);
    }
    Ok(ExitCode::SUCCESS)
}
