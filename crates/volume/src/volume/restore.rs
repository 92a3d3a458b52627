//! Restores: a volume becomes what it was at a snapshot.
//!
//! That is one row of the heads and no object: the head names the snapshot's manifest, and a note in its row says what differs, until the next commit
//! writes a manifest of the volume's own.

use store::{
    heads::{Head, HeadName, HeadsError, Lease},
    id::{ManifestId, unhex},
};

use super::{Forget, Origin, Volume, Volumes, head_name, note, open};
use crate::{
    VolumeError,
    compact::Plan,
    crash,
    inode::Time,
    materialise::{Committed, Layout},
    state::Superblock,
};

/// What a restored volume does not take from the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Own {
    incarnation: [u8; 16],
    created: Time,
    epoch: [u8; 16],
    sequence: u64,
    next_ino: u64,
}

impl Volumes {
    /// What a head says.
    pub(super) async fn layout(&self, head: &Head) -> Result<Layout, VolumeError> {
        let mut layout = self.layouts.read(&self.store, head.manifest).await?;
        if let Some(own) = Own::of(&head.note, head.manifest) {
            layout.superblock = own.over(layout.superblock);
        }
        Ok(layout)
    }
}

impl Volume {
    /// Makes the volume what it was at `snapshot`; the state before is named `before` in the same step. What is written while this runs is undone
    /// by it. Inodes that do not exist in the snapshot are stale; whoever has a cache forgets all names now, and these inodes. After an error,
    /// everything: the files may be those of the snapshot nevertheless.
    pub fn restore(&self, snapshot: &str, before: &str) -> Result<Forget, VolumeError> {
        let runtime = &self.volumes.runtime;
        let before = head_name(&Origin::Snapshot { volume: self.name.clone(), snapshot: before.to_owned() })?;
        let note = format!("before {snapshot} was restored");
        let note = runtime.block_on(note::seal(&self.volumes.store, &note))?;
        self.wal()?;
        let mut committed = self.committed();
        let (state, lease) = self.volumes.snapshot_under_lease(&self.name, snapshot)?;
        let restored = self.restore_under(&lease, &mut committed, state, (&before, &note));
        if restored.is_err() {
            // Else it ends by itself.
            let _ = self.release(lease);
        }
        restored
    }

    fn restore_under(
        &self,
        lease: &Lease,
        committed: &mut Committed,
        Committed { head, mut layout, .. }: Committed,
        (before, note): (&HeadName, &str),
    ) -> Result<Forget, VolumeError> {
        self.commit_under(committed, &Plan::default(), || ())?;
        let mut forget = self.differences(&committed.layout.files, &layout.files);
        // Once the head has moved nothing may fail that leaves the volume at work on what it was.
        let orphans = open::orphans(self.engine.loader(), &layout.files)?;
        let mut state = self.engine.lock().map_err(VolumeError::store("restore"))?;
        forget.add(state.dirty_inodes());
        let current = state.superblock();
        let own = Own::after(current, &layout.superblock);
        let other_bounds = bounds(current) != bounds(&layout.superblock);
        let Superblock { bytes_max, inodes_max, durability, .. } = *current;
        layout.superblock = Superblock { bytes_max, inodes_max, durability, ..own.over(layout.superblock) };
        let moved = self.volumes.runtime.block_on(async {
            let next = if other_bounds {
                let target = self.volumes.target(&self.name);
                (target.write_manifest(&self.volumes.store, &layout, lease).await?, String::new())
            } else {
                (head.manifest, own.note(head.manifest))
            };
            let (heads, next) = (&self.volumes.heads, (next.0, &*next.1));
            let commit = async || heads.commit_keeping(&committed.head, next, lease, (before, note)).await;
            let moved = match commit().await {
                // The answer may be all that was lost: then this finds what was done.
                Err(HeadsError::Database { .. }) => commit().await,
                answered => answered,
            };
            if let Err(HeadsError::Database { .. }) = moved {
                // Nobody knows which state the volume has: what is written from here on could belong to the other one.
                self.engine.forbid_changes();
            }
            moved.map_err(VolumeError::heads(&self.name))
        })?;
        *committed = Committed::new(moved, layout);
        crash::point("restore committed");
        let about = &committed.layout.superblock;
        let before = state.restart(about.clone(), committed.layout.files, orphans);
        forget.keep_known(&state);
        before.let_go();
        self.wal()?.restart(about.epoch, about.sequence)?;
        Ok(forget)
    }
}

