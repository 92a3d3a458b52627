//! Volumes on their way into a checkpoint file and out of one: each is a volume of its own while it is carried, which nobody knows of.

use std::{
    io::Read,
    sync::{Arc, Mutex, PoisonError},
};

use api::{
    VERSION_PREFIX,
    volume::{ForkVolumeRequest, KeptState, Snapshot, SnapshotRequest, Volume, VolumeSpec},
};
use base::id::{SnapshotName, VolumeName};
use hyper::Method;
use store::heads::HeadName;
use tokio::runtime::Handle;

use super::super::{Node, unseen::Unseen, volumes::failed};
use crate::{
    durable::{Storing, transfer::Archives},
    error::Result,
};

/// The volumes that carry; clones share them.
#[derive(Clone)]
pub(super) struct Carriers {
    node: Arc<Node>,
    runtime: Handle,
    made: Arc<Mutex<Vec<Unseen>>>,
}

impl Carriers {
    pub(super) fn new(node: &Arc<Node>) -> Self {
        Self { node: Arc::clone(node), runtime: Handle::current(), made: Arc::default() }
    }

    fn note(&self, unseen: Unseen) -> Result<()> {
        self.node.note_unseen(&unseen)?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(unseen);
        Ok(())
    }

    /// Removes them.
    pub(super) async fn remove(self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for unseen in made {
            self.node.remove_unseen(&unseen).await;
        }
    }
}

impl Archives for Carriers {
    fn export(&mut self, volume: &VolumeName, state: &KeptState) -> Result<(VolumeSpec, Box<dyn Read>)> {
        let name = VolumeName::transient("export");
        self.note(Unseen::volume(&name))?;
        let request = ForkVolumeRequest { name: name.clone(), snapshot: None, state: Some(state.clone()) };
        let path = format!("{VERSION_PREFIX}/volumes/{volume}/fork");
        let volumes = &self.node.volumes;
        let forked = self.runtime.block_on(volumes.ask::<Volume>(Method::POST, &path, &request));
        let Volume { usage, durability, .. } = forked.map_err(failed("read a volume"))?;
        let (Some(usage), Some(durability)) = (usage, durability) else {
            return Err("the store does not answer").storing("read a volume");
        };
        let (bytes_max, inodes_max) = (Some(usage.bytes_max), Some(usage.inodes_max));
        let archive = volumes.export(&name, &self.runtime).map_err(failed("read a volume"))?;
        // Whose its top is, and with what permissions, is in the archive.
        let spec = VolumeSpec { name, bytes_max, inodes_max, durability, uid: None, gid: None, mode: None };
        Ok((spec, Box::new(archive)))
    }

    fn import(&mut self, spec: VolumeSpec, archive: &mut dyn Read) -> Result<HeadName> {
        let (name, snapshot) = (VolumeName::transient("import"), SnapshotName::random());
        let volumes = &self.node.volumes;
        self.note(Unseen::volume(&name))?;
        let path = format!("{VERSION_PREFIX}/volumes");
        let spec = VolumeSpec { name: name.clone(), ..spec };
        let made = self.runtime.block_on(volumes.ask::<Volume>(Method::POST, &path, &spec));
        made.map_err(failed("make a volume"))?;
        volumes.import(&name, archive, &self.runtime).map_err(failed("write a volume"))?;
        self.note(Unseen::snapshot(&name, &snapshot))?;
        let path = format!("{VERSION_PREFIX}/volumes/{name}/snapshots");
        let request = SnapshotRequest { snapshot: Some(snapshot.clone()), note: None, early: false };
        let stored = self.runtime.block_on(volumes.ask::<Snapshot>(Method::POST, &path, &request));
        stored.map_err(failed("store a volume"))?;
        volumed::snapshot_head(&name, &snapshot).storing("name the state of a volume")
    }
}
