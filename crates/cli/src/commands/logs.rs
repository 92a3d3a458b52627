//! `pando logs`.

use std::{io::Write, process::ExitCode};

use anyhow::{Context, Result};
use base::id::SandboxId;
use http_body_util::BodyExt;

use crate::client::Client;

/// Show the output of a sandbox's program, standard output and standard error as they came.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identifier of the sandbox.
    id: SandboxId,
    /// Go on until the program ends.
    #[arg(short, long)]
    follow: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    let path = format!("/sandboxes/{}/logs?follow={}", args.id, args.follow);
    let mut body = client.get_stream(&path).await?.into_body();
    let mut stdout = std::io::stdout();
    while let Some(frame) = body.frame().await {
        let bytes = frame.context("the node's answer broke off")?.into_data().unwrap_or_default();
        // A reader such as `head` that has enough ends it without a complaint.
        if stdout.write_all(&bytes).and_then(|()| stdout.flush()).is_err() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}
