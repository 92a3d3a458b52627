//! `pando logs`.

use std::{io::Write, process::ExitCode};

use anyhow::Result;
use base::text;
use client::Client;

use crate::sandbox_id::{Among, SandboxName};

/// Show the standard output and standard error of a sandbox's program. Escape sequences are passed on, as with `exec`: add `| cat -v` if you
/// do not trust the program.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identifier of the sandbox, or its beginning.
    id: SandboxName,
    /// Follow the output until the program ends.
    #[arg(short, long)]
    follow: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    let id = args.id.find(Among::Node, client).await?;
    let mut printed = client.logs(&id, args.follow).await?;
    let mut stdout = std::io::stdout();
    while let Some(bytes) = printed.next().await? {
        // A reader such as `head` that has enough ends it without a complaint.
        if stdout.write_all(&bytes).and_then(|()| stdout.flush()).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    // Nothing in its output says so.
    if let Some(reason) = client.sandbox(&id).await?.sandbox.reason {
        errln!("pando: the program ended: {}", text::one_line(&reason));
    }
    Ok(ExitCode::SUCCESS)
}
