//! `pando volume mount` and `unmount`, and how a mount is written in arguments.

use std::path::PathBuf;

use anyhow::{Context, Result};
use api::{MountRequest, UnmountRequest, VolumeMount};
use base::id::InvalidId;
use client::{Client, VolumeState};

/// Mount a volume, or a snapshot of one, on a directory of this machine, for people and their tools.
///
/// The mount stays until `pando volume unmount`, also when the node is stopped. A node with --ephemeral takes it off at its end.
#[derive(Debug, clap::Args)]
pub(crate) struct MountArgs {
    /// Name of the volume, or VOLUME@SNAPSHOT.
    volume: VolumeState,
    /// An existing directory. Its own files are hidden meanwhile.
    directory: PathBuf,
    /// Make the mount read-only. If another node writes the volume, it stays the writer, and its commits show here some seconds later.
    #[arg(long)]
    read_only: bool,
}

/// Take a volume off a directory of this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct UnmountArgs {
    /// Name of the volume, or VOLUME@SNAPSHOT as it was mounted.
    volume: VolumeState,
    /// The directory.
    directory: PathBuf,
}

pub(super) async fn mount(args: MountArgs, client: &Client) -> Result<()> {
    let request =
        MountRequest { path: absolute(&args.directory)?, read_only: args.read_only, snapshot: args.volume.snapshot };
    let mount = client.mount(&args.volume.volume, &request).await?;
    outln!("{}", describe_mount(&mount));
    Ok(())
}

pub(super) async fn unmount(args: UnmountArgs, client: &Client) -> Result<()> {
    let request = UnmountRequest { path: absolute(&args.directory)? };
    Ok(client.unmount(&args.volume.volume, &request).await?)
}

/// The node may have another working directory.
fn absolute(path: &std::path::Path) -> Result<String> {
    let path = std::path::absolute(path).context("cannot make the directory's path absolute")?;
    path.into_os_string().into_string().ok().context("the directory's path is not UTF-8")
}

/// `ws on /workspace`, for people.
pub(in crate::commands) fn describe_mount(mount: &VolumeMount) -> String {
    let access = if mount.is_writable() { "" } else { " (read-only)" };
    format!("{} on {}{access}", VolumeState::from(mount), mount.path)
}

/// `VOLUME[@SNAPSHOT]:DIR[:ro]`
pub(in crate::commands) fn parse_mount(text: &str) -> Result<VolumeMount, String> {
    let (state, rest) = text.split_once(':').ok_or("give it as VOLUME:DIR, or VOLUME:DIR:ro")?;
    let (path, read_only) = match rest.strip_suffix(":ro") {
        Some(path) => (path, true),
        None => (rest, false),
    };
    if !path.starts_with('/') {
        return Err(format!("{path:?} is not an absolute path inside the sandbox"));
    }
    let VolumeState { volume, snapshot } = state.parse().map_err(|error: InvalidId| error.to_string())?;
    Ok(VolumeMount { volume, path: path.to_owned(), read_only, snapshot })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_written_as_elsewhere() {
        let described = |text: &str| parse_mount(text).map(|mount| describe_mount(&mount));
        assert_eq!(described("ws:/workspace"), Ok("ws on /workspace".to_owned()));
        assert_eq!(described("ws:/a:b:ro"), Ok("ws on /a:b (read-only)".to_owned()));
        assert_eq!(described("ws@old:/a"), Ok("ws@old on /a (read-only)".to_owned()));
        for wrong in ["ws", "ws:", "ws:a", ":/a", "W S:/a", "ws@:/a"] {
            assert!(parse_mount(wrong).is_err(), "{wrong}");
        }
    }
}
