//! Who may have volumes mounted: sandboxes, and directories of the host.

use std::collections::HashSet;

use base::id::{SandboxId, VolumeName};
use model::{Mount, SandboxState};

use super::State;
use crate::{
    error::{Error, Result},
    records::SandboxRecord,
};

/// A volume on a directory of the host.
#[derive(Debug)]
pub(super) struct HostMount {
    mount: Mount,
    /// Between its being attached and its being taken off.
    attached: bool,
}

/// Whose processes may write a volume.
#[derive(Debug)]
pub(crate) enum Writers {
    /// These sandboxes'.
    Sandboxes(Vec<SandboxId>),
    /// It is mounted on a directory of the host.
    Anybody {
        /// But not the first processes of the pool's sandboxes: they map nothing.
        idle: HashSet<i32>,
    },
}

impl State {
    /// Sandboxes that are paused here and are to have a volume again.
    pub(crate) fn paused_with(&self, volume: &VolumeName) -> Vec<SandboxId> {
        let paused = |record: &&SandboxRecord| matches!(record.state, SandboxState::Paused | SandboxState::Pausing);
        let has = |record: &&SandboxRecord| {
            record.volumes.iter().any(|mount| mount.volume == *volume && mount.snapshot.is_none())
        };
        self.sandboxes.values().filter(paused).filter(has).map(|record| record.id.clone()).collect()
    }

    /// A sandbox may hold volumes from here on.
    pub(crate) fn begin_holding(&mut self, id: &SandboxId, mounts: &[Mount]) {
        self.holding.insert(id.clone(), mounts.to_vec());
    }

    /// It is gone. Whether it held any.
    pub(crate) fn end_holding(&mut self, id: &SandboxId) -> bool {
        self.holding.remove(id).is_some()
    }

    /// Admits a mount on a directory of the host: one there.
    pub(crate) fn begin_host_mount(&mut self, mount: &Mount) -> Result<()> {
        if let Some(there) = self.host_mounts.get(&mount.path) {
            let reason = format!("volume {} is mounted there", there.mount.volume);
            return Err(Error::HostPath { path: mount.path.clone(), reason });
        }
        self.host_mounts.insert(mount.path.clone(), HostMount { mount: mount.clone(), attached: false });
        Ok(())
    }

    /// It is there for everybody to see.
    pub(crate) fn set_attached(&mut self, path: &str) {
        if let Some(there) = self.host_mounts.get_mut(path) {
            there.attached = true;
        }
    }

    /// Whoever gets a mount here is the one who takes it off, or forgets it.
    pub(crate) fn begin_detaching(&mut self, path: &str) -> Option<Mount> {
        let there = self.host_mounts.get_mut(path).filter(|there| there.attached)?;
        there.attached = false;
        Some(there.mount.clone())
    }

    /// Nothing is mounted there any more.
    pub(crate) fn end_host_mount(&mut self, path: &str) {
        self.host_mounts.remove(path);
    }

    /// What is mounted on a directory of the host.
    pub(crate) fn host_mount(&self, path: &str) -> Option<&Mount> {
        self.host_mounts.get(path).map(|there| &there.mount)
    }

    /// Whose processes may write a volume through a mount here: also sandboxes that are being made, paused or removed.
    pub(crate) fn writers_of(&self, volume: &VolumeName) -> Writers {
        let writes = |mount: &Mount| mount.is_writable() && mount.volume == *volume;
        if self.host_mounts.values().any(|there| writes(&there.mount)) {
            let pool = self.pool.values().flatten().chain(&self.bare);
            return Writers::Anybody { idle: pool.map(|blank| blank.init.pid).collect() };
        }
        let writers = self.holding.iter().filter(|(_, mounts)| mounts.iter().any(writes));
        Writers::Sandboxes(writers.map(|(id, _)| id.clone()).collect())
    }

    /// All that is mounted on directories of the host.
    pub(crate) fn host_mounts(&self) -> Vec<Mount> {
        self.host_mounts.values().map(|there| there.mount.clone()).collect()
    }
}
