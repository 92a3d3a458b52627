//! Volumes as a whole: making, opening, committing; snapshots, forks and restores, which cost the same whatever a volume holds.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::io::Errno;
use store::{
    Store,
    heads::{Head, HeadName, Heads, HeadsError, Lease},
};
use tokio::runtime::Handle;

use self::follow::Leases;
use crate::{
    VolumeError,
    compact::{self, Effort, Plan},
    crash,
    engine::{Engine, Memory},
    inode::{Inode, Kind, ROOT, Time},
    layouts::Layouts,
    limits,
    materialise::{Committed, Layout, Target},
    pack::Segments,
    request,
    state::{Durability, NO_EPOCH, Superblock},
};

mod about;
mod birth;
mod follow;
mod heads;
mod health;
mod note;
mod open;
#[cfg(test)]
mod planted;
mod restore;
mod states;

pub use about::{About, Snapshot};
pub use follow::Forget;
pub use health::Health;

/// Bounds of a new volume, and whose its top directory is.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of data.
    pub bytes_max: u64,
    /// Files, directories and all else.
    pub inodes_max: u64,
    /// Of the top directory.
    pub mode: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// What `fsync` promises.
    pub durability: Durability,
}

impl Default for Options {
    fn default() -> Self {
        Self { bytes_max: 10 << 30, inodes_max: 10 << 20, mode: 0o755, uid: 0, gid: 0, durability: Durability::Local }
    }
}

/// A state that others come from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the words say it
pub enum Origin {
    Volume(String),
    Snapshot { volume: String, snapshot: String },
}

/// Says whether the kernel has been answered all that it asked again.
type RepeatsEnded = Box<dyn Fn() -> bool + Send + Sync>;

/// The volumes of one realm, as this node reaches them. Functions block: they are not for threads of the runtime.
#[derive(Clone)]
pub struct Volumes {
    heads: Heads,
    store: Store,
    runtime: Handle,
    /// For logs: one folder for each volume.
    folder: PathBuf,
    memory: Memory,
    layouts: Layouts,
}

/// A volume that is open here.
pub struct Volume {
    name: String,
    volumes: Volumes,
    engine: Engine,
    durability: Durability,
    /// Of the head since this node became the writer; a reader's says nothing.
    generation: u64,
    /// Held during a commit: there is one at a time.
    committed: Mutex<Committed>,
    /// Of a reader: keep what it reads.
    leases: Mutex<Leases>,
    health: health::Watched,
    /// See [`Volume::keep_requests_until`].
    repeats: Mutex<Option<RepeatsEnded>>,
    /// See [`Volume::was_restored`].
    restored: bool,
}

impl Volumes {
    /// The volumes whose heads and chunks are there. Logs go below `folder`, on a disk of this node.
    pub fn new(heads: Heads, store: Store, runtime: Handle, folder: PathBuf) -> Self {
        Self { heads, store, runtime, folder, memory: Memory::default(), layouts: Layouts::none_yet() }
    }

    /// With other bounds for the volumes that are opened from here on.
    pub fn with_memory(self, memory: Memory) -> Self {
        Self { memory, ..self }
    }

    /// Makes an empty volume.
    pub fn create(&self, name: &str, options: &Options) -> Result<(), VolumeError> {
        let superblock = Superblock {
            salt: random(),
            epoch: NO_EPOCH,
            sequence: 0,
            next_ino: ROOT.0 + 1,
            bytes: 0,
            inodes: 1,
            bytes_max: options.bytes_max,
            inodes_max: options.inodes_max,
            durability: options.durability,
            created: Time::now(),
            incarnation: random(),
        };
        let head = head_name(&Origin::Volume(name.to_owned()))?;
        self.runtime.block_on(async {
            let mut lease = self.target(name).lease(&self.store).await?;
            let finished = Default::default();
            let mut segments = Segments { heads: &self.heads, store: &self.store, lease: &mut lease, finished };
            let layout = Layout::first(&mut segments, superblock, top_directory(options)).await?;
            self.create_head(name, &head, &layout, &lease).await
        })
    }

    /// Names of all volumes, or of all snapshots of one.
    pub fn list(&self, snapshots_of: Option<&str>) -> Result<Vec<String>, VolumeError> {
        let prefix = snapshots_of.map_or_else(|| "volumes/".to_owned(), snapshots_prefix);
        let heads = self.heads_below(&prefix)?.into_iter();
        Ok(heads
            .filter_map(|head| {
                let rest = head.name.as_str().strip_prefix(&prefix)?;
                let volume = || rest.split_once('/').filter(|(_, part)| *part == "head").map(|(name, _)| name);
                if snapshots_of.is_none() { volume() } else { Some(rest) }.map(str::to_owned)
            })
            .collect())
    }

