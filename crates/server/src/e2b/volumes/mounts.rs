//! Volumes in sandboxes: mounts by name, and the volumes that copies get.
//!
//! A copy of a sandbox has forks of the volumes that the original could write, of the same instant as its files and
//! memory. They are volumes of the team from then on, named after the original's and the copy.

use std::{collections::BTreeMap, sync::Arc};

use base::{
    id::{SandboxId, TeamId, VolumeName},
    limits::TEMPLATE_NAME_BYTES_MAX,
};
use control::{ControlError, Reservation, VolumeMount};
use model::Mount;

use crate::e2b::{
    failed::{Failed, Result},
    platform::Platform,
};

impl Platform {
    /// The node's mounts for those that a client names.
    pub(crate) async fn mounts(&self, team: &TeamId, wanted: &[VolumeMount]) -> Result<Vec<Mount>> {
        let mut mounts = Vec::new();
        for VolumeMount { name, path } in wanted {
            let shown: String = name.chars().take(80).collect();
            let missing = || Failed::invalid(format!("volume '{shown}' not found: create it first"));
            let volume = match self.control.volumes().by_name(team, name).await {
                Err(ControlError::NotFound { .. } | ControlError::Invalid { .. }) => return Err(missing()),
                found => found?,
            };
            mounts.push(Mount { volume: volume.node_volume, path: path.clone(), read_only: false, snapshot: None });
        }
        Ok(mounts)
    }

    /// Makes the volumes that a new sandbox has got of its own the team's, and has the sandbox show the names. A failure
    /// leaves volumes that no team has: the caller removes the sandbox with them.
    pub(crate) async fn note_mounts(&self, reservation: &mut Reservation, sandbox: &model::Sandbox) -> Result<()> {
        if sandbox.volumes.is_empty() {
            reservation.set_volume_mounts(Vec::new());
            return Ok(());
        }
        let team = reservation.team().clone();
        let known = self.control.volumes().list(&team).await?.into_iter();
        let mut names: BTreeMap<VolumeName, String> = known.map(|known| (known.node_volume, known.name)).collect();
        for mount in &sandbox.volumes {
            if !names.contains_key(&mount.volume) {
                let name = self.adopt_volume(&team, &mount.volume, &sandbox.id, &names).await?;
                names.insert(mount.volume.clone(), name);
            }
        }
        let mount =
            |mount: &Mount| Some(VolumeMount { name: names.get(&mount.volume)?.clone(), path: mount.path.clone() });
        reservation.set_volume_mounts(sandbox.volumes.iter().filter_map(mount).collect());
        Ok(())
    }

    /// Notes the volume of a copy as the team's. Gives its name.
    async fn adopt_volume(
        &self,
        team: &TeamId,
        volume: &VolumeName,
        copy: &SandboxId,
        names: &BTreeMap<VolumeName, String>,
    ) -> Result<String> {
        let original = volume.as_str().strip_suffix(&format!("-{copy}")).and_then(|name| name.parse().ok());
        let original = original.and_then(|original: VolumeName| names.get(&original));
        let name = original.map_or_else(|| volume.to_string(), |original| name_of_copy(original, copy));
        let adopted = match self.control.volumes().adopt(team, &name, volume.clone()).await {
            // The team has such a name already.
            Err(ControlError::Exists { .. }) => {
                self.control.volumes().adopt(team, volume.as_str(), volume.clone()).await
            }
            adopted => adopted,
        };
        Ok(adopted?.name)
    }

    /// Removes a sandbox that could not be noted, with the volumes that it has got of its own and no team has.
    pub(crate) async fn take_back(self: &Arc<Self>, team: &TeamId, sandbox: &model::Sandbox) {
        for mount in &sandbox.volumes {
            if mount.volume.as_str().ends_with(sandbox.id.as_str())
                && let Err(error) = self.forget_volume(team, &mount.volume).await
            {
                tracing::warn!(volume = %mount.volume, error = error.body().message, "a volume of no sandbox stays noted");
            }
        }
        self.node.undo_starts(std::slice::from_ref(sandbox)).await;
    }

    async fn forget_volume(&self, team: &TeamId, name: &VolumeName) -> Result<()> {
        let known = self.control.volumes().list(team).await?;
        for volume in known.iter().filter(|volume| volume.node_volume == *name) {
            self.control.volumes().delete(team, &volume.id).await?;
        }
        Ok(())
    }
}

/// The name of a volume's copy. It ends with the sandbox, so a long original name is cut.
fn name_of_copy(original: &str, copy: &SandboxId) -> String {
    let room = TEMPLATE_NAME_BYTES_MAX.saturating_sub(copy.as_str().len() + 1);
    let kept: String = original.chars().take(room).collect();
    format!("{kept}-{copy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_named_after_the_original_within_the_limit() {
        let copy: SandboxId = "s0123456789ab".parse().unwrap();
        assert_eq!(name_of_copy("data", &copy), "data-s0123456789ab");
        let long = name_of_copy(&"a".repeat(TEMPLATE_NAME_BYTES_MAX), &copy);
        assert!(long.len() == TEMPLATE_NAME_BYTES_MAX && long.ends_with("a-s0123456789ab"), "{long}");
    }
}
