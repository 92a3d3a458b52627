//! `pando volume` by a server's URL.

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use api::e2b;
use base::{id::VolumeName, text};
use client::{Server, VolumeState};
use control::Time;
use serde::Serialize;

use super::{Command, files, history, prune, state};
use crate::{exit, output, target::needs_node, transfer};

/// A volume, as it is printed. The others of its fields only a node tells.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    name: &'a str,
    id: &'a str,
}

impl<'a> From<&'a e2b::Volume> for Shown<'a> {
    fn from(volume: &'a e2b::Volume) -> Self {
        Self { name: &volume.name, id: &volume.volume_id }
    }
}

pub(super) async fn run(command: Command, server: &Server) -> Result<ExitCode> {
    match command {
        Command::Create(args) => create(&args, server).await?,
        Command::Ls(args) => list(&args, server).await?,
        Command::Inspect(args) => inspect(&args, server).await?,
        Command::Rm(args) => return state::remove_each(&args, async |state| remove_one(state, server).await).await,
        Command::Prune(args) => return prune(&args, server).await,
        Command::Snapshot(args) => snapshot(&args, server).await?,
        Command::Log(args) => log(&args, server).await?,
        Command::Restore(args) => restore(&args, server).await?,
        Command::Fork(args) => fork(&args, server).await?,
        Command::Diff(args) => diff(&args, server).await?,
        Command::Cat(args) => cat(&args, server).await?,
        Command::Usage(_) => return Err(needs_node("volume usage")),
        Command::Export(_) => return Err(needs_node("volume export")),
        Command::Import(_) => return Err(needs_node("volume import")),
        Command::Verify(_) => return Err(needs_node("volume verify")),
        Command::Gc(_) => return Err(needs_node("volume gc")),
        Command::Mount(_) => return Err(needs_node("volume mount")),
        Command::Unmount(_) => return Err(needs_node("volume unmount")),
    }
    Ok(ExitCode::SUCCESS)
}

/// The volume with this name, or with this id: names may have forms that only ids lead to.
async fn find(name: &VolumeName, server: &Server) -> Result<e2b::Volume> {
    let volumes = server.volumes().await?;
    let by = |text: fn(&e2b::Volume) -> &str| volumes.iter().find(|volume| text(volume) == name.as_str());
    let found = by(|volume| &volume.name).or_else(|| by(|volume| &volume.volume_id));
    found.cloned().ok_or_else(|| {
        let message = format!("there is no volume {name} on {}", server.address());
        exit::missing(message, Some("`pando volume ls` lists them"))
    })
}

async fn create(args: &state::CreateArgs, server: &Server) -> Result<()> {
    if args.only_for_a_node() {
        return Err(needs_node("volume create with --inodes, --durability, --uid, --gid or --mode"));
    }
    let made = server.create_volume(args.name.as_str(), args.size).await?;
    print(&made, args.json)
}

fn print(volume: &e2b::Volume, json: bool) -> Result<()> {
    if json {
        return output::json(&Shown::from(volume));
    }
    outln!("{}", volume.name);
    Ok(())
}

