//! `pando key`: API keys of a server's teams. The command opens the server's database: the server need not run.

use std::{collections::BTreeSet, process::ExitCode};

use anyhow::{Result, bail};
use base::text::age;
use clap::Subcommand;
use control::{Control, KeyInfo, Quota, Scope, Slug, Team};
use serde::Serialize;

use crate::{database::Database, output};

/// Names this command among those that open the database.
const CLIENT: &str = "pando-key";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Create(Create),
    Ls(Ls),
    Revoke(Revoke),
}

/// Whose keys.
#[derive(Debug, clap::Args)]
struct Of {
    #[command(flatten)]
    database: Database,
    /// The team: small letters, digits and '-'.
    #[arg(long, value_name = "NAME", default_value = "default")]
    team: Slug,
}

/// Make a key and print it. It is shown this once: the server keeps only its hash.
#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    #[command(flatten)]
    of: Of,
    /// What it is for, in lists.
    #[arg(default_value = "key")]
    name: String,
    /// It may look, but not change anything.
    #[arg(long)]
    read_only: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// List the keys of a team.
#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    of: Of,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Revoke keys. Running servers refuse them within seconds.
#[derive(Debug, clap::Args)]
pub(crate) struct Revoke {
    #[command(flatten)]
    of: Of,
    /// Identifiers, as `pando key ls` lists them. The beginning of one is enough if no other key has it.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

/// A key, as it is printed.
#[derive(Debug, Serialize)]
struct Shown {
    id: String,
    name: String,
    mask: String,
    scopes: Vec<&'static str>,
    created: String,
    used: Option<String>,
    /// The key itself, when it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl Shown {
    fn of(info: &KeyInfo, key: Option<String>) -> Self {
        Self {
            id: info.id.to_string(),
            name: info.name.clone(),
            mask: info.mask.clone(),
            scopes: info.scopes.iter().map(|scope| scope.as_str()).collect(),
            created: info.created.to_string(),
            used: info.used.map(|at| at.to_string()),
            key,
        }
    }
}

impl Of {
    async fn open(&self) -> Result<Control> {
        self.database.open(CLIENT).await
    }

    async fn team(&self, control: &Control) -> Result<Team> {
        let missing = || format!("there is no team {}: `pando key create --team {}` makes it", self.team, self.team);
        control.teams().by_slug(&self.team).await?.ok_or_else(|| anyhow::anyhow!(missing()))
    }
}

pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Create(args) => create(args).await,
        Command::Ls(args) => list(args).await,
        Command::Revoke(args) => revoke(args).await,
    }
}

async fn create(Create { of, name, read_only, json }: Create) -> Result<ExitCode> {
    let control = of.open().await?;
    let team = match control.teams().by_slug(&of.team).await? {
        Some(team) => team,
        None => control.teams().create(&of.team, of.team.as_str(), Quota::default()).await?,
    };
    let scope = if read_only { Scope::Read } else { Scope::All };
    let (info, key) = control.keys().create(&team.id, &name, &BTreeSet::from([scope])).await?;
    control.close().await;
    if json {
        output::json(&Shown::of(&info, Some(key)))?;
    } else {
        outln!("{key}");
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(Ls { of, json }: Ls) -> Result<ExitCode> {
    let control = of.open().await?;
    let keys = control.keys().list(&of.team(&control).await?.id).await?;
    let now = control.now();
    control.close().await;
    if json {
        output::json(&keys.iter().map(|key| Shown::of(key, None)).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |key: &KeyInfo| {
        let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.as_str()).collect();
        let used =
            key.used.map_or_else(|| "never".to_owned(), |at| format!("{} ago", age(now.since(at).as_millis() as u64)));
        let made = format!("{} ago", age(now.since(key.created).as_millis() as u64));
        [key.id.to_string(), key.name.clone(), key.mask.clone(), scopes.join(","), made, used]
    };
    output::table(["ID", "NAME", "KEY", "MAY", "MADE", "USED"], &keys.iter().map(row).collect::<Vec<_>>());
    Ok(ExitCode::SUCCESS)
}

async fn revoke(Revoke { of, ids }: Revoke) -> Result<ExitCode> {
    let control = of.open().await?;
    let team = of.team(&control).await?;
    let keys = control.keys().list(&team.id).await?;
    for wanted in &ids {
        let mut found = keys.iter().filter(|key| key.id.as_str().starts_with(wanted.as_str()));
        match (found.next(), found.next()) {
            (Some(key), None) => control.keys().revoke(&team.id, &key.id).await?,
            (None, _) => bail!("team {} has no key {wanted}: `pando key ls` lists them", of.team),
            (Some(_), Some(_)) => bail!("{wanted} is the beginning of more than one key: give more of it"),
        }
    }
    control.close().await;
    Ok(ExitCode::SUCCESS)
}
