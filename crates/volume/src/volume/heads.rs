//! What needs no more than the heads, so no volume that is open: forks, names for what is committed, removals.

use store::{
    heads::{Head, HeadName, HeadsError},
    id::ManifestId,
    manifest::Manifest,
};

use super::{Origin, Snapshot, Volumes, birth::Birth, head_name, note, random};
use crate::{VolumeError, inode::Time, limits::HEAD_TRIES};

impl Volumes {
    /// Makes volume `name` with what `origin` holds: one row of the heads. What is not committed there is not in it: see
    /// [`super::Volume::commit`].
    pub fn fork(&self, origin: &Origin, name: &str) -> Result<(), VolumeError> {
        let (from, to) = (head_name(origin)?, head_name(&Origin::Volume(name.to_owned()))?);
        self.runtime.block_on(self.duplicate(&from, &to, &birth_note())).map(drop)
    }

    /// As [`Volumes::fork`], of a state that has no name of its own: `manifest`, which what `keeper` names includes, such as a checkpoint.
    pub fn fork_included(&self, keeper: &HeadName, manifest: ManifestId, name: &str) -> Result<(), VolumeError> {
        let (to, birth) = (head_name(&Origin::Volume(name.to_owned()))?, birth_note());
        let named = self.on_head(keeper, async |head| match self.includes(&head, manifest).await {
            Ok(true) => self.heads.name_kept(&head, manifest, &to, &birth).await.map(|_| Ok(true)),
            other => Ok(other),
        });
        match self.runtime.block_on(named) {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) | Err(HeadsError::NotFound { .. }) => {
                Err(VolumeError::NotKept { keeper: keeper.to_string(), manifest: manifest.to_string() })
            }
            Ok(Err(error)) => Err(error),
            Err(error) => Err(VolumeError::heads(keeper.as_str())(error)),
        }
    }

    async fn includes(&self, keeper: &Head, manifest: ManifestId) -> Result<bool, VolumeError> {
        let keeping = Manifest::read(&self.store, keeper.manifest).await;
        Ok(keeping.map_err(VolumeError::store("read what keeps the state"))?.includes.contains(&manifest))
    }

    /// Names the last commit of `volume`, whoever writes it, as [`super::Volume::snapshot`] names what is written here.
    pub fn snapshot(&self, volume: &str, snapshot: &str, note: &str) -> Result<Snapshot, VolumeError> {
        let origin = Origin::Snapshot { volume: volume.to_owned(), snapshot: snapshot.to_owned() };
        let (from, to) = (head_name(&Origin::Volume(volume.to_owned()))?, head_name(&origin)?);
        let named = self.runtime.block_on(async {
            let sealed = note::seal(&self.store, note).await?;
            self.duplicate(&from, &to, &sealed).await
        })?;
        Ok(Snapshot { name: snapshot.to_owned(), created_ms: named.updated_ms, note: note.to_owned() })
    }

    /// Removes a snapshot, or a volume; snapshots of a volume stay. Whoever has it open is fenced off.
    pub fn remove(&self, origin: &Origin) -> Result<(), VolumeError> {
        let name = head_name(origin)?;
        let removed = self.runtime.block_on(self.heads.remove_name(self.store.realm(), &name));
        removed.map_err(VolumeError::heads(name.as_str()))
    }

    async fn duplicate(&self, from: &HeadName, to: &HeadName, note: &str) -> Result<Head, VolumeError> {
        let made = self.on_head(from, async |head| self.heads.duplicate(&head, to, note).await).await;
        made.map_err(VolumeError::heads(from.as_str()))
    }

    /// Does something with a head as it is now, whoever changes it meanwhile.
    async fn on_head<T>(
        &self,
        name: &HeadName,
        act: impl AsyncFn(Head) -> Result<T, HeadsError>,
    ) -> Result<T, HeadsError> {
        let mut tries = HEAD_TRIES;
        loop {
            tries -= 1;
            match act(self.heads.get(self.store.realm(), name).await?).await {
                // A commit came between, or an opening.
                Err(HeadsError::Moved { .. } | HeadsError::Fenced { .. }) if tries > 0 => {}
                done => return done,
            }
        }
    }
}

/// Of a fork that is made now.
fn birth_note() -> String {
    Birth { incarnation: random(), created: Time::now() }.encode()
}
