//! States of volumes: keeping, listing, comparing, going back, forking.

use anyhow::Result;
use api::{
    Change, Checkpoint,
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
    pub(super) volume: VolumeName,
    /// Name of the snapshot. Default: a new one.
    pub(super) snapshot: Option<SnapshotName>,
    /// Text that `pando volume log` shows beside it.
    #[arg(short = 'm', long, value_name = "TEXT")]
    pub(super) note: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// Name of the volume.
    pub(super) volume: VolumeName,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Take a volume back to a snapshot. The state before is kept as a snapshot, whose name is printed. If the volume is mounted, programs see
/// the other files at once.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// Name of the volume.
    pub(super) volume: VolumeName,
    /// The snapshot.
    pub(super) snapshot: SnapshotName,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Make a new volume from another one, from a snapshot, or from what a checkpoint has of a volume. It takes no room, whatever its size.
#[derive(Debug, clap::Args)]
pub(crate) struct ForkArgs {
    /// Name of the volume, or VOLUME@SNAPSHOT.
    pub(super) volume: VolumeState,
    /// Name of the new volume.
    pub(super) name: VolumeName,
    /// Take the state that this checkpoint has of the volume. The volume may be gone since.
    #[arg(long, value_name = "NAME")]
    pub(super) checkpoint: Option<TemplateName>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Show which paths differ between two states of a volume, or of two volumes of which one is a fork of the other.
///
/// `+` is new, `-` is gone, `M` has other content, `m` has other permissions, owner, times or attributes only, `R` has another name. Files of
/// volumes that are not related all differ.
#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// The earlier state: `ws@before`, or `ws` as it is now.
    pub(super) from: VolumeState,
    /// The later state. Default: the same volume as it is now.
    pub(super) to: Option<VolumeState>,
    /// Print JSON, one document a line.
    #[arg(long)]
    pub(super) json: bool,
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
    table(&snapshots.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

/// Prints a list of snapshots.
pub(super) fn table(rows: &[[String; 3]]) {
    output::table(["SNAPSHOT", "AGE", "NOTE"], rows);
}

pub(super) async fn restore(args: RestoreArgs, client: &Client) -> Result<()> {
    let request = RestoreRequest { snapshot: args.snapshot };
    let restored = client.restore_volume(&args.volume, &request).await?;
    if args.json {
        return output::json(&restored);
    }
    tell_restored(&args.volume, restored.before.as_str());
    Ok(())
}

/// Tells the snapshot of what a volume was before.
pub(super) fn tell_restored(volume: &VolumeName, before: &str) {
    outln!("{before}");
    errln!("what it was before is kept: `pando volume restore {volume} {before}` goes back");
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
            let is_directory = change.kind == FileKind::Directory;
            outln!("{}", line(change.change, &change.path, is_directory, change.from.as_deref()));
        }
    });
    Ok(seen.await?)
}

/// What became of a path, on one line.
pub(super) fn line(change: Change, path: &str, is_directory: bool, from: Option<&str>) -> String {
    let mark = match change {
        Change::Added => '+',
        Change::Removed => '-',
        Change::Modified => 'M',
        Change::Metadata => 'm',
        Change::Renamed => 'R',
    };
    let slash = if is_directory { "/" } else { "" };
    let from = from.map(|from| format!(" (was {from})")).unwrap_or_default();
    format!("{mark} {path}{slash}{from}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_one_line_each() {
        assert_eq!(line(Change::Added, "a/b", true, None), "+ a/b/");
        assert_eq!(line(Change::Renamed, "a/b", false, Some("c")), "R a/b (was c)");
    }
}
