//! Who may have volumes mounted: sandboxes, and directories of the host.

use api::{SandboxState, VolumeMount};
use base::id::{SandboxId, VolumeName};

use super::State;
use crate::{
    error::{Error, Result},
    node::HOST,
    records::SandboxRecord,
};

impl State {
    /// A sandbox may hold volumes from here on.
    pub(crate) fn begin_holding(&mut self, id: &SandboxId) {
        self.holding.insert(id.clone());
    }

    /// It is gone. Whether it held any.
    pub(crate) fn end_holding(&mut self, id: &SandboxId) -> bool {
        self.holding.remove(id)
    }

    /// Admits a mount on a directory of the host: one there.
    pub(crate) fn begin_host_mount(&mut self, mount: &VolumeMount) -> Result<()> {
        if let Some(there) = self.host_mounts.get(&mount.path) {
            let reason = format!("volume {} is mounted there", there.volume);
            return Err(Error::HostPath { path: mount.path.clone(), reason });
        }
        self.host_mounts.insert(mount.path.clone(), mount.clone());
        Ok(())
    }

    /// Nothing is mounted there any more.
    pub(crate) fn end_host_mount(&mut self, path: &str) {
        self.host_mounts.remove(path);
    }

    /// What is mounted on a directory of the host.
    pub(crate) fn host_mount(&self, path: &str) -> Option<&VolumeMount> {
        self.host_mounts.get(path)
    }

    /// A mount here by which a volume can be written, and who holds it.
    pub(crate) fn writer_of(&self, volume: &VolumeName) -> Option<(VolumeMount, String)> {
        let writes = |mount: &&VolumeMount| mount.is_writable() && mount.volume == *volume;
        let alive = |record: &&SandboxRecord| matches!(record.state, SandboxState::Running | SandboxState::Exited(_));
        let in_sandbox = self
            .sandboxes
            .values()
            .filter(alive)
            .flat_map(|record| record.volumes.iter().map(|mount| (mount, record.id.to_string())));
        let on_host = self.host_mounts.values().map(|mount| (mount, format!("{HOST}{}", mount.path)));
        in_sandbox.chain(on_host).find(|(mount, _)| writes(mount)).map(|(mount, holder)| (mount.clone(), holder))
    }

    /// All that is mounted on directories of the host.
    pub(crate) fn host_mounts(&self) -> Vec<VolumeMount> {
        self.host_mounts.values().cloned().collect()
    }
}
