//! What this node has made of volumes that nobody has been told of: snapshots of cuts, volumes of copies that do not run yet, volumes on their way
//! into a file or out of one. Each is noted in the state directory before it is asked for, and until somebody knows of it or it is gone: a node
//! that is killed in between removes it when it is started again.

use std::{fmt, fs, io, str::FromStr, sync::Arc, time::Duration};

use base::id::{InvalidId, SnapshotName, VolumeName};
use model::FailureKind;

use super::{Node, supervisor::LEAVE_MAX, volumes::failed};
use crate::error::{Context, Result, chain};

/// Seconds before each attempt to remove something: the store may be away.
const REMOVAL_RESTS_S: [u64; 6] = [0, 1, 2, 4, 16, 64];

const STAYS: &str = "something of a volume that nobody wants any more is there still; removing it is tried again, if need be at the next start";

/// A volume, or a snapshot of one. As text, and so as the name of its note: `VOLUME` or `VOLUME@SNAPSHOT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unseen {
    volume: VolumeName,
    snapshot: Option<SnapshotName>,
}

impl Unseen {
    pub(super) fn volume(volume: &VolumeName) -> Self {
        Self { volume: volume.clone(), snapshot: None }
    }

    pub(super) fn snapshot(volume: &VolumeName, snapshot: &SnapshotName) -> Self {
        Self { volume: volume.clone(), snapshot: Some(snapshot.clone()) }
    }
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.snapshot {
            None => write!(f, "{}", self.volume),
            Some(snapshot) => write!(f, "{}@{snapshot}", self.volume),
        }
    }
}

impl FromStr for Unseen {
    type Err = InvalidId;

    fn from_str(text: &str) -> std::result::Result<Self, InvalidId> {
        match text.split_once('@') {
            None => Ok(Self { volume: text.parse()?, snapshot: None }),
            Some((volume, snapshot)) => Ok(Self { volume: volume.parse()?, snapshot: Some(snapshot.parse()?) }),
        }
    }
}

impl Node {
    /// To be called before it is asked for. Not flushed, as sandboxes stand still meanwhile: the host itself has to live on.
    pub(super) fn note_unseen(&self, unseen: &Unseen) -> Result<()> {
        let path = self.host.config.unseen_dir().join(unseen.to_string());
        fs::File::create(&path).at("create", &path).map(drop)
    }

    /// Somebody knows of it from now on. Not if this fails: as long as it is noted it may be removed.
    pub(super) fn forget_note(&self, unseen: &Unseen) -> Result<()> {
        let path = self.host.config.unseen_dir().join(unseen.to_string());
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.at("remove", &path),
        }
    }

    /// Removes it, also if the request that makes it is still under way. What fails is tried again in the background.
    pub(super) async fn remove_unseen(self: &Arc<Self>, unseen: Unseen) {
        if !self.try_to_remove_unseen(&unseen).await {
            tokio::spawn(Arc::clone(self).remove_all_unseen(vec![unseen]));
        }
    }

    /// False if it fails: the next start of this node tries again at the latest.
    async fn try_to_remove_unseen(&self, unseen: &Unseen) -> bool {
        let removed = match unseen {
            Unseen { volume, snapshot: None } => self.mounts.client.remove(volume).await,
            Unseen { volume, snapshot: Some(snapshot) } => self.mounts.client.remove_snapshot(volume, snapshot).await,
        };
        let removed = match removed {
            Err(volumed::Error::Refused(failure)) if failure.kind == FailureKind::NotFound => Ok(()),
            removed => removed,
        };
        let removed = removed.map_err(failed("remove a volume")).and_then(|()| self.forget_note(unseen));
        if let Err(error) = &removed {
            tracing::warn!(%unseen, error = chain(error), "{STAYS}");
        }
        removed.is_ok()
    }

    /// What is noted. What a recorded sandbox has is not among it: somebody may know of it.
    pub(super) fn noted_unseen(&self) -> Result<Vec<Unseen>> {
        let directory = self.host.config.unseen_dir();
        let mut left = Vec::new();
        for entry in fs::read_dir(&directory).at("list", &directory)? {
            let name = entry.at("list", &directory)?.file_name();
            let Some(unseen) = name.to_str().and_then(|name| name.parse::<Unseen>().ok()) else { continue };
            let sandboxes = self.state().sandboxes();
            let is_used = unseen.snapshot.is_none()
                && sandboxes.iter().flat_map(|record| &record.volumes).any(|mount| mount.volume == unseen.volume);
            if !is_used {
                left.push(unseen);
            } else if let Err(error) = self.forget_note(&unseen) {
                tracing::warn!(%unseen, error = chain(&error), "a volume that is used stays noted as one that nobody knows of");
            }
        }
        Ok(left)
    }

    /// Removes what is still noted when this node stops, as far as that takes no time. The rest is for its next start.
    pub(super) async fn remove_noted_unseen(&self) {
        let remove = async {
            for unseen in self.noted_unseen()? {
                self.try_to_remove_unseen(&unseen).await;
            }
            Ok(())
        };
        let removed = tokio::time::timeout(LEAVE_MAX, remove).await.doing("remove it in time").flatten();
        if let Err(error) = removed {
            tracing::warn!(error = chain(&error), "{STAYS}");
        }
    }

    /// Removes them, more than once if need be: the store may be away.
    pub(super) async fn remove_all_unseen(self: Arc<Self>, mut left: Vec<Unseen>) {
        for rest in REMOVAL_RESTS_S {
            tokio::time::sleep(Duration::from_secs(rest)).await;
            let mut failed = Vec::new();
            for unseen in left {
                if !self.try_to_remove_unseen(&unseen).await {
                    failed.push(unseen);
                }
            }
            if failed.is_empty() {
                return;
            }
            left = failed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_named_by_what_they_note() {
        let volume: VolumeName = "ws".parse().unwrap();
        for unseen in [Unseen::volume(&volume), Unseen::snapshot(&volume, &SnapshotName::random())] {
            assert_eq!(unseen.to_string().parse(), Ok(unseen));
        }
        for wrong in ["", "@", "ws@", "@a", "a@b@c", "../a", ".tmp"] {
            assert!(wrong.parse::<Unseen>().is_err(), "{wrong}");
        }
    }
}
