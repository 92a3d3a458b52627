//! What programs have written to volumes through mappings (`mmap`) is in the kernel only until it is written back. Whoever takes all of a volume as
//! it is now has that done first; what is written back to a volume after it was restored would be older than it.

use std::{collections::HashSet, io, path::PathBuf, sync::Arc, time::Duration};

use base::id::VolumeName;
use procfs::{Filesystem, Idle, Whose};
use tokio::time::timeout;

use super::{Node, inspect::pids};
use crate::{
    error::{Context, Result},
    state::Writers,
};

/// How long it may take.
const WRITE_BACK_MAX: Duration = Duration::from_secs(10);

/// How long for those of other volumes before.
const TURN_MAX: Duration = Duration::from_secs(30);

/// How many may be under way: while the store is away and too much is dirty each keeps its thread, also when nobody waits for it any more.
pub(super) const AT_ONCE: usize = 16;

impl Node {
    /// Has written back what programs on this node have written to a volume.
    pub async fn write_back(&self, volume: &VolumeName) -> Result<()> {
        let writers = self.state().writers_of(volume);
        let whose = match writers {
            Writers::Sandboxes(sandboxes) if sandboxes.is_empty() => return Ok(()),
            Writers::Sandboxes(sandboxes) => Processes::Of(sandboxes.iter().map(|id| self.group(id)).collect()),
            Writers::Anybody { idle } => {
                let keeper = self.keepers.pid();
                Processes::All { keeper, idle }
            }
        };
        // It is never closed.
        let turn = timeout(TURN_MAX, Arc::clone(&self.mounts.writing_back).acquire_owned()).await;
        let turn = turn.doing("write mappings of other volumes back in time")?;
        let volume = volume.clone();
        let written = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            whose.write_back(&volume)
        });
        let written = timeout(WRITE_BACK_MAX, written).await.doing("write mappings back in time")?;
        written.doing("write mappings back").flatten()
    }
}

/// Whose mappings are written back.
enum Processes {
    /// Those in these control groups.
    Of(Vec<PathBuf>),
    /// All, but for children of the keeper that map nothing.
    All { keeper: Option<u32>, idle: HashSet<i32> },
}

impl Processes {
    /// Blocks.
    fn write_back(&self, volume: &VolumeName) -> Result<()> {
        let filesystem = Filesystem { kind: volumed::FILESYSTEM, source: volume.as_str() };
        let written = match self {
            Self::Of(groups) => {
                let processes = groups.iter().map(|group| pids(group)).collect::<Result<Vec<_>>>()?.concat();
                procfs::write_back(Whose::These(&processes), filesystem)
            }
            Self::All { keeper, idle } => {
                let idle = keeper.map(|keeper| Idle { parent: keeper as i32, children: idle });
                procfs::write_back(Whose::Anybody(idle), filesystem)
            }
        };
        written.map_err(io::Error::other).doing("write mappings back")
    }
}
