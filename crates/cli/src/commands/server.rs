//! `pando server`: the servers that share a database. The command opens the database: no server need run.

use std::process::ExitCode;

use anyhow::Result;
use base::text::age;
use clap::Subcommand;
use control::Server;
use serde::Serialize;

use crate::{database::Database, output};

/// Names this command among those that open the database.
const CLIENT: &str = "pando-server";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Ls(Ls),
    Rm(Rm),
}

/// List the servers that share a database, with their sandboxes.
#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    database: Database,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Forget servers that will not come back. Prints the sandboxes that are gone with them.
///
/// What ran on them is gone for its team. Any other server can resume what is paused.
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    #[command(flatten)]
    database: Database,
    /// Names, as `pando server ls` lists them.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A server, as it is printed.
#[derive(Debug, Serialize)]
struct Shown {
    name: String,
    seen: String,
    running: u64,
    paused: u64,
}

pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Ls(args) => list(args).await,
        Command::Rm(args) => remove(args).await,
    }
}

async fn list(Ls { database, json }: Ls) -> Result<ExitCode> {
    let control = database.open(CLIENT).await?;
    let (servers, now) = (control.servers().list().await?, control.now());
    control.close().await;
    if json {
        let shown = |server: &Server| Shown {
            name: server.name.clone(),
            seen: server.seen.to_string(),
            running: server.running,
            paused: server.paused,
        };
        output::json(&servers.iter().map(shown).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |server: &Server| {
        let seen = format!("{} ago", age(now.since(server.seen).as_millis() as u64));
        [server.name.clone(), seen, server.running.to_string(), server.paused.to_string()]
    };
    output::table(["NAME", "SEEN", "RUNNING", "PAUSED"], &servers.iter().map(row).collect::<Vec<_>>());
    Ok(ExitCode::SUCCESS)
}

async fn remove(Rm { database, names, json }: Rm) -> Result<ExitCode> {
    let control = database.open(CLIENT).await?;
    let mut sandboxes = Vec::new();
    for name in &names {
        sandboxes.extend(control.servers().remove(name).await?);
    }
    control.close().await;
    super::kill::print(sandboxes, json)?;
    Ok(ExitCode::SUCCESS)
}
