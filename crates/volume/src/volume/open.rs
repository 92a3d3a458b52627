//! Opening: taking over, and finding out what this node still knows of a volume.

use std::{collections::BTreeSet, sync::Mutex, time::Instant};

use store::{heads::Lease, tree::Tree};

use super::{Origin, Volume, Volumes, birth::Birth, follow::Writer, head_name, health::Watched, random};
use crate::{
    VolumeError, crash,
    engine::Engine,
    inode::Ino,
    key::{Key, Part},
    loader::Loader,
    materialise::Committed,
    op::Record,
    recover::{self, Recovered},
    state::{self, State, Superblock},
    wal::Wal,
};

/// Whether a volume is taken over from another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Always,
    UnlessElsewhere,
}

impl Volumes {
    /// Opens `name` for writing: this node is its only writer from now on. What the log on this node's disk has beyond the head is
    /// repeated, if nobody else has written the volume since; else the log is set aside, untouched.
    pub fn open(&self, name: &str) -> Result<Volume, VolumeError> {
        self.open_for(name, Claim::Always)
    }

    /// As [`Volumes::open`], unless another node writes the volume or was the last that did: then it is [`VolumeError::Elsewhere`], and nothing was
    /// taken from there.
    pub fn open_unless_elsewhere(&self, name: &str) -> Result<Volume, VolumeError> {
        self.open_for(name, Claim::UnlessElsewhere)
    }

    fn open_for(&self, name: &str, claim: Claim) -> Result<Volume, VolumeError> {
        let volume = self.open_log(name, claim)?;
        volume.engine.reap_unused().map_err(VolumeError::store("remove files without a name"))?;
        Ok(volume)
    }

    /// As [`Volumes::open`], in the place of a process of this node that died while the kernel used the volume: files without a name stay
    /// for as long as the kernel knows them, [`Engine::done`] tells what was done already of what the kernel asks again, and a volume that
    /// somebody else has written since is refused, because nothing that the kernel knows of it holds.
    pub fn adopt(&self, name: &str) -> Result<Volume, VolumeError> {
        let writer = self.check_ours(name)?;
        let mut volume = self.open_log(name, Claim::Always)?;
        volume.engine.lock().map_err(VolumeError::store("adopt"))?.adopt();
        volume.restored = writer == Writer::HereRestored;
        Ok(volume)
    }

    fn open_log(&self, name: &str, claim: Claim) -> Result<Volume, VolumeError> {
        let folder = self.log_folder(name)?;
        let (committed, recovered) = self.runtime.block_on(self.take_over(name, claim))?;
        let (superblock, files) = (committed.layout.superblock.clone(), committed.layout.files);
        let (epoch, durability) = (superblock.epoch, superblock.durability);
        let mut engine = self.engine(superblock.clone(), files)?;
        let (committed_through, mut last) = (superblock.sequence, superblock.sequence);
        // What cannot be read of these is not needed to go on.
        for record in recovered.committed.iter().filter_map(|operation| Record::decode(operation).ok()) {
            engine.remember(&record, None);
        }
        for (sequence, operation) in recovered.operations {
            let record = Record::decode(&operation).map_err(VolumeError::store("read a record of the log"))?;
            engine.replay(sequence, &record)?;
            last = sequence;
        }
        let key = self.runtime.block_on(self.store.keys().current());
        let key = key.map_err(VolumeError::store("get the key of the log"))?;
        let span = (committed_through, last);
        engine.attach(Wal::begin(&folder, self.store.realm(), key, epoch, span, recovered.files)?);
        recover::set_others_aside(&folder, epoch)?;
        let generation = committed.head.generation;
        let (committed, leases) = (Mutex::new(committed), Mutex::default());
        Ok(Volume {
            name: name.to_owned(),
            volumes: self.clone(),
            engine,
            durability,
            generation,
            committed,
            leases,
            health: Watched::default(),
            repeats: Mutex::default(),
            restored: false,
        })
    }

    /// Does the log on this node's disk go on from the head, or end where this node restored the volume?
    fn check_ours(&self, name: &str) -> Result<Writer, VolumeError> {
        let head = head_name(&Origin::Volume(name.to_owned()))?;
        let (head, layout) = self.runtime.block_on(async {
            let head = self.heads.get(self.store.realm(), &head).await.map_err(VolumeError::heads(name))?;
            let layout = self.layout(&head).await?;
            Ok::<_, VolumeError>((head, layout))
        })?;
        match self.writer(name, &head, &layout)? {
            ours @ (Writer::Here | Writer::HereRestored) => Ok(ours),
            Writer::Nobody | Writer::Elsewhere => Err(VolumeError::NotOurs { name: name.to_owned() }),
        }
    }

    /// Opens a volume's last commit, or a snapshot, for reading. It stays what it is, also while somebody writes the volume, until
    /// [`Volume::follow`] is called.
    pub fn open_to_read(&self, origin: &Origin) -> Result<Volume, VolumeError> {
        let name = head_name(origin)?;
        let (committed, lease) = self.runtime.block_on(self.open_under_lease(&name))?;
        let engine = self.engine(committed.layout.superblock.clone(), committed.layout.files)?;
        let durability = committed.layout.superblock.durability;
        let generation = committed.head.generation;
        let leases = Mutex::new([(Instant::now(), lease)].into());
        let (name, committed) = (name.to_string(), Mutex::new(committed));
        let (volumes, health, repeats) = (self.clone(), Watched::default(), Mutex::default());
        let restored = false;
        Ok(Volume { name, volumes, engine, durability, generation, committed, leases, health, repeats, restored })
    }

