//! `pando inspect`.

use std::process::ExitCode;

use anyhow::Result;
use api::SandboxDetail;
use base::id::SandboxId;

use super::ps::state;
use crate::{client::Client, output};

/// Show everything about a sandbox.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identifier of the sandbox.
    id: SandboxId,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    let detail: SandboxDetail = client.get(&format!("/sandboxes/{}", args.id)).await?;
    if args.json {
        output::json(&detail)?;
    } else {
        print(&detail);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(detail: &SandboxDetail) {
    let sandbox = &detail.sandbox;
    outln!("id         {}", sandbox.id);
    outln!("template   {}", sandbox.template);
    if let Some(parent) = &sandbox.parent {
        outln!("forked of  {parent}");
    }
    outln!("state      {}", state(sandbox.state));
    if let Some(reason) = &sandbox.reason {
        outln!("because    its memory could not be had: {reason}");
    }
    outln!("uptime     {}", output::age(detail.uptime_ms));
    outln!("started in {}", output::micros(sandbox.start_us));
    outln!("memory     {} resident, {} its share", output::bytes(detail.rss_bytes), output::bytes(detail.pss_bytes));
    outln!("cgroup     {}", detail.cgroup);
    outln!("directory  {}", detail.directory);
    outln!("layers     {}", detail.layers.join("\n           "));
    for mount in &sandbox.volumes {
        outln!("volume     {}", super::volume::describe_mount(mount));
    }
    outln!("");
    let row = |process: &api::ProcessInfo| {
        [
            process.pid.to_string(),
            process.inner_pid.to_string(),
            process.threads.to_string(),
            output::bytes(process.rss_bytes),
            output::bytes(process.pss_bytes),
            process.name.clone(),
        ]
    };
    let rows: Vec<_> = detail.processes.iter().map(row).collect();
    output::table(["PID", "PID INSIDE", "THREADS", "RESIDENT", "SHARE", "NAME"], &rows);
}