async fn list(args: &state::ListArgs, server: &Server) -> Result<()> {
    if args.removed {
        return Err(needs_node("volume ls --removed"));
    }
    let volumes = server.volumes().await?;
    if args.json {
        return output::json(&volumes.iter().map(Shown::from).collect::<Vec<_>>());
    }
    let row = |volume: &e2b::Volume| [volume.name.clone(), volume.volume_id.clone(), age(volume.created_at.as_deref())];
    output::table(["NAME", "ID", "AGE"], &volumes.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

/// How long ago something was.
fn age(moment: Option<&str>) -> String {
    let moment = moment.and_then(|moment| moment.parse::<Time>().ok());
    moment.map_or_else(|| "?".to_owned(), |moment| text::age(output::since_ms(moment.ms())))
}

async fn inspect(args: &state::NameArgs, server: &Server) -> Result<()> {
    let volume = find(&args.name, server).await?;
    if args.json {
        return output::json(&Shown::from(&volume));
    }
    outln!("name  {}", volume.name);
    outln!("id    {}", volume.volume_id);
    Ok(())
}

async fn remove_one(state: &VolumeState, server: &Server) -> Result<()> {
    let id = find(&state.volume, server).await?.volume_id;
    match &state.snapshot {
        Some(snapshot) => server.remove_volume_snapshot(&id, snapshot).await?,
        None => server.remove_volume(&id).await?,
    }
    Ok(())
}

/// A server refuses to remove a volume that is in use.
async fn prune(args: &prune::PruneArgs, server: &Server) -> Result<ExitCode> {
    // In this order: a volume of a new sandbox is not in the list.
    let volumes = server.volumes().await?;
    let there: BTreeSet<String> = server.list().await?.into_iter().map(|sandbox| sandbox.sandbox_id).collect();
    let is_left = |volume: &e2b::Volume| {
        let sandbox = volume.name.parse().ok().and_then(|name| prune::sandbox_of(&name));
        is_old(volume, args.older) && sandbox.is_some_and(|id| !there.contains(id.as_str()))
    };
    let left: Vec<e2b::Volume> = volumes.into_iter().filter(is_left).collect();
    let names = left.iter().map(|volume| volume.name.clone()).collect();
    prune::remove(names, args, async |name| {
        let volume = left.iter().find(|volume| volume.name == name).context("it is not in the list")?;
        Ok(server.remove_volume(&volume.volume_id).await?)
    })
    .await
}

/// Whether a volume was made at least so long ago. One whose age the server does not tell was not.
fn is_old(volume: &e2b::Volume, older: Duration) -> bool {
    let made = volume.created_at.as_ref().and_then(|made| made.parse::<Time>().ok());
    made.is_some_and(|made| output::since_ms(made.ms()) >= older.as_millis() as u64)
}

async fn snapshot(args: &history::SnapshotArgs, server: &Server) -> Result<()> {
    let id = find(&args.volume, server).await?.volume_id;
    let taken = server.snapshot_volume(&id, args.snapshot.as_ref(), args.note.as_deref()).await?;
    if args.json {
        return output::json(&taken);
    }
    outln!("{}", taken.name);
    Ok(())
}

async fn log(args: &history::LogArgs, server: &Server) -> Result<()> {
    let snapshots = server.volume_snapshots(&find(&args.volume, server).await?.volume_id).await?;
    if args.json {
        return output::json(&snapshots);
    }
    let row = |snapshot: &e2b::VolumeSnapshot| {
        [snapshot.name.clone(), age(Some(&snapshot.created_at)), snapshot.note.clone().unwrap_or_default()]
    };
    history::table(&snapshots.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

async fn restore(args: &history::RestoreArgs, server: &Server) -> Result<()> {
    let id = find(&args.volume, server).await?.volume_id;
    let restored = server.restore_volume(&id, &args.snapshot).await?;
    if args.json {
        return output::json(&restored);
    }
    history::tell_restored(&args.volume, &restored.before);
    Ok(())
}

async fn fork(args: &history::ForkArgs, server: &Server) -> Result<()> {
    if args.checkpoint.is_some() {
        return Err(needs_node("volume fork --checkpoint"));
    }
    let id = find(&args.volume.volume, server).await?.volume_id;
    let forked = server.fork_volume(&id, args.name.as_str(), args.volume.snapshot.as_ref()).await?;
    print(&forked, args.json)
}

async fn diff(args: &history::DiffArgs, server: &Server) -> Result<()> {
    let to = args.to.as_ref();
    if to.is_some_and(|to| to.volume != args.from.volume) {
        return Err(needs_node("volume diff of two volumes"));
    }
    let id = find(&args.from.volume, server).await?.volume_id;
    let to = to.and_then(|to| to.snapshot.as_ref());
    for change in server.volume_changes(&id, args.from.snapshot.as_ref(), to).await? {
        if args.json {
            output::json_line(&change);
        } else {
            outln!("{}", line(&change)?);
        }
    }
    Ok(())
}

fn line(change: &e2b::VolumePathChange) -> Result<String> {
    let is_directory = change.kind == e2b::VolumeEntryType::Directory;
    let kind = serde_json::from_value(change.change.as_str().into());
    let kind = kind.with_context(|| format!("the server tells of a change {:?}", change.change))?;
    Ok(history::line(kind, &change.path, is_directory, change.from.as_deref()))
}

async fn cat(args: &files::CatArgs, server: &Server) -> Result<()> {
    let id = find(&args.volume.volume, server).await?.volume_id;
    let file = server.read_volume_file(&id, args.volume.snapshot.as_ref(), &args.path);
    transfer::write(std::path::Path::new(transfer::STANDARD), file, "the server's log says why").await.map(drop)
}
