//! Volumes in a live fork: a copy gets volumes of its own, which begin as the original's were in the instant that its memory is of.
//!
//! ```text
//! builder: captured, and frozen in the same instant -> mappings written back, a snapshot of each volume that it can write -> thawed
//! copy:    fork of each snapshot -> mounted -> goes on                                   all copies started -> no snapshot
//! ```
//!
//! A volume that a copy has got stays when the copy is removed, as all volumes do: its files may be what somebody wanted.

use std::{
    fmt,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use api::{
    VERSION_PREFIX, VolumeMount,
    volume::{ForkVolumeRequest, Snapshot, SnapshotRequest, Volume},
};
use base::id::{SandboxId, SnapshotName, VolumeName};
use hyper::Method;
use rustix::fs::{Mode, OFlags, openat, syncfs};
use serde::de::DeserializeOwned;

use super::{Node, volumes::failed};
use crate::error::{Context, Result, chain};

/// The states of all volumes that a sandbox can write, of one instant. A volume that is mounted twice has one.
#[derive(Debug, Clone, Default)]
pub(super) struct Cut {
    snapshots: Vec<(VolumeName, SnapshotName)>,
}

/// What of a sandbox's volumes its copies cannot share.
pub(super) fn written(mounts: &[VolumeMount]) -> impl Iterator<Item = &VolumeMount> {
    mounts.iter().filter(|mount| mount.is_writable())
}

impl Node {
    /// Cuts the volumes of a sandbox that stands still, and has it go on, whatever came of it. Also: how long that took.
    pub(super) async fn cut(&self, id: &SandboxId, mounts: &[VolumeMount]) -> (Result<Cut>, Duration) {
        let began = Instant::now();
        let mut cut = Cut::default();
        let done = self.take_snapshots(id, mounts, &mut cut).await;
        self.thaw(id).await;
        let took = began.elapsed();
        match done {
            Ok(()) => (Ok(cut), took),
            Err(error) => {
                self.forget_cut(&cut).await;
                (Err(error), took)
            }
        }
    }

    /// Makes what a sandbox that stands still has written what other nodes find.
    pub(super) async fn commit_written(&self, id: &SandboxId, mounts: &[VolumeMount]) -> Result<()> {
        let mut cut = Cut::default();
        let done = self.take_snapshots(id, mounts, &mut cut).await;
        self.forget_cut(&cut).await;
        done
    }

    async fn take_snapshots(&self, id: &SandboxId, mounts: &[VolumeMount], cut: &mut Cut) -> Result<()> {
        for mount in written(mounts) {
            if cut.snapshots.iter().any(|(volume, _)| *volume == mount.volume) {
                continue;
            }
            // As the sandbox itself, which holds it already.
            let tree = self.detached_mount(mount, id.to_string()).await?;
            tokio::task::spawn_blocking(move || write_back(&tree)).await.doing("write mappings back").flatten()?;
            let request = SnapshotRequest { snapshot: None, note: Some(format!("live fork of {id}")) };
            let path = format!("/{}/snapshots", mount.volume);
            let taken: Snapshot = self.ask_volume(Method::POST, path, &request).await?;
            cut.snapshots.push((mount.volume.clone(), taken.snapshot));
        }
        Ok(())
    }

    /// The mounts of a copy. After a failure some of its volumes may be there: see [`Node::remove_own_volumes`].
    pub(super) async fn own_volumes(
        &self,
        copy: &SandboxId,
        mounts: &[VolumeMount],
        cut: &Cut,
    ) -> Result<Vec<VolumeMount>> {
        for (volume, snapshot) in &cut.snapshots {
            let request = ForkVolumeRequest { name: volume.of_copy(copy), snapshot: Some(snapshot.clone()) };
            let _: Volume = self.ask_volume(Method::POST, format!("/{volume}/fork"), &request).await?;
        }
        let in_its_place = |mount: &VolumeMount| {
            let volume = if mount.is_writable() { mount.volume.of_copy(copy) } else { mount.volume.clone() };
            VolumeMount { volume, ..mount.clone() }
        };
        Ok(if cut.snapshots.is_empty() { mounts.to_vec() } else { mounts.iter().map(in_its_place).collect() })
    }

    /// Removes the volumes of a copy that did not come to run.
    pub(super) async fn remove_own_volumes(&self, copy: &SandboxId, cut: &Cut) {
        for (volume, _) in &cut.snapshots {
            let name = volume.of_copy(copy);
            let removed: Result<()> = self.ask_volume(Method::DELETE, format!("/{name}"), &()).await;
            if let Err(error) = removed {
                tracing::debug!(volume = %name, error = chain(&error), "a volume of a copy that did not start is not removed");
            }
        }
    }

    /// Every copy has its volumes.
    pub(super) async fn forget_cut(&self, cut: &Cut) {
        for (volume, snapshot) in &cut.snapshots {
            let removed: Result<()> =
                self.ask_volume(Method::DELETE, format!("/{volume}/snapshots/{snapshot}"), &()).await;
            if let Err(error) = removed {
                tracing::warn!(%volume, %snapshot, error = chain(&error), "a snapshot of a live fork stays");
            }
        }
    }

    async fn ask_volume<T: DeserializeOwned>(
        &self,
        method: Method,
        below: String,
        body: &(impl serde::Serialize + Sync + fmt::Debug),
    ) -> Result<T> {
        let path = format!("{VERSION_PREFIX}/volumes{below}");
        self.volumes.ask(method, &path, body).await.map_err(failed("fork the volumes"))
    }
}

/// What programs have written through mappings is in the kernel only. Blocks.
fn write_back(tree: &OwnedFd) -> Result<()> {
    let root = openat(tree, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    syncfs(root.doing("open the volume")?).doing("write mappings back")
}