    /// Names of volumes that were removed, with how many snapshots each has.
    pub fn removed(&self) -> Result<BTreeMap<String, usize>, VolumeError> {
        const PREFIX: &str = "volumes/";
        let mut snapshots: BTreeMap<String, usize> = BTreeMap::new();
        let heads = self.heads_below(PREFIX)?;
        let parts = || heads.iter().filter_map(|head| head.name.as_str().strip_prefix(PREFIX)?.split_once('/'));
        for (name, _) in parts().filter(|(_, part)| *part != "head") {
            *snapshots.entry(name.to_owned()).or_default() += 1;
        }
        for (name, _) in parts().filter(|(_, part)| *part == "head") {
            snapshots.remove(name);
        }
        Ok(snapshots)
    }

    fn heads_below(&self, prefix: &str) -> Result<Vec<Head>, VolumeError> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let heads = self.heads.list(self.store.realm(), prefix, after.as_ref());
            let heads = self.runtime.block_on(heads).map_err(VolumeError::heads(prefix))?;
            let Some(last) = heads.last() else { return Ok(found) };
            after = Some(last.name.clone());
            found.extend(heads);
        }
    }

    async fn create_head(
        &self,
        name: &str,
        head: &HeadName,
        layout: &Layout,
        lease: &Lease,
    ) -> Result<(), VolumeError> {
        let id = self.target(name).write_manifest(&self.store, layout, lease).await?;
        let created = self.heads.create(self.store.realm(), head, id, lease).await;
        created.map(drop).map_err(VolumeError::heads(name))
    }

    fn target<'a>(&'a self, volume: &'a str) -> Target<'a> {
        Target { heads: &self.heads, layouts: &self.layouts, volume }
    }
}

impl Volume {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The filesystem.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What `fsync` of any file does: makes durable what was done so far, as the volume was opened.
    pub fn sync(&self) -> Result<(), Errno> {
        match self.durability {
            Durability::Local => self.engine.sync(),
            Durability::Object if self.engine.wal().is_none() => Ok(()),
            Durability::Object => self.commit().map_err(|error| {
                tracing::error!(volume = self.name, %error, "a sync failed");
                Errno::IO
            }),
        }
    }

    /// Writes what was done so far to the store and moves the head. Work goes on meanwhile.
    pub fn commit(&self) -> Result<(), VolumeError> {
        self.commit_under(&mut self.committed(), &Plan::default(), || ())
    }

    /// Moves what lies in segments that are little used, so that they can go and a manifest names few: a commit that takes longer. What
    /// there is to move is found out before, while work and commits go on. True if there was something.
    pub fn compact(&self, effort: Effort) -> Result<bool, VolumeError> {
        self.wal()?;
        let name = self.committed().head.name.clone();
        let runtime = &self.volumes.runtime;
        let (state, lease) = runtime.block_on(self.volumes.open_under_lease(&name))?;
        let planned = runtime.block_on(compact::plan(self.engine.loader(), &state.layout, effort));
        runtime.block_on(self.volumes.heads.release(lease)).map_err(VolumeError::heads(&self.name))?;
        let plan = planned?;
        let mut committed = self.committed();
        if plan.is_empty() || committed.layout.superblock.epoch != plan.epoch {
            return Ok(false);
        }
        self.commit_under(&mut committed, &plan, || ())?;
        Ok(true)
    }

    /// Commits, and names the state `snapshot`, with a note for people: at most [`crate::limits::NOTE_BYTES_MAX`].
    pub fn snapshot(&self, snapshot: &str, note: &str) -> Result<Snapshot, VolumeError> {
        self.snapshot_telling(snapshot, note, || ())
    }

    /// As [`Volume::snapshot`]. `fixed` is called as soon as it is settled what will be in the snapshot, which takes no longer in a volume that holds
    /// much: all that was done before, and nothing of what is done from then on. The snapshot may fail nevertheless.
    pub fn snapshot_telling(&self, snapshot: &str, note: &str, fixed: impl FnOnce()) -> Result<Snapshot, VolumeError> {
        let mut committed = self.committed();
        self.commit_under(&mut committed, &Plan::default(), fixed)?;
        self.name_state(&committed.head, snapshot, note)
    }

