//! `pando mcp`.

use std::process::ExitCode;

use anyhow::Result;

use crate::address::Address;

const EXAMPLES: &str = "\
Examples:
    eval \"$(pando env)\" && pando mcp
    PANDO_URL=http://127.0.0.1:7443 PANDO_KEY=e2b_... pando mcp

Without --url and PANDO_URL, the server is that of E2B_API_URL or E2B_DOMAIN, with E2B_API_KEY.";

/// Serve sandboxes as tools for agents, by the Model Context Protocol on standard input and output.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, address: &Address) -> Result<ExitCode> {
    let (url, key) = address.flags();
    ::mcp::serve(&::mcp::Address::find(url, key)?).await?;
    Ok(ExitCode::SUCCESS)
}
