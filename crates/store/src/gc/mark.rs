//! Marking: everything that the roots keep.

use std::collections::HashSet;

use futures::{StreamExt, stream};

use super::{GcError, survey::Kind};
use crate::{
    Store,
    heads::{Protected, Roots},
    id::{ManifestId, SegmentId},
    limits,
    manifest::{Manifest, ManifestError},
};

/// What must stay.
#[derive(Default)]
pub(super) struct Marked {
    pub(super) heads: u64,
    manifests: HashSet<ManifestId>,
    segments: HashSet<SegmentId>,
}

impl Marked {
    /// Does a head or a lease keep what is of this kind?
    pub(super) fn keeps(&self, kind: Kind) -> bool {
        match kind {
            Kind::Manifest(id) => self.manifests.contains(&id),
            Kind::Segment(id) => self.segments.contains(&id),
            Kind::Key | Kind::Probe | Kind::Unknown => false,
        }
    }

    /// Marks these manifests and what they need. Those that are not there are passed over if they may be absent.
    async fn follow(&mut self, store: &Store, roots: Vec<ManifestId>, absent: Absent) -> Result<(), GcError> {
        let mut wave = roots;
        while !wave.is_empty() {
            wave.retain(|id| self.manifests.insert(*id));
            let reads = stream::iter(wave).map(|id| async move { (id, Manifest::read(store, id).await) });
            let mut reads = reads.buffer_unordered(limits::GC_PARALLEL);
            let mut next = Vec::new();
            while let Some((id, read)) = reads.next().await {
                match read {
                    Ok(manifest) => {
                        self.segments.extend(&manifest.segments);
                        next.extend(manifest.needs());
                    }
                    Err(ManifestError::NotFound { .. }) if absent == Absent::Allowed => {}
                    Err(source) => return Err(GcError::Manifest { manifest: id, source }),
                }
            }
            wave = next;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Absent {
    Allowed,
    Refused,
}

/// Marks what the roots keep.
pub(super) async fn mark(store: &Store, roots: &Roots) -> Result<Marked, GcError> {
    let mut marked = Marked { heads: roots.heads.len() as u64, ..Marked::default() };
    marked.follow(store, roots.heads.clone(), Absent::Refused).await?;
    let mut leased = Vec::new();
    for protected in &roots.leased {
        match protected {
            Protected::Manifest(id) => leased.push(*id),
            Protected::Segment(id) => drop(marked.segments.insert(*id)),
        }
    }
    // What a lease keeps may not be written yet.
    marked.follow(store, leased, Absent::Allowed).await?;
    Ok(marked)
}
