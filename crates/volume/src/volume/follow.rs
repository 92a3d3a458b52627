//! Reading a volume that another node writes.
//!
//! Who only reads takes nothing over. It opens the last commit and goes on with each later one: the tree is exchanged as in a restore, and the two trees,
//! which share what is the same, tell what the kernel has to forget.

use std::{collections::VecDeque, fs, path::PathBuf, time::Instant};

use store::{
    heads::{Head, Lease},
    tree::{Diff, Tree},
};

use super::{Origin, Volume, Volumes, birth::Birth, open::orphans, restore::restored_epoch};
use crate::{
    VolumeError,
    directory::Dirent,
    inode::{Ino, ROOT},
    key::{Key, Part},
    limits::{COMMIT_LEASE, FORGET_MAX, READ_MAX},
    loader::Loader,
    materialise::{Committed, Layout},
    names::decoded,
    recover,
    state::{NO_EPOCH, State},
};

/// Leases of a reader, the newest last, with when each began. An older one stays for as long as a read of its state may take.
pub(super) type Leases = VecDeque<(Instant, Lease)>;

/// What the kernel has to forget because another commit is read now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forget {
    /// What differs, as far as the kernel may know it.
    These {
        /// Names that are there no more, are new, or are those of other inodes.
        names: Vec<(Ino, Vec<u8>)>,
        /// Inodes whose attributes, data or entries are others.
        inodes: Vec<Ino>,
    },
    /// More than is worth a list, or nobody knows what.
    All,
}

/// Whose log goes on from a volume's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// Nobody has written it yet.
    Nobody,
    /// This node's.
    Here,
    /// This node's, which restored the volume and did not get to a commit: there is its log of before.
    HereRestored,
    Elsewhere,
}

impl Volumes {
    /// Opens the last commit of a volume that another node writes, to [`Volume::follow`] it.
    pub fn open_to_follow(&self, name: &str) -> Result<Volume, VolumeError> {
        let volume = self.open_to_read(&Origin::Volume(name.to_owned()))?;
        let path = self.followed_path(name)?;
        let note = || {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(&path, volume.incarnation())
        };
        note().map_err(VolumeError::store("note which volume is followed"))?;
        Ok(volume)
    }

    /// As [`Volumes::open_to_follow`], in the place of a process of this node that died while the kernel used the volume. If another volume has its name
    /// by now it is refused: nothing that the kernel knows of it holds.
    pub fn adopt_to_follow(&self, name: &str) -> Result<Volume, VolumeError> {
        let volume = self.open_to_read(&Origin::Volume(name.to_owned()))?;
        let followed =
            fs::read(self.followed_path(name)?).map_err(VolumeError::store("read which volume is followed"))?;
        if followed != volume.incarnation() {
            return Err(VolumeError::Replaced { name: name.to_owned() });
        }
        volume.engine.lock().map_err(VolumeError::store("adopt"))?.adopt();
        Ok(volume)
    }

    /// Whose log goes on from this state of a volume?
    pub(super) fn writer(&self, name: &str, head: &Head, layout: &Layout) -> Result<Writer, VolumeError> {
        let about = &layout.superblock;
        if about.epoch == NO_EPOCH || Birth::of(&head.note, about).is_some() {
            return Ok(Writer::Nobody);
        }
        let epochs = recover::epochs(&self.log_folder(name)?)?;
        let restored = || epochs.iter().any(|epoch| restored_epoch(*epoch, about.sequence) == about.epoch);
        Ok(match epochs.contains(&about.epoch) {
            true if epochs.len() == 1 => Writer::Here,
            // The next log was begun.
            true => Writer::HereRestored,
            false if restored() => Writer::HereRestored,
            false => Writer::Elsewhere,
        })
    }

    /// Has the incarnation of the volume that is followed: beside its log.
    fn followed_path(&self, name: &str) -> Result<PathBuf, VolumeError> {
        Ok(self.log_folder(name)?.with_file_name("followed"))
    }
}

impl Volume {
    /// Goes on with what the volume's writer has committed since. `None`: nothing. For a volume that was opened for reading; if this fails, it stays at the
    /// state that it has.
    pub fn follow(&self) -> Result<Option<Forget>, VolumeError> {
        let followed = self.follow_head();
        self.health.note(&followed);
        followed
    }