    /// Commits and ends: nothing can be changed any more, and what the kernel held is forgotten. Without this a volume ends as in a
    /// crash: the log has what was synced. If this fails, the volume goes on as before.
    pub fn close(&self) -> Result<(), VolumeError> {
        if self.engine.wal().is_none() {
            let leases = std::mem::take(&mut *self.leases());
            return leases.into_iter().try_for_each(|(_, lease)| self.release(lease));
        }
        self.commit()?;
        self.engine.reap_all().map_err(VolumeError::store("remove files without a name"))?;
        self.engine.forbid_changes();
        self.commit()
    }

    fn commit_under(&self, committed: &mut Committed, plan: &Plan, fixed: impl FnOnce()) -> Result<(), VolumeError> {
        let done = self.commit_once(committed, plan, fixed);
        self.health.note(&done);
        done
    }

    fn commit_once(&self, committed: &mut Committed, plan: &Plan, fixed: impl FnOnce()) -> Result<(), VolumeError> {
        let wal = self.wal()?;
        // A log that fails is one more reason to commit what is in memory.
        let rotated = wal.rotate();
        if rotated.is_err() {
            self.engine.forbid_changes();
        }
        let target = self.volumes.target(&self.name);
        match self.volumes.runtime.block_on(target.materialise(&self.engine, committed, plan, fixed)) {
            Ok(next) => *committed = next,
            Err(error) => {
                if let VolumeError::Fenced { .. } | VolumeError::NotFound { .. } = error {
                    self.engine.forbid_changes();
                }
                return Err(error);
            }
        }
        // A request that was done and is not answered must be found in the log if this process dies now. If one takes long, the next commit
        // removes what this one leaves.
        if self.have_repeats_ended() && request::all_answered(self.engine.number(), limits::ANSWER_PATIENCE) {
            wal.remove_through(committed.layout.superblock.sequence)?;
        }
        Ok(rotated?)
    }

    /// Has commits leave what the log says of requests, until one of them finds that they `ended`: the kernel may ask for them again.
    pub fn keep_requests_until(&self, ended: impl Fn() -> bool + Send + Sync + 'static) {
        *self.repeats() = Some(Box::new(ended));
    }

    fn have_repeats_ended(&self) -> bool {
        let mut repeats = self.repeats();
        if repeats.as_ref().is_some_and(|ended| !ended()) {
            return false;
        }
        *repeats = None;
        true
    }

    fn name_state(&self, committed: &Head, snapshot: &str, note: &str) -> Result<Snapshot, VolumeError> {
        let origin = Origin::Snapshot { volume: self.name.clone(), snapshot: snapshot.to_owned() };
        let (name, volumes) = (head_name(&origin)?, &self.volumes);
        let named = volumes.runtime.block_on(async {
            let sealed = note::seal(&volumes.store, note).await?;
            volumes.heads.duplicate(committed, &name, &sealed).await.map_err(VolumeError::heads(name.as_str()))
        });
        crash::point("snapshot named");
        named.map(|head| Snapshot { name: snapshot.to_owned(), created_ms: head.updated_ms, note: note.to_owned() })
    }

    fn wal(&self) -> Result<&crate::wal::Wal, VolumeError> {
        self.engine.wal().ok_or_else(|| VolumeError::ReadOnly { name: self.name.clone() })
    }

    fn committed(&self) -> MutexGuard<'_, Committed> {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn repeats(&self) -> MutexGuard<'_, Option<RepeatsEnded>> {
        self.repeats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn top_directory(options: &Options) -> Inode {
    let now = Time::now();
    Inode {
        kind: Kind::Directory,
        mode: options.mode,
        uid: options.uid,
        gid: options.gid,
        links: 2,
        size: 0,
        allocated: 0,
        device: 0,
        accessed: now,
        modified: now,
        changed: now,
        born: now,
        parent: ROOT,
        cookie: 0,
        target: Vec::new(),
    }
}

/// The head that names a state.
pub fn head_name(origin: &Origin) -> Result<HeadName, VolumeError> {
    let (text, parts) = match origin {
        Origin::Volume(name) => (format!("volumes/{name}/head"), vec![name]),
        Origin::Snapshot { volume, snapshot } => {
            (format!("volumes/{volume}/snapshots/{snapshot}"), vec![volume, snapshot])
        }
    };
    // A realm's name has the same rule.
    if let Some(bad) = parts.into_iter().find(|part| part.parse::<store::id::Realm>().is_err()) {
        return Err(VolumeError::Name { name: bad.chars().take(base::limits::NAME_BYTES_MAX).collect() });
    }
    text.parse().map_err(|source: HeadsError| VolumeError::Heads { name: text.clone(), source: source.into() })
}

fn snapshots_prefix(volume: &str) -> String {
    format!("volumes/{volume}/snapshots/")
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    base::id::fill_random(&mut bytes);
    bytes
}
