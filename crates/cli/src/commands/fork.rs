//! `pando fork`.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use base::text;

use super::{
    create::{print_started, report_failures},
    interrupts, removed_again,
};
use crate::{
    output,
    sandbox_id::{Among, SandboxName},
    target::{Fork, Target},
};

/// Fork a running sandbox. It goes on; the copies start from this instant.
///
/// A paused sandbox can be forked as well, whichever node has paused it. It stays paused.
///
/// Copies have its processes, memory, open files and changed files, and forks of the volumes that it can write. Commands of `pando exec` go on
/// in them, with their terminals. TCP connections to other sandboxes and hosts are reset in the copies. A sandbox that holds something that cannot
/// be forked is refused (exit code 5, with the reasons). With --files-only, every running sandbox can be forked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identifier of the sandbox, its beginning, or its name.
    #[arg(value_name = "SANDBOX")]
    id: SandboxName,
    /// Number of copies.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    count: u32,
    /// Copy its files only: the copies have no program.
    #[arg(long)]
    files_only: bool,
    /// How long the copies live: 30s, 2m, 8h, 7d; 30 days at most. Default: 5 minutes from a server.
    #[arg(long, value_name = "TIME", value_parser = super::template::parse_time)]
    timeout: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    let id = args.id.find(Among::Store, target).await?;
    let options = Fork { count: args.count, files_only: args.files_only, timeout: args.timeout };
    let started = target.fork(&id, &options, &mut interrupts()?).await?;
    let response = started.ok_or_else(removed_again)?;
    if args.json {
        output::json(&response)?;
    } else {
        print_started(&response.sandboxes);
        match response.pause_us {
            Some(pause_us) => {
                errln!("{id} stood still for {}; {} in all", text::micros(pause_us), text::micros(response.total_us));
            }
            None => errln!("forked in {}", text::micros(response.total_us)),
        }
    }
    Ok(report_failures(&response.failures))
}
