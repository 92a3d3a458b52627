//! What there is to say of volumes and snapshots that need not be open.

use store::heads::{Head, HeadsError};

use super::{Origin, Volumes, birth::Birth, head_name, note, snapshots_prefix};
use crate::{
    VolumeError,
    engine::Usage,
    inode::Time,
    materialise::Layout,
    state::{Durability, Superblock},
};

/// A volume as its head has it: what is not committed is not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Changes whenever a node takes the volume over.
    pub generation: u64,
    /// The manifest that the head names: changes with each commit, and with a restore to another one.
    pub manifest: String,
    /// When the head was last changed, in milliseconds since 1970.
    pub committed_ms: u64,
    /// How full it is.
    pub usage: Usage,
    /// What `fsync` promises.
    pub durability: Durability,
    /// When the volume was made.
    pub created: Time,
    /// Segments that the manifest names.
    pub segments: usize,
}

/// A state with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Among those of its volume.
    pub name: String,
    /// When it was taken, in milliseconds since 1970.
    pub created_ms: u64,
    /// What whoever took it had to say.
    pub note: String,
}

/// Times that a head is read again because a commit has moved it, and the collector taken what it named, before that was read.
const ATTEMPTS: usize = 5;

impl Volumes {
    /// What the head of a volume, or a snapshot, says. No lease, nothing is changed.
    pub fn inspect(&self, origin: &Origin) -> Result<About, VolumeError> {
        let name = head_name(origin)?;
        self.runtime.block_on(async {
            let get =
                async || self.heads.get(self.store.realm(), &name).await.map_err(VolumeError::heads(name.as_str()));
            let mut head = get().await?;
            for _ in 0..ATTEMPTS {
                match self.layout(&head).await {
                    Ok(layout) => return Ok(about(&head, &layout)),
                    Err(error) => {
                        let now = get().await?;
                        if now.manifest == head.manifest {
                            return Err(error);
                        }
                        head = now;
                    }
                }
            }
            let (realm, name) = (head.realm, head.name);
            Err(VolumeError::heads(name.as_str())(HeadsError::NotFound { realm, name: name.clone() }))
        })
    }

    /// The snapshots of a volume, newest first.
    pub fn log(&self, volume: &str) -> Result<Vec<Snapshot>, VolumeError> {
        head_name(&Origin::Volume(volume.to_owned()))?;
        let prefix = snapshots_prefix(volume);
        let mut heads = self.heads_below(&prefix)?;
        // Generations are given out by one counter: their order is that of the snapshots, whatever clocks said.
        heads.sort_unstable_by_key(|head| std::cmp::Reverse(head.generation));
        let snapshot = async |head: Head| {
            let name = head.name.as_str().strip_prefix(&prefix).unwrap_or_default().to_owned();
            let note = note::open(&self.store, &head.note).await;
            Snapshot { name, created_ms: head.updated_ms, note: note.unwrap_or_else(|| "(unreadable)".to_owned()) }
        };
        self.runtime.block_on(async {
            let mut snapshots = Vec::with_capacity(heads.len());
            for head in heads {
                snapshots.push(snapshot(head).await);
            }
            Ok(snapshots)
        })
    }
}

fn about(head: &Head, layout: &Layout) -> About {
    let birth = Birth::of(&head.note, &layout.superblock);
    let Superblock { bytes, bytes_max, inodes, inodes_max, durability, created, .. } = layout.superblock;
    About {
        generation: head.generation,
        manifest: head.manifest.to_string(),
        committed_ms: head.updated_ms,
        usage: Usage { bytes, bytes_max, inodes, inodes_max },
        durability,
        created: birth.map_or(created, |birth| birth.created),
        segments: layout.segments.len(),
    }
}
