//! Volumes on their way into a checkpoint file and out of one: each is a volume of its own while it is carried, which nobody knows of.

use std::{
    io::Read,
    sync::{Arc, Mutex, PoisonError},
};

use base::id::{SnapshotName, VolumeName};
use checkpoint::transfer::Archives;
use model::{CheckpointVolume, KeptState, VolumeSpec};
use store::heads::HeadName;
use tokio::runtime::Handle;
use volumed::Origin;

use super::super::{Node, unseen::Unseen, volumes::failed};
use crate::error::{Error, Result, Storing};

/// The volumes that carry; clones share them.
#[derive(Clone)]
pub(super) struct Carriers {
    node: Arc<Node>,
    runtime: Handle,
    made: Arc<Mutex<Vec<Unseen>>>,
    /// Of an export: what carries each state, by its manifest.
    leaving: Vec<(String, VolumeSpec)>,
}

impl Carriers {
    pub(super) fn new(node: &Arc<Node>) -> Self {
        Self { node: Arc::clone(node), runtime: Handle::current(), made: Arc::default(), leaving: Vec::new() }
    }

    fn note(&self, unseen: Unseen) -> Result<()> {
        self.node.note_unseen(&unseen)?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(unseen);
        Ok(())
    }

    /// Has all of a checkpoint's volumes carried. From then on they stay what they are, whatever becomes of the checkpoint.
    pub(super) async fn take_up(&mut self, volumes: &[CheckpointVolume]) -> Result<()> {
        for CheckpointVolume { volume, state, .. } in volumes {
            if self.leaving.iter().all(|(manifest, _)| *manifest != state.manifest) {
                let spec = self.fork(volume, state).await?;
                self.leaving.push((state.manifest.clone(), spec));
            }
        }
        Ok(())
    }

    async fn fork(&self, volume: &VolumeName, state: &KeptState) -> Result<VolumeSpec> {
        let name = VolumeName::transient("export");
        self.note(Unseen::volume(&name))?;
        let forked = self.node.mounts.client.fork(volume, Origin::Kept(state.clone()), name).await;
        // Whose its top is, and with what permissions, is in the archive.
        forked.map_err(failed("fork the volumes"))?.ok_or("the store does not answer").storing("read a volume")
    }

    /// Removes them.
    pub(super) async fn remove(self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for unseen in made {
            self.node.remove_unseen(unseen).await;
        }
    }
}

impl Archives for Carriers {
    type Error = Error;

    fn export(&mut self, state: &KeptState) -> Result<(VolumeSpec, Box<dyn Read>)> {
        let carrier = self.leaving.iter().find(|(manifest, _)| *manifest == state.manifest);
        let (_, spec) = carrier.ok_or("nothing carries it").storing("read a volume")?;
        let archive = self.node.mounts.client.export(&spec.name, &self.runtime).map_err(failed("read a volume"))?;
        Ok((spec.clone(), Box::new(archive)))
    }

    fn import(&mut self, spec: VolumeSpec, archive: &mut dyn Read) -> Result<HeadName> {
        let (name, snapshot) = (VolumeName::transient("import"), SnapshotName::random());
        let volumes = &self.node.mounts.client;
        self.note(Unseen::volume(&name))?;
        let spec = VolumeSpec { name: name.clone(), ..spec };
        self.runtime.block_on(volumes.create(spec)).map_err(failed("make a volume"))?;
        volumes.import(&name, archive, &self.runtime).map_err(failed("write a volume"))?;
        self.note(Unseen::snapshot(&name, &snapshot))?;
        let stored = self.runtime.block_on(volumes.snapshot(&name, snapshot.clone()));
        stored.map_err(failed("store a volume"))?;
        volumed::snapshot_head(&name, &snapshot).storing("name the state of a volume")
    }
}