    fn follow_head(&self) -> Result<Option<Forget>, VolumeError> {
        let mut committed = self.committed();
        let (volumes, name) = (&self.volumes, committed.head.name.clone());
        let failed = || VolumeError::heads(name.as_str());
        let head = volumes.runtime.block_on(volumes.heads.get(volumes.store.realm(), &name)).map_err(failed())?;
        if head.manifest == committed.head.manifest {
            return Ok(None);
        }
        let (next, lease) = volumes.runtime.block_on(volumes.open_under_lease(&name))?;
        let gone_on = self.go_on(&mut committed, next);
        let left = match &gone_on {
            Ok(_) => self.keep(lease),
            Err(_) => vec![lease],
        };
        for lease in left {
            // Else it ends by itself.
            if let Err(error) = self.release(lease) {
                tracing::debug!(name = self.name, %error, "a lease is not given back");
            }
        }
        gone_on.map(Some)
    }

    fn go_on(&self, committed: &mut Committed, next: Committed) -> Result<Forget, VolumeError> {
        if committed.layout.superblock.incarnation != next.layout.superblock.incarnation {
            // Its numbers of inodes are those of other files.
            return Err(VolumeError::Replaced { name: self.name.clone() });
        }
        let (loader, files) = (self.engine.loader(), next.layout.files);
        let orphans = orphans(loader, &files)?;
        let mut forget = self.differences(&committed.layout.files, &files);
        let mut state = self.engine.lock().map_err(VolumeError::store("go on with a commit"))?;
        let before = state.restart(next.layout.superblock.clone(), files, orphans);
        forget.keep_known(&state);
        *committed = next;
        before.let_go();
        Ok(forget)
    }

    /// What two states differ in.
    pub(super) fn differences(&self, before: &Tree, after: &Tree) -> Forget {
        self.volumes.runtime.block_on(differences(self.engine.loader(), before, after)).unwrap_or_else(|error| {
            // If the lease was lost the older tree may be, too: this is the way out.
            tracing::warn!(name = self.name, %error, "what two commits differ in is not known: all is forgotten");
            Forget::All
        })
    }

    /// Prolongs what a reader keeps. Due well before an hour is over.
    pub fn renew(&self) -> Result<(), VolumeError> {
        let mut leases = self.leases();
        let Some((_, lease)) = leases.back_mut() else { return Ok(()) };
        let renewed = self.volumes.runtime.block_on(self.volumes.heads.renew(lease, COMMIT_LEASE));
        renewed.map_err(VolumeError::heads(&self.name))
    }

    /// Keeps the lease of what is read from now on, and gives back those of states that no read can be under way of any more.
    fn keep(&self, lease: Lease) -> Vec<Lease> {
        let mut leases = self.leases();
        leases.push_back((Instant::now(), lease));
        let is_left = |(began, _): &(Instant, Lease)| began.elapsed() > READ_MAX;
        let left = leases.iter().skip(1).take_while(|next| is_left(next)).count();
        leases.drain(..left).map(|(_, lease)| lease).collect()
    }

    pub(super) fn release(&self, lease: Lease) -> Result<(), VolumeError> {
        let released = self.volumes.runtime.block_on(self.volumes.heads.release(lease));
        released.map_err(VolumeError::heads(&self.name))
    }

    fn incarnation(&self) -> [u8; 16] {
        self.committed().layout.superblock.incarnation
    }
}

impl Forget {
    /// These inodes, too.
    pub(super) fn add(&mut self, more: impl Iterator<Item = Ino>) {
        if let Self::These { inodes, .. } = self {
            inodes.extend(more);
        }
    }

    pub(super) fn keep_known(&mut self, state: &State) {
        // The top directory is known without a lookup.
        let known = |ino: Ino| ino == ROOT || state.is_pinned(ino);
        if let Self::These { names, inodes } = self {
            names.retain(|(directory, _)| known(*directory));
            inodes.retain(|ino| known(*ino));
        }
    }
}

async fn differences(loader: &Loader, before: &Tree, after: &Tree) -> Result<Forget, VolumeError> {
    let mut changes = Diff::new(loader, before, after);
    let (mut names, mut inodes) = (Vec::new(), Vec::new());
    while let Some(change) = changes.next().await.map_err(VolumeError::store("compare two commits"))? {
        let key = Key::decode(&change.key).ok_or(VolumeError::Damaged { what: "a key" })?;
        if let Part::Orphan(_) = key.part {
            continue;
        }
        if let Part::Entry(_) = key.part {
            let entries: [Option<Dirent>; 2] = [decoded(change.before)?, decoded(change.after)?];
            names.extend(entries.into_iter().flatten().map(|entry| (key.ino, entry.name)));
        }
        if inodes.last() != Some(&key.ino) {
            inodes.push(key.ino);
        }
        if names.len() + inodes.len() > FORGET_MAX {
            return Ok(Forget::All);
        }
    }
    Ok(Forget::These { names, inodes })
}