impl Own {
    /// Of a volume that was `current`, restored to `snapshot`.
    fn after(current: &Superblock, snapshot: &Superblock) -> Self {
        Self {
            incarnation: current.incarnation,
            created: current.created,
            epoch: restored_epoch(current.epoch, current.sequence),
            sequence: current.sequence,
            // A number that the abandoned state gave out is known to the kernel.
            next_ino: current.next_ino.max(snapshot.next_ino),
        }
    }

    fn over(self, snapshot: Superblock) -> Superblock {
        let Self { incarnation, created, epoch, sequence, next_ino } = self;
        Superblock { incarnation, created, epoch, sequence, next_ino, ..snapshot }
    }

    /// As the note of a head that names `manifest`.
    fn note(self, manifest: ManifestId) -> String {
        let Self { created: Time { seconds, nanos }, sequence, next_ino, .. } = self;
        let (incarnation, epoch) = (base::id::hex(&self.incarnation), base::id::hex(&self.epoch));
        format!("restored {manifest} {incarnation} {seconds} {nanos} {epoch} {sequence} {next_ino}")
    }

    /// What a note says of `manifest`. The note stays where it is when the head moves on, and says nothing then.
    fn of(note: &str, manifest: ManifestId) -> Option<Self> {
        let mut words = note.split(' ');
        let mut word = || words.next();
        if word()? != "restored" || word()?.parse::<ManifestId>().ok()? != manifest {
            return None;
        }
        let (incarnation, seconds, nanos) = (bytes(word()?)?, word()?.parse().ok()?, word()?.parse().ok()?);
        let (epoch, sequence, next_ino) = (bytes(word()?)?, word()?.parse().ok()?, word()?.parse().ok()?);
        let own = Self { incarnation, created: Time { seconds, nanos }, epoch, sequence, next_ino };
        word().is_none().then_some(own)
    }
}

/// What a volume is allowed and promises. Snapshots outlive volumes: one of an earlier volume of that name may say otherwise, and whoever forks the
/// restored volume, or keeps it in a checkpoint, takes nothing but its manifest.
fn bounds(superblock: &Superblock) -> (u64, u64, crate::Durability) {
    (superblock.bytes_max, superblock.inodes_max, superblock.durability)
}

fn bytes<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    unhex(digits, &mut bytes).then_some(bytes)
}

/// Whose log goes on from a state that was restored by the writer of the log `before`, `sequence` being the last operation before the restore. It
/// follows from these, so that whoever finds that log and no later one knows that the writer died in between.
pub(super) fn restored_epoch(before: [u8; 16], sequence: u64) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_derive_key("pando volume: epoch after a restore, 1");
    hasher.update(&before).update(&sequence.to_le_bytes());
    let mut epoch = [0; 16];
    hasher.finalize_xof().fill(&mut epoch);
    epoch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_what_is_the_volumes_own_of_its_manifest_alone() {
        let (manifest, other) = (ManifestId::random(), ManifestId::random());
        let created = Time { seconds: -7, nanos: 999_999_999 };
        let own = Own { incarnation: [255; 16], created, epoch: *b"sixteen bytes it", sequence: u64::MAX, next_ino: 2 };
        let note = own.note(manifest);
        assert_eq!(Own::of(&note, manifest), Some(own));
        assert_eq!(Own::of(&note, other), None);
        assert!(note.len() < store::limits::HEAD_NOTE_BYTES_MAX);
        assert!((0..note.len()).all(|cut| Own::of(&note[..cut], manifest).is_none()));
        assert_eq!(Own::of(&format!("{note} 1"), manifest), None);
        assert_eq!(super::super::birth::Birth::decode(&note), None);
    }
}
