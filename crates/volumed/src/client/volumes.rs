//! What the node itself asks of volumes. No path and no status code leaves this module.

use api::{
    VERSION_PREFIX,
    volume::{ForkVolumeRequest, RestoreRequest, Restored, Snapshot, SnapshotEnd, SnapshotRequest, Volume},
};
use base::id::{SnapshotName, VolumeName};
use hyper::Method;
use model::{KeptState, VolumeSpec};

use super::{Begun, Client, Whole};
use crate::Error;

/// What a forked volume begins with.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A snapshot of the volume.
    Snapshot(SnapshotName),
    /// A state that a checkpoint keeps. The volume itself may be gone.
    Kept(KeptState),
}

/// A snapshot whose content is settled, but which is not durable yet.
#[derive(Debug)]
pub struct Settled(Begun);

impl Settled {
    /// Waits until it is durable. If this fails, the snapshot may exist or not.
    pub async fn stored(self) -> Result<(), Error> {
        match self.0.end().await? {
            SnapshotEnd::Done(_) => Ok(()),
            SnapshotEnd::Failed { error, .. } => Err(Error::Refused(Box::new(error.into()))),
        }
    }
}

impl Client {
    /// Makes a volume.
    pub async fn create(&self, spec: VolumeSpec) -> Result<(), Error> {
        let spec = api::volume::VolumeSpec::from(spec);
        let path = format!("{VERSION_PREFIX}/volumes");
        self.ask::<Volume>(Method::POST, &path, &spec).await.map(drop)
    }

    /// Makes the volume `name` with what `volume` had. Gives what it is; none if the store does not answer.
    pub async fn fork(
        &self,
        volume: &VolumeName,
        origin: Origin,
        name: VolumeName,
    ) -> Result<Option<VolumeSpec>, Error> {
        let (snapshot, state) = match origin {
            Origin::Snapshot(snapshot) => (Some(snapshot), None),
            Origin::Kept(state) => (None, Some(state.into())),
        };
        let request = ForkVolumeRequest { name: name.clone(), snapshot, state };
        let path = format!("{VERSION_PREFIX}/volumes/{volume}/fork");
        let forked: Volume = self.ask(Method::POST, &path, &request).await?;
        let spec = forked.usage.zip(forked.durability).map(|(usage, durability)| VolumeSpec {
            name,
            bytes_max: Some(usage.bytes_max),
            inodes_max: Some(usage.inodes_max),
            durability: durability.into(),
            uid: None,
            gid: None,
            mode: None,
        });
        Ok(spec)
    }

    /// Settles what is in the new snapshot `name`: what is written from then on is not.
    pub async fn settle_snapshot(
        &self,
        volume: &VolumeName,
        name: SnapshotName,
        note: String,
    ) -> Result<Settled, Error> {
        let request = SnapshotRequest { snapshot: Some(name), note: Some(note), early: true };
        self.begin(Method::POST, &snapshots(volume), &request).await.map(Settled)
    }

    /// Takes the snapshot `name`; durable when this returns.
    pub async fn snapshot(&self, volume: &VolumeName, name: SnapshotName) -> Result<(), Error> {
        let request = SnapshotRequest { snapshot: Some(name), note: None, early: false };
        self.ask::<Snapshot>(Method::POST, &snapshots(volume), &request).await.map(drop)
    }

    /// Removes a volume with all its snapshots.
    pub async fn remove(&self, volume: &VolumeName) -> Result<(), Error> {
        self.ask(Method::DELETE, &format!("{VERSION_PREFIX}/volumes/{volume}?for_good=true"), &()).await
    }

    /// A volume, with what it holds.
    pub async fn inspect(&self, volume: &VolumeName) -> Result<Volume, Error> {
        self.ask(Method::GET, &format!("{VERSION_PREFIX}/volumes/{volume}"), &()).await
    }

    /// The snapshots of a volume. It may have been removed.
    pub async fn snapshots(&self, volume: &VolumeName) -> Result<Vec<Snapshot>, Error> {
        self.ask(Method::GET, &snapshots(volume), &()).await
    }

    /// Takes a snapshot with a note; durable when this returns.
    pub async fn take_snapshot(
        &self,
        volume: &VolumeName,
        name: Option<SnapshotName>,
        note: Option<String>,
    ) -> Result<Snapshot, Error> {
        let request = SnapshotRequest { snapshot: name, note, early: false };
        self.ask(Method::POST, &snapshots(volume), &request).await
    }

    /// Gives a volume the content of a snapshot. Returns the new snapshot of its content until now.
    pub async fn restore(&self, volume: &VolumeName, snapshot: SnapshotName) -> Result<SnapshotName, Error> {
        let path = format!("{VERSION_PREFIX}/volumes/{volume}/restore");
        let Restored { before } = self.ask(Method::POST, &path, &RestoreRequest { snapshot }).await?;
        Ok(before)
    }

    /// Makes the volume `name` with what `volume` has now.
    pub async fn fork_present(&self, volume: &VolumeName, name: VolumeName) -> Result<(), Error> {
        let request = ForkVolumeRequest { name, snapshot: None, state: None };
        let path = format!("{VERSION_PREFIX}/volumes/{volume}/fork");
        self.ask::<Volume>(Method::POST, &path, &request).await.map(drop)
    }

    /// Compares two states of a volume; none is the present one. A line of [`api::VolumeChange`] for each difference.
    pub async fn diff(
        &self,
        volume: &VolumeName,
        from: Option<&SnapshotName>,
        to: Option<&SnapshotName>,
    ) -> Result<Whole, Error> {
        let states = [("from", from), ("to", to)].into_iter();
        let query: Vec<String> = states.filter_map(|(key, state)| Some(format!("{key}={}", state?))).collect();
        let path = format!("{VERSION_PREFIX}/volumes/{volume}/diff?{}", query.join("&"));
        self.begin(Method::GET, &path, &()).await.map(|Begun(answer)| answer)
    }

    /// Removes a snapshot.
    pub async fn remove_snapshot(&self, volume: &VolumeName, name: &SnapshotName) -> Result<(), Error> {
        self.ask(Method::DELETE, &format!("{}/{name}?for_good=true", snapshots(volume)), &()).await
    }
}

fn snapshots(volume: &VolumeName) -> String {
    format!("{VERSION_PREFIX}/volumes/{volume}/snapshots")
}
