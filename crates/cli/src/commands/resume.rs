//! `pando resume`.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;

use super::create::print_started;
use crate::{
    exit, output,
    sandbox_id::{Among, SandboxName},
    target::{Resume, Shown, Target},
};

/// Continue paused sandboxes: the same ones, with id, host name, machine id, memory and files.
///
/// Any node that reaches the object store and has the image can resume one. If several try at once, exactly one does.
/// On the node where it was paused, its output goes on in the same log. Established connections are reset. A sandbox
/// that is not paused is an error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identifiers of the sandboxes, their beginnings, or their names.
    #[arg(value_name = "SANDBOX", required = true)]
    ids: Vec<SandboxName>,
    /// Resume it although another node holds it, because that node was killed in between. If that node comes back, the sandbox may run twice.
    #[arg(long)]
    force: bool,
    /// Continue with files only: as the same machine, booted anew, and without its program.
    #[arg(long)]
    files_only: bool,
    /// How long it lives from now on: 30s, 2m, 8h, 7d; 30 days at most. Default: 5 minutes from a server.
    #[arg(long, value_name = "TIME", value_parser = super::template::parse_time)]
    timeout: Option<Duration>,
    /// Print JSON: one document for each sandbox.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    let options = Resume { force: args.force, files_only: args.files_only, timeout: args.timeout };
    let mut code = ExitCode::SUCCESS;
    let mut resumed = Vec::new();
    for name in &args.ids {
        // The others are resumed all the same.
        match resume(name, &options, target).await {
            Ok(sandbox) if args.json => output::json(&sandbox)?,
            Ok(sandbox) => resumed.push(sandbox),
            Err(error) => code = exit::report(&error),
        }
    }
    print_started(&resumed);
    Ok(code)
}

async fn resume(name: &SandboxName, options: &Resume, target: &dyn Target) -> Result<Shown> {
    let id = name.find(Among::Store, target).await?;
    target.resume(&id, options).await
}
