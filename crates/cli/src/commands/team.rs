//! `pando team`: the teams of a server and what each may use. The command opens the server's database: the server need not run.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;
use control::{Quota, Slug, Team};
use serde::Serialize;

use crate::{database::Database, output};

/// Names this command among those that open the database.
const CLIENT: &str = "pando-team";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Ls(Ls),
    Quota(Change),
}

/// List the teams of a server with their quotas. `pando key create --team NAME` makes a team.
#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    database: Database,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Change what a team may use at a time, and print it. Without an option it only prints.
///
/// Running sandboxes stay, even if they are more. The server answers a request beyond the quota with 429 and `Retry-After`.
/// It reads the quota for each request.
#[derive(Debug, clap::Args)]
pub(crate) struct Change {
    #[command(flatten)]
    database: Database,
    /// The team.
    #[arg(value_name = "NAME")]
    team: Slug,
    /// Running sandboxes.
    #[arg(long, value_name = "N")]
    sandboxes: Option<u32>,
    /// Memory of running sandboxes, in MiB.
    #[arg(long, value_name = "MIB")]
    memory_mb: Option<u32>,
    /// CPUs of running sandboxes.
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Starts and resumes under way.
    #[arg(long, value_name = "N")]
    starts: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A team, as it is printed.
#[derive(Debug, Serialize)]
struct Shown {
    name: String,
    sandboxes: u64,
    memory_mb: u64,
    cpus: u64,
    starts: u64,
}

impl From<&Team> for Shown {
    fn from(team: &Team) -> Self {
        let Quota { sandboxes, memory_mb, cpus, starts } = team.quota;
        Self { name: team.slug.to_string(), sandboxes, memory_mb, cpus, starts }
    }
}

pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Ls(Ls { database, json }) => {
            let control = database.open(CLIENT).await?;
            let teams = control.teams().list().await?;
            control.close().await;
            print(&teams.iter().map(Shown::from).collect::<Vec<_>>(), json)
        }
        Command::Quota(args) => change(args).await,
    }
}

async fn change(args: Change) -> Result<ExitCode> {
    let control = args.database.open(CLIENT).await?;
    let Some(mut team) = control.teams().by_slug(&args.team).await? else {
        bail!("there is no team {}: `pando team ls` lists them", args.team)
    };
    let before = team.quota;
    let wanted = |new: Option<u32>, old: u64| new.map_or(old, u64::from);
    team.quota = Quota {
        sandboxes: wanted(args.sandboxes, before.sandboxes),
        memory_mb: wanted(args.memory_mb, before.memory_mb),
        cpus: wanted(args.cpus, before.cpus),
        starts: wanted(args.starts, before.starts),
    };
    if team.quota != before {
        control.teams().set_quota(&team.id, team.quota).await?;
    }
    control.close().await;
    print(&[Shown::from(&team)], args.json)
}

fn print(teams: &[Shown], json: bool) -> Result<ExitCode> {
    if json {
        output::json(&teams)?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |team: &Shown| {
        let numbers = [team.sandboxes, team.memory_mb, team.cpus, team.starts].map(|number| number.to_string());
        let [sandboxes, memory, cpus, starts] = numbers;
        [team.name.clone(), sandboxes, memory, cpus, starts]
    };
    let rows: Vec<_> = teams.iter().map(row).collect();
    output::table(["TEAM", "SANDBOXES", "MEMORY (MIB)", "CPUS", "STARTS"], &rows);
    Ok(ExitCode::SUCCESS)
}
