//! Reading a volume that another node writes.
//!
//! Who only reads takes nothing over. It opens the last commit and goes on with each later one: the tree is exchanged as in a restore, and the two trees,
//! which share what is the same, tell which inodes the kernel has to forget.

use std::{collections::VecDeque, time::Instant};

use store::{
    heads::Lease,
    tree::{Diff, Tree},
};

use super::{Birth, Origin, Volume, Volumes, head_name, open::orphans};
use crate::{
    VolumeError,
    inode::Ino,
    key::{Key, Part},
    limits::{COMMIT_LEASE, READ_MAX},
    loader::Loader,
    materialise::{Committed, Layout},
    recover,
    state::NO_EPOCH,
};

/// Leases of a reader, the newest last, with when each began. An older one stays for as long as a read of its state may take.
pub(super) type Leases = VecDeque<(Instant, Lease)>;

/// Whose log goes on from a volume's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// Nobody has written it yet.
    Nobody,
    /// This node's.
    Here,
    Elsewhere,
}

impl Volumes {
    /// Whether another node writes the volume, or was the last that did. Then opening it for writing would take it away from there.
    pub fn is_written_elsewhere(&self, name: &str) -> Result<bool, VolumeError> {
        Ok(self.writer(name)? == Writer::Elsewhere)
    }

    pub(super) fn writer(&self, name: &str) -> Result<Writer, VolumeError> {
        let folder = self.log_folder(name)?;
        let head = head_name(&Origin::Volume(name.to_owned()))?;
        let (head, layout) = self.runtime.block_on(async {
            let head = self.heads.get(self.store.realm(), &head).await.map_err(VolumeError::heads(name))?;
            let layout = Layout::read(&self.store, head.manifest).await?;
            Ok::<_, VolumeError>((head, layout))
        })?;
        let about = &layout.superblock;
        if about.epoch == NO_EPOCH || Birth::of(&head.note, about).is_some() {
            return Ok(Writer::Nobody);
        }
        let is_ours = recover::epoch(&folder)? == Some(about.epoch);
        Ok(if is_ours { Writer::Here } else { Writer::Elsewhere })
    }
}

impl Volume {
    /// Goes on with what the volume's writer has committed since. Tells the inodes that the kernel may know as they were; every name may be another.
    /// `None`: nothing was committed. For a volume that was opened for reading; if this fails, it stays at the state that it has.
    pub fn follow(&self) -> Result<Option<Vec<Ino>>, VolumeError> {
        let followed = self.follow_head();
        self.health.note(&followed);
        followed
    }

    fn follow_head(&self) -> Result<Option<Vec<Ino>>, VolumeError> {
        let mut committed = self.committed();
        let (volumes, name) = (&self.volumes, committed.head.name.clone());
        let failed = || VolumeError::heads(name.as_str());
        let head = volumes.runtime.block_on(volumes.heads.get(volumes.store.realm(), &name)).map_err(failed())?;
        if head.manifest == committed.head.manifest {
            return Ok(None);
        }
        let (next, lease) = volumes.runtime.block_on(volumes.open_under_lease(&name))?;
        match self.go_on(&mut committed, next) {
            Ok(changed) => {
                self.leases().push_back((Instant::now(), lease));
                self.release_leases(READ_MAX)?;
                Ok(Some(changed))
            }
            Err(error) => {
                // Else it ends by itself.
                let _ = volumes.runtime.block_on(volumes.heads.release(lease));
                Err(error)
            }
        }
    }

    fn go_on(&self, committed: &mut Committed, next: Committed) -> Result<Vec<Ino>, VolumeError> {
        let incarnation = |committed: &Committed| committed.layout.superblock.incarnation;
        if incarnation(committed) != incarnation(&next) {
            // Its numbers of inodes are those of other files.
            return Err(VolumeError::Replaced { name: self.name.clone() });
        }
        let (loader, files) = (self.engine.loader(), next.layout.files);
        let mut changed = self.volumes.runtime.block_on(changed(loader, &committed.layout.files, &files))?;
        let orphans = orphans(loader, &files)?;
        let mut state = self.engine.lock().map_err(VolumeError::store("go on with a commit"))?;
        let before = state.restart(next.layout.superblock.clone(), files, orphans);
        changed.retain(|ino| state.is_pinned(*ino));
        *committed = next;
        self.volumes.runtime.spawn_blocking(move || drop(before));
        Ok(changed)
    }

    /// Prolongs what a reader keeps. Due well before an hour is over.
    pub fn renew(&self) -> Result<(), VolumeError> {
        let mut leases = self.leases();
        let Some((_, lease)) = leases.back_mut() else { return Ok(()) };
        let renewed = self.volumes.runtime.block_on(self.volumes.heads.renew(lease, COMMIT_LEASE));
        renewed.map_err(VolumeError::heads(&self.name))
    }

    /// Lets go of what was followed by something newer this long ago.
    fn release_leases(&self, age: std::time::Duration) -> Result<(), VolumeError> {
        let mut leases = self.leases();
        while leases.get(1).is_some_and(|(began, _)| began.elapsed() > age)
            && let Some((_, lease)) = leases.pop_front()
        {
            self.release(lease)?;
        }
        Ok(())
    }

    pub(super) fn release(&self, lease: Lease) -> Result<(), VolumeError> {
        let released = self.volumes.runtime.block_on(self.volumes.heads.release(lease));
        released.map_err(VolumeError::heads(&self.name))
    }
}

/// Inodes of which anything differs, in order.
async fn changed(loader: &Loader, before: &Tree, after: &Tree) -> Result<Vec<Ino>, VolumeError> {
    let mut changes = Diff::new(loader, before, after);
    let mut inodes = Vec::new();
    while let Some(change) = changes.next().await.map_err(VolumeError::store("compare two commits"))? {
        let key = Key::decode(&change.key).ok_or(VolumeError::Damaged { what: "a key" })?;
        if !matches!(key.part, Part::Orphan(_)) && inodes.last() != Some(&key.ino) {
            inodes.push(key.ino);
        }
    }
    Ok(inodes)
}
