//! `pando mcp`.

use std::process::ExitCode;

use anyhow::Result;

const EXAMPLES: &str = "\
Examples:
    eval \"$(pando env)\" && pando mcp
    PANDO_URL=http://127.0.0.1:7443 PANDO_KEY=e2b_... pando mcp

The server is that of PANDO_URL with PANDO_KEY, or of E2B_API_URL or E2B_DOMAIN with E2B_API_KEY.";

/// Serve sandboxes as tools for agents, by the Model Context Protocol on standard input and output.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args) -> Result<ExitCode> {
    ::mcp::serve(&::mcp::Address::of_environment()?).await?;
    Ok(ExitCode::SUCCESS)
}
