//! States of volumes: keeping, listing, comparing, going back, forking.

use anyhow::Result;
use api::{
    Change, Checkpoint, VolumeChange,
    volume::{FileKind, ForkVolumeRequest, KeptState, RestoreRequest, Snapshot, SnapshotRequest},
};
use base::id::{SnapshotName, TemplateName, VolumeName};
use base::text;
use client::{Client, VolumeState};

use crate::{exit::Failure, output};

/// Keep a volume as it is now, under a name. Takes as long as it takes to store what is not in the store yet. Programs in the volume go on.
///
/// If another node writes the volume, the snapshot has what that node has committed.
#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotArgs {
    /// Name of the volume.
    volume: VolumeName,
    /// Name of the snapshot. Default: a new one.
    snapshot: Option<SnapshotName>,
    /// Text that `pando volume log` shows beside it.
    #[arg(short = 'm', long, value_name = "TEXT")]
    note: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// Name of the volume.
    volume: VolumeName,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Take a volume back to a snapshot. The state before is kept as a snapshot, whose name is printed. If the volume is mounted, programs see
/// the other files at once.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// Name of the volume.
    volume: VolumeName,
    /// The snapshot.
    snapshot: SnapshotName,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Make a new volume from another one, from a snapshot, or from what a checkpoint has of a volume. It takes no room, whatever its size.
#[derive(Debug, clap::Args)]
pub(crate) struct ForkArgs {
    /// Name of the volume, or VOLUME@SNAPSHOT.
    volume: VolumeState,
    /// Name of the new volume.
    name: VolumeName,
    /// Take the state that this checkpoint has of the volume. The volume may be gone since.
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<TemplateName>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Show which paths differ between two states of a volume, or of two volumes of which one is a fork of the other.
///
/// `+` is new, `-` is gone, `M` has other content, `m` has other permissions, owner, times or attributes only, `R` has another name. Files of
/// volumes that are not related all differ.
#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// The earlier state: `ws@before`, or `ws` as it is now.
    from: VolumeState,
    /// The later state. Default: the same volume as it is now.
    to: Option<VolumeState>,
    /// Print JSON, one document a line.
    #[arg(long)]
    json: bool,
}

pub(super) async fn snapshot(args: SnapshotArgs, client: &Client) -> Result<()> {
    let request = SnapshotRequest { snapshot: args.snapshot, note: args.note, early: false };
    let taken = client.snapshot(&args.volume, &request).await?;
    if args.json {
        return output::json(&taken);
    }
    outln!("{}", taken.snapshot);
    Ok(())
}

pub(super) async fn log(args: &LogArgs, client: &Client) -> Result<()> {
    let snapshots = client.snapshots(&args.volume).await?;
    if args.json {
        return output::json(&snapshots);
    }
    let row = |snapshot: &Snapshot| {
        let age = text::age(output::since_ms(snapshot.created_ms));
        [snapshot.snapshot.to_string(), age, snapshot.note.clone().unwrap_or_default()]
    };
    output::table(["SNAPSHOT", "AGE", "NOTE"], &snapshots.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

pub(super) async fn restore(args: RestoreArgs, client: &Client) -> Result<()> {
    let request = RestoreRequest { snapshot: args.snapshot };
    let restored = client.restore_volume(&args.volume, &request).await?;
    if args.json {
        return output::json(&restored);
    }
    outln!("{}", restored.before);
    errln!("what it was before is kept: `pando volume restore {} {}` goes back", args.volume, restored.before);
    Ok(())
}

pub(super) async fn fork(args: ForkArgs, client: &Client) -> Result<()> {
    let VolumeState { volume, snapshot } = args.volume;
    let state = match &args.checkpoint {
        Some(checkpoint) => Some(kept(&volume, checkpoint, client).await?),
        None => None,
    };
    let request = ForkVolumeRequest { name: args.name, snapshot, state };
    let forked = client.fork_volume(&volume, &request).await?;
    if args.json {
        return output::json(&forked);
    }
    outln!("{}", forked.name);
    Ok(())
}

/// What a checkpoint has of a volume.
async fn kept(volume: &VolumeName, checkpoint: &TemplateName, client: &Client) -> Result<KeptState> {
    let Checkpoint { volumes, .. } = client.checkpoint(checkpoint).await?;
    let found = volumes.into_iter().find(|kept| kept.volume == *volume).map(|kept| kept.state);
    found.ok_or_else(|| Failure::Usage(format!("checkpoint {checkpoint} has no volume {volume}")).into())
}

pub(super) async fn diff(args: &DiffArgs, client: &Client) -> Result<()> {
    let seen = client.diff_volume(&args.from, args.to.as_ref(), |change| {
        if args.json {
            output::json_line(&change);
        } else {
            outln!("{}", line(&change));
        }
    });
    Ok(seen.await?)
}

fn line(change: &VolumeChange) -> String {
    let mark = match change.change {
        Change::Added => '+',
        Change::Removed => '-',
        Change::Modified => 'M',
        Change::Metadata => 'm',
        Change::Renamed => 'R',
    };
    let slash = if change.kind == FileKind::Directory { "/" } else { "" };
    let from = change.from.as_ref().map(|from| format!(" (was {from})")).unwrap_or_default();
    format!("{mark} {}{slash}{from}", change.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_one_line_each() {
        let change = |change, kind, from: Option<&str>| {
            line(&VolumeChange { path: "a/b".to_owned(), change, kind, from: from.map(str::to_owned) })
        };
        assert_eq!(change(Change::Added, FileKind::Directory, None), "+ a/b/");
        assert_eq!(change(Change::Renamed, FileKind::File, Some("c")), "R a/b (was c)");
    }
}
