//! `pando connect`.

use std::{io::ErrorKind, process::ExitCode};

use anyhow::{Context, Result};
use client::Client;
use tokio::io::{AsyncWriteExt, copy, split, stdin, stdout};

use crate::sandbox_id::{Among, SandboxName};

/// Connect standard input and output to a TCP port inside a sandbox.
///
/// For example `printf 'GET / HTTP/1.0\r\n\r\n' | pando connect ID 8080`, or as an ssh ProxyCommand.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identifier of the sandbox, or its beginning.
    id: SandboxName,
    /// TCP port inside the sandbox.
    port: u16,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    let id = args.id.find(Among::Node, client).await?;
    let connection = client.dial(&id, args.port).await?;
    let (mut from_program, mut to_program) = split(connection);
    let sending = tokio::spawn(async move {
        let _ = copy(&mut stdin(), &mut to_program).await;
        // The program sees the end of the input and may still answer.
        let _ = to_program.shutdown().await;
    });
    let mut out = stdout();
    let copied = copy(&mut from_program, &mut out).await;
    let flushed = out.flush().await;
    sending.abort();
    match copied.map(drop).and(flushed) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // A reader such as `head` that has enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error).context("the connection broke"),
    }
}
