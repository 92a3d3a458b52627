//! `pando inspect`.

mod uniqueness;

use std::process::ExitCode;

use anyhow::Result;
use api::{MemoryUse, SandboxDetail};
use base::text;
use client::Client;

use super::ls::state;
use crate::{
    output,
    sandbox_id::{Among, SandboxName},
};

/// Show everything about a sandbox.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identifier of the sandbox, or its beginning.
    id: SandboxName,
    /// Only show what it shares with the sandbox or template that it was forked from, and what is its own.
    #[arg(long)]
    uniqueness: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    let detail = client.sandbox(&args.id.find(Among::Node, client).await?).await?;
    if args.uniqueness {
        let (origin, all) = (uniqueness::origin(&detail.sandbox), uniqueness::of(&detail));
        if args.json {
            output::json(&serde_json::json!({ "origin": origin, "aspects": all }))?;
        } else {
            outln!("forked of {origin}\n");
            let rows: Vec<_> = all.iter().map(uniqueness::Aspect::row).collect();
            output::table(["IS", "WHAT", "HERE"], &rows);
        }
    } else if args.json {
        output::json(&detail)?;
    } else {
        print(&detail);
    }
    Ok(ExitCode::SUCCESS)
}

fn describe_limit(memory: &MemoryUse) -> String {
    let peak = memory.peak_bytes.map(|peak| format!(", peak {}", text::bytes(peak))).unwrap_or_default();
    let killed = match memory.killed {
        0 => String::new(),
        1 => "; 1 process was killed at it".to_owned(),
        count => format!("; {count} processes were killed at it"),
    };
    format!("{}{peak}{killed}", text::bytes(memory.limit_bytes))
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
        outln!("because    {}", text::one_line(reason));
    }
    outln!("uptime     {}", text::age(detail.uptime_ms));
    outln!("started in {}", text::micros(sandbox.start_us));
    outln!("memory     {} resident, {} its share", text::bytes(detail.rss_bytes), text::bytes(detail.pss_bytes));
    if let Some(memory) = &detail.memory {
        outln!("limit      {}", describe_limit(memory));
    }
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
            text::bytes(process.rss_bytes),
            text::bytes(process.pss_bytes),
            process.name.clone(),
        ]
    };
    let rows: Vec<_> = detail.processes.iter().map(row).collect();
    output::table(["PID", "PID INSIDE", "THREADS", "RESIDENT", "SHARE", "NAME"], &rows);
}
