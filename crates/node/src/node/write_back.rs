//! What programs have written to volumes through mappings (`mmap`) is in the kernel only until it is written back. Whoever takes all of a volume as
//! it is now has that done first; what is written back to a volume after it was restored would be older than it.

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use api::VolumeMount;
use base::id::VolumeName;
use tokio::time::timeout;

use super::{Node, inspect::pids};
use crate::{
    error::{Context, Error, Result},
    state::Writers,
};

/// How long it may take.
const WRITE_BACK_MAX: Duration = Duration::from_secs(10);

/// How long for those of other volumes before.
const TURN_MAX: Duration = Duration::from_secs(30);

/// How many may be under way: while the store is away and too much is dirty each keeps its thread, also when nobody waits for it any more.
pub(super) const AT_ONCE: usize = 16;

impl Node {
    /// Has written back what programs on this node have in a volume, if they can write it.
    pub(crate) async fn write_back(self: &Arc<Self>, volume: &VolumeName) -> Result<()> {
        let Some((mount, holder)) = self.state().writer_of(volume) else { return Ok(()) };
        let node = Arc::clone(self);
        // To its end, although the client may go away: it may be a holder again.
        let written = tokio::spawn(async move {
            let written = node.write_back_in(&mount, &holder).await;
            if node.state().writer_of(&mount.volume).is_none_or(|(_, now)| now != holder) {
                // It may have become a holder again after its end.
                node.sweep_work.notify_one();
            }
            written
        });
        written.await.doing("write mappings back").flatten()
    }

    async fn write_back_in(&self, mount: &VolumeMount, holder: &str) -> Result<()> {
        // One that only reads takes nothing away from another node, and shows which filesystem it is all the same.
        let reader = VolumeMount { read_only: true, ..mount.clone() };
        let tree = match self.detached_mount(&reader, holder.to_owned()).await {
            Ok(tree) => tree,
            // Another node writes it, or it cannot be written any more: then there is nothing that could be written back.
            Err(Error::VolumeRefused { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        // It is never closed.
        let turn = timeout(TURN_MAX, Arc::clone(&self.writing_back).acquire_owned()).await;
        let turn = turn.doing("write mappings of other volumes back in time")?;
        let writers = self.writers(&mount.volume)?;
        let written = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            write_back(&writers, &tree)
        });
        let written = timeout(WRITE_BACK_MAX, written).await.doing("write mappings back in time")?;
        written.doing("write mappings back").flatten()
    }

    /// The processes that may have files of a volume mapped so that they can be written.
    pub(super) fn writers(&self, volume: &VolumeName) -> Result<Vec<i32>> {
        let writers = self.state().writers_of(volume);
        let sandboxes = match writers {
            Writers::Sandboxes(sandboxes) => sandboxes,
            Writers::Anybody => return process::all_processes().map_err(io::Error::other).doing("write mappings back"),
        };
        let mut processes = Vec::new();
        for sandbox in sandboxes {
            processes.extend(pids(&self.group(&sandbox))?);
        }
        Ok(processes)
    }
}

/// Writes back all that these processes have written through mappings to a mount's volume, and waits for it. Blocks.
pub(super) fn write_back(writers: &[i32], tree: &OwnedFd) -> Result<()> {
    process::write_back(writers, tree).map_err(io::Error::other).doing("write mappings back")
}
