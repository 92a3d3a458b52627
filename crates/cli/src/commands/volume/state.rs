//! Volumes as they are: making, looking at, verifying and removing them.

use std::process::ExitCode;

use anyhow::Result;
use api::volume::{RemovedVolume, Volume, VolumeDurability, VolumeMeter, VolumeSpec};
use base::id::VolumeName;
use base::text;
use client::{Client, VolumeState};
use serde::Serialize;

use super::JsonArgs;
use crate::{
    commands::{
        store::{exit_code, verdict},
        template::parse_bytes,
    },
    exit, output,
};

/// Make an empty volume. It takes no room, however large it may become.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// Name of the volume: small letters, digits, '-', '_' and '.'.
    pub(super) name: VolumeName,
    /// Most bytes of data: 512M, 20G; 4K at least. Default: 10G.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(super) size: Option<u64>,
    /// Most files and directories, with the top directory; 2 at least. Default: 10,485,760.
    #[arg(long, value_name = "N")]
    pub(super) inodes: Option<u64>,
    /// What `fsync` waits for: the disk of this machine (local), or the object store (object).
    #[arg(long, value_name = "local|object", default_value = "local", value_parser = parse_durability)]
    pub(super) durability: VolumeDurability,
    /// Owner of its top directory. Default: 1000, the user of sandboxed programs.
    #[arg(long, value_name = "UID")]
    pub(super) uid: Option<u32>,
    /// Group of its top directory. Default: 1000.
    #[arg(long, value_name = "GID")]
    pub(super) gid: Option<u32>,
    /// Permissions of its top directory, octal. Default: 755.
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(super) mode: Option<u16>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Instead, list removed volumes that still have snapshots. `pando volume log NAME` shows these, `pando volume fork NAME@SNAPSHOT NEW`
    /// brings one back.
    #[arg(long)]
    pub(super) removed: bool,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NameArgs {
    /// Name of the volume; on a server, its id does as well.
    pub(super) name: VolumeName,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RmArgs {
    /// Names of volumes, or VOLUME@SNAPSHOT.
    #[arg(required = true)]
    pub(super) volumes: Vec<VolumeState>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What was removed, as it is printed.
#[derive(Debug, Serialize)]
struct Removed {
    volumes: Vec<String>,
}

/// Read and open all of a volume, or of a snapshot, and name what is damaged by its path. Exits with 1 if something is damaged, with 7 if
/// something is only out of reach.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Name of the volume, or VOLUME@SNAPSHOT.
    volume: VolumeState,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl CreateArgs {
    /// A server has no such choices.
    pub(super) fn only_for_a_node(&self) -> bool {
        let chosen = [self.uid, self.gid].iter().any(Option::is_some) || self.inodes.is_some() || self.mode.is_some();
        chosen || self.durability != VolumeDurability::default()
    }
}

pub(super) async fn create(args: CreateArgs, client: &Client) -> Result<()> {
    let spec = VolumeSpec {
        name: args.name,
        bytes_max: args.size,
        inodes_max: args.inodes,
        durability: args.durability,
        uid: args.uid,
        gid: args.gid,
        mode: args.mode,
    };
    let made = client.create_volume(&spec).await?;
    if args.json {
        return output::json(&made);
    }
    outln!("{}", made.name);
    Ok(())
}

pub(super) async fn list(args: &ListArgs, client: &Client) -> Result<()> {
    if args.removed {
        return list_removed(args, client).await;
    }
    let volumes = client.volumes().await?;
    if args.json {
        return output::json(&volumes);
    }
    let row = |volume: &Volume| {
        let usage =
            |text: fn(&api::volume::VolumeUsage) -> String| volume.usage.as_ref().map_or_else(|| "?".to_owned(), text);
        let (here, dirty) = match &volume.open {
            Some(open) if open.followed => (format!("followed {}", open.holders.len()), "-".to_owned()),
            Some(open) if open.read_only.is_some() => ("read-only".to_owned(), text::bytes(open.dirty_bytes)),
            Some(open) if open.holders.is_empty() => ("open".to_owned(), text::bytes(open.dirty_bytes)),
            Some(open) => (format!("mounted {}", open.holders.len()), text::bytes(open.dirty_bytes)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        [
            volume.name.to_string(),
            usage(|usage| text::bytes(usage.bytes)),
            usage(|usage| text::bytes(usage.bytes_max)),
            usage(|usage| usage.inodes.to_string()),
            here,
            dirty,
            age(volume.committed_ms),
        ]
    };
    let rows: Vec<_> = volumes.iter().map(row).collect();
    output::table(["NAME", "USED", "OF", "INODES", "HERE", "NOT STORED YET", "LAST COMMIT"], &rows);
    Ok(())
}

async fn list_removed(args: &ListArgs, client: &Client) -> Result<()> {
    let removed = client.removed_volumes().await?;
    if args.json {
        return output::json(&removed);
    }
    let row = |volume: &RemovedVolume| [volume.name.to_string(), volume.snapshots.to_string()];
    let rows: Vec<_> = removed.iter().map(row).collect();
    output::table(["NAME", "SNAPSHOTS"], &rows);
    Ok(())
}

pub(super) async fn inspect(args: &NameArgs, client: &Client) -> Result<()> {
    let volume = client.volume(&args.name).await?;
    if args.json {
        return output::json(&volume);
    }
    print(&volume);
    Ok(())
}

fn print(volume: &Volume) {
    outln!("name         {}", volume.name);
    match &volume.usage {
        Some(usage) => {
            outln!("data         {} of {}", text::bytes(usage.bytes), text::bytes(usage.bytes_max));
            outln!("inodes       {} of {}", usage.inodes, usage.inodes_max);
        }
        None => outln!("data         cannot be read now"),
    }
    match volume.durability {
        Some(VolumeDurability::Local) => outln!("fsync        on this machine's disk"),
        Some(VolumeDurability::Object) => outln!("fsync        in the object store"),
        None => {}
    }
    outln!("made         {} ago", age(volume.created_ms));
    outln!("last commit  {} ago", age(volume.committed_ms));
    let Some(open) = &volume.open else {
        outln!("here         not open");
        return;
    };
    let holders = if open.holders.is_empty() { "nobody".to_owned() } else { open.holders.join("\n             ") };
    outln!("mounted by   {holders}");
    if open.followed {
        outln!(
            "followed     another node writes it; its commits were looked for {} ago",
            text::age(open.last_commit_age_ms)
        );
        if let Some(failure) = &open.store_failure {
            outln!("store        its commits cannot be seen: {failure}");
        }
        return;
    }
    outln!(
        "not stored   {} written since the last commit here, {} ago",
        text::bytes(open.dirty_bytes),
        text::age(open.last_commit_age_ms)
    );
    if let Some(failure) = &open.store_failure {
        outln!("store        the last commit failed: {failure}");
    }
    if let Some(reason) = &open.read_only {
        outln!("read-only    {reason}");
    }
}

/// How long ago something was that only the store knows.
fn age(moment_ms: Option<u64>) -> String {
    moment_ms.map_or_else(|| "?".to_owned(), |moment| text::age(output::since_ms(moment)))
}

pub(super) async fn remove(args: &RmArgs, client: &Client) -> Result<ExitCode> {
    remove_each(args, async |state| Ok(client.remove_volume(state).await?)).await
}

/// Removes volumes and snapshots one by one, and prints them.
pub(super) async fn remove_each(args: &RmArgs, remove: impl AsyncFn(&VolumeState) -> Result<()>) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let mut volumes = Vec::new();
    for state in &args.volumes {
        // The others are removed all the same.
        match remove(state).await {
            Ok(()) if args.json => volumes.push(state.to_string()),
            Ok(()) => outln!("{state}"),
            Err(error) => code = exit::report(&error),
        }
    }
    if args.json {
        output::json(&Removed { volumes })?;
    }
    Ok(code)
}

pub(super) async fn usage(args: &JsonArgs, client: &Client) -> Result<()> {
    let meters = client.volume_usage().await?;
    if args.json {
        return output::json(&meters);
    }
    let row = |of: &VolumeMeter| {
        [
            of.name.as_ref().map_or_else(|| format!("all of team {}", of.realm), ToString::to_string),
            text::bytes(of.usage.bytes),
            of.usage.inodes.to_string(),
            of.meter.operations.to_string(),
            text::bytes(of.meter.read_bytes),
            text::bytes(of.meter.written_bytes),
        ]
    };
    let rows: Vec<_> = meters.iter().map(row).collect();
    output::table(["NAME", "DATA", "INODES", "OPERATIONS", "READ", "WRITTEN"], &rows);
    Ok(())
}

pub(super) async fn verify(args: &VerifyArgs, client: &Client) -> Result<ExitCode> {
    let seen = client.verify_volume(&args.volume).await?;
    if args.json {
        output::json(&seen)?;
    } else {
        outln!("read {} files, directories and the like, {} of data", seen.inodes, text::bytes(seen.bytes));
        seen.damage.iter().for_each(|found| outln!("damaged: {}: {}", found.part, found.problem));
        seen.unreachable.iter().for_each(|found| outln!("out of reach: {}: {}", found.part, found.problem));
        outln!("{}", verdict(seen.damage.len(), seen.unreachable.len()));
    }
    Ok(exit_code(seen.damage.len(), seen.unreachable.len()))
}

fn parse_durability(text: &str) -> Result<VolumeDurability, String> {
    match text {
        "local" => Ok(VolumeDurability::Local),
        "object" => Ok(VolumeDurability::Object),
        _ => Err("give it as local or object".to_owned()),
    }
}

fn parse_mode(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777).ok_or_else(|| "give it as 755".to_owned())
}
