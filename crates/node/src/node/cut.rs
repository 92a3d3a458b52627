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
    sync::Arc,
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
use crate::error::{Context, Error, Result, chain};

/// How long a sandbox may stand still for its volumes.
const CUT_MAX: Duration = Duration::from_secs(10);

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
        let taking = tokio::time::timeout(CUT_MAX, self.take_snapshots(id, mounts, &mut cut)).await;
        let done = taking.doing("fork the volumes in time").flatten();
        self.thaw(id).await;
        let took = began.elapsed();
        let is_gone = self.state().sandbox(id).is_err();
        if is_gone {
            // It may have become a holder again after its end.
            self.sweep_work.notify_one();
        }
        match done {
            Ok(()) => (Ok(cut), took),
            Err(error) => {
                self.forget_cut(&cut).await;
                (Err(error), took)
            }
        }
    }

    /// Makes what a sandbox has written, up to now or while it stands still, what other nodes find.
    pub(super) async fn commit_written(&self, id: &SandboxId, mounts: &[VolumeMount]) -> Result<()> {
        let mut cut = Cut::default();
        // A snapshot is a commit. Its name is not needed.
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
            let snapshot = SnapshotName::random();
            // Known before it is there: whatever becomes of the answer, it is removed.
            cut.snapshots.push((mount.volume.clone(), snapshot.clone()));
            let request =
                SnapshotRequest { snapshot: Some(snapshot), note: Some(format!("for a fork or pause of {id}")) };
            let _: Snapshot = self.ask_volume(Method::POST, format!("/{}/snapshots", mount.volume), &request).await?;
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
            self.remove_unseen(format!("/{}", volume.of_copy(copy))).await;
        }
    }

    /// Removes what a live fork has made whose client has gone.
    pub(crate) async fn undo_fork(self: &Arc<Self>, copies: &[api::Sandbox]) {
        self.undo_starts(copies).await;
        for copy in copies {
            // Its name says that it was made for the copy.
            let is_own =
                |mount: &&VolumeMount| mount.is_writable() && mount.volume.as_str().ends_with(copy.id.as_str());
            for mount in copy.volumes.iter().filter(is_own) {
                self.remove_unseen(format!("/{}", mount.volume)).await;
            }
        }
    }

    /// Every copy has its volumes.
    pub(super) async fn forget_cut(&self, cut: &Cut) {
        for (volume, snapshot) in &cut.snapshots {
            self.remove_unseen(format!("/{volume}/snapshots/{snapshot}")).await;
        }
    }

    /// Removes a volume or snapshot that nobody has been told of.
    async fn remove_unseen(&self, below: String) {
        let removed: Result<()> = self.ask_volume(Method::DELETE, below.clone(), &()).await;
        match removed {
            Ok(()) | Err(Error::VolumeRefused { status: 404, .. }) => {}
            Err(error) => tracing::warn!(path = below, error = chain(&error), "something of a live fork stays"),
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