    /// A snapshot, kept by a lease.
    pub(super) fn snapshot_under_lease(&self, volume: &str, snapshot: &str) -> Result<(Committed, Lease), VolumeError> {
        let name = head_name(&Origin::Snapshot { volume: volume.to_owned(), snapshot: snapshot.to_owned() })?;
        self.runtime.block_on(self.open_under_lease(&name))
    }

    pub(super) async fn open_under_lease(
        &self,
        name: &store::heads::HeadName,
    ) -> Result<(Committed, Lease), VolumeError> {
        let (head, lease) = self.target(name.as_str()).open(&self.store, name).await?;
        match self.layout(&head).await {
            Ok(layout) => Ok((Committed::new(head, layout), lease)),
            Err(error) => {
                // Else it ends by itself.
                let _ = self.heads.release(lease).await;
                Err(error)
            }
        }
    }

    /// Makes this node the writer, and finds the log that goes on from the head.
    async fn take_over(&self, name: &str, claim: Claim) -> Result<(Committed, Recovered), VolumeError> {
        let failed = || VolumeError::heads(name);
        let folder = self.log_folder(name)?;
        let head_name = head_name(&Origin::Volume(name.to_owned()))?;
        let seen = self.heads.get(self.store.realm(), &head_name).await.map_err(failed())?;
        if claim == Claim::UnlessElsewhere {
            let layout = self.layout(&seen).await?;
            if self.writer(name, &seen, &layout)? == Writer::Elsewhere {
                return Err(VolumeError::Elsewhere { name: name.to_owned() });
            }
        }
        // Only as it was seen: of a node that was faster nothing is taken.
        let head = self.heads.take_over(&seen).await.map_err(failed())?;
        crash::point("taken over");
        let mut layout = self.layout(&head).await?;
        let about = &layout.superblock;
        let birth = Birth::of(&head.note, about);
        match self.writer(name, &head, &layout)? {
            Writer::Here => {
                let recovered = recover::read(&folder, &self.store, about.sequence).await?;
                return Ok((Committed::new(head, layout), recovered));
            }
            Writer::HereRestored if recover::epochs(&folder)?.contains(&about.epoch) => {
                recover::set_others_aside(&folder, about.epoch)?;
                let recovered = recover::read(&folder, &self.store, about.sequence).await?;
                return Ok((Committed::new(head, layout), recovered));
            }
            // The log of before stays until the next one is begun: whoever comes after this process must see that it was ours.
            Writer::HereRestored => return Ok((Committed::new(head, layout), Recovered::default())),
            Writer::Nobody | Writer::Elsewhere => match recover::epochs(&folder)?.first() {
                Some(epoch) => {
                    let aside = recover::set_aside(&folder, *epoch)?;
                    tracing::warn!(name, aside = %aside.display(), "somebody else has written the volume: the log is set aside");
                }
                None => recover::clear(&folder)?,
            },
        }
        // From here on no log but this node's goes on from the head.
        layout.superblock.epoch = random();
        if let Some(Birth { incarnation, created }) = birth {
            layout.superblock = Superblock { incarnation, created, ..layout.superblock };
        }
        let target = self.target(name);
        let lease = target.lease(&self.store).await?;
        let committed = target.commit(&self.store, &head, layout, &lease).await?;
        Ok((committed, Recovered::default()))
    }

    fn engine(&self, superblock: Superblock, files: Tree) -> Result<Engine, VolumeError> {
        let loader = Loader::new(self.store.clone(), self.runtime.clone());
        let orphans = orphans(&loader, &files)?;
        Ok(Engine::new(State::new(superblock, files, orphans), loader, self.memory))
    }

    pub(super) fn log_folder(&self, name: &str) -> Result<std::path::PathBuf, VolumeError> {
        head_name(&Origin::Volume(name.to_owned()))?;
        Ok(self.folder.join(self.store.realm().as_str()).join(name).join("log"))
    }
}

impl Volume {
    /// Whether a process that was adopted died in the middle of a restore, which was done: the kernel has to forget all that it knows.
    pub fn was_restored(&self) -> bool {
        self.restored
    }

    /// Asks whether this node is the writer still, or reads what nobody changes. If another one is, or the volume was removed, nothing can be
    /// changed here from now on, and what is here is of the past. Does not wait for a commit that is under way.
    pub async fn confirm(&self) -> Result<(), VolumeError> {
        if self.engine.wal().is_none() {
            return Ok(());
        }
        let (name, heads) = (head_name(&Origin::Volume(self.name.clone()))?, &self.volumes.heads);
        let head = heads.get(self.volumes.store.realm(), &name).await;
        let confirmed = match head.map_err(VolumeError::heads(&self.name)) {
            Ok(head) if head.generation == self.generation => return Ok(()),
            Ok(_) => Err(VolumeError::Fenced { name: self.name.clone() }),
            Err(error) => Err(error),
        };
        if let Err(VolumeError::Fenced { .. } | VolumeError::NotFound { .. }) = confirmed {
            self.engine.forbid_changes();
            self.health.note(&confirmed);
        }
        confirmed
    }
}

/// The inodes of a tree that have no name.
pub(super) fn orphans(loader: &Loader, files: &Tree) -> Result<BTreeSet<Ino>, VolumeError> {
    let mut found = BTreeSet::new();
    let mut from = Key { ino: Ino(0), part: Part::Inode };
    loop {
        let page = loader.page(files, from)?;
        found.extend(state::orphans(&page).ok_or(VolumeError::Damaged { what: "the list of files without a name" })?);
        match found.last() {
            Some(last) if !page.whole => from = Key::orphan(Ino(last.0 + 1)),
            _ => return Ok(found),
        }
    }
}
