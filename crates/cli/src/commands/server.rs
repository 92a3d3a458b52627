//! `pando server`: the servers that share a database. The command opens the database: no server need run.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Result, bail};
use base::text::age;
use clap::Subcommand;
use control::{Control, Server, SystemClock};
use node::config::STATE_DIR_DEFAULT;
use serde::Serialize;

use crate::output;

/// Names this command among those that open the database.
const CLIENT: &str = "pando-server";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Ls(Ls),
    Rm(Rm),
}

/// Which database.
#[derive(Debug, clap::Args)]
struct Of {
    /// State directory of a server.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR_DEFAULT)]
    state: PathBuf,
    /// Database of the servers, if it is not in the state directory: postgres://USER@HOST/DATABASE.
    #[arg(long, value_name = "URL")]
    database: Option<String>,
}

/// List the servers that share a database, with their sandboxes.
#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    of: Of,
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
    of: Of,
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

impl Of {
    async fn open(&self) -> Result<Control> {
        let clock = Arc::new(SystemClock);
        let file = self.state.join("control.db");
        match &self.database {
            Some(url) => Ok(Control::open(url, CLIENT, clock).await?),
            None if file.exists() => Ok(Control::open_file(&file, CLIENT, clock).await?),
            None => bail!("{} has no server's database: name one with --state or --database", self.state.display()),
        }
    }
}

pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Ls(args) => list(args).await,
        Command::Rm(args) => remove(args).await,
    }
}

async fn list(Ls { of, json }: Ls) -> Result<ExitCode> {
    let control = of.open().await?;
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

async fn remove(Rm { of, names, json }: Rm) -> Result<ExitCode> {
    let control = of.open().await?;
    let mut sandboxes = Vec::new();
    for name in &names {
        sandboxes.extend(control.servers().remove(name).await?);
    }
    control.close().await;
    super::kill::print(sandboxes, json)?;
    Ok(ExitCode::SUCCESS)
}
