//! What the node itself asks of volumes. No path and no status code leaves this module.

use api::{
    VERSION_PREFIX,
    volume::{ForkVolumeRequest, Snapshot, SnapshotEnd, SnapshotRequest, Volume},
};
use base::id::{SnapshotName, VolumeName};
use hyper::Method;
use model::{KeptState, VolumeSpec};

use super::{Begun, Client};
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

    /// Removes a snapshot.
    pub async fn remove_snapshot(&self, volume: &VolumeName, name: &SnapshotName) -> Result<(), Error> {
        self.ask(Method::DELETE, &format!("{}/{name}?for_good=true", snapshots(volume)), &()).await
    }
}

fn snapshots(volume: &VolumeName) -> String {
    format!("{VERSION_PREFIX}/volumes/{volume}/snapshots")
}
