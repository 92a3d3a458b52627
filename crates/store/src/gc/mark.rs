//! Marking: everything that the roots keep.

use std::collections::{HashMap, HashSet};

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
    manifests: HashMap<ManifestId, Part>,
    segments: HashSet<SegmentId>,
}

impl Marked {
    /// Does a head or a lease keep what is of this kind?
    pub(super) fn keeps(&self, kind: Kind) -> bool {
        match kind {
            Kind::Manifest(id) => self.manifests.contains_key(&id),
            Kind::Segment(id) => self.segments.contains(&id),
            Kind::Key | Kind::Probe | Kind::Unknown => false,
        }
    }

    /// Marks these manifests and what they need. Those that are not there are passed over if they may be absent.
    async fn follow(&mut self, store: &Store, roots: Vec<ManifestId>, absent: Absent) -> Result<(), GcError> {
        let mut wave: Vec<_> = roots.into_iter().map(|id| (id, Part::Whole)).collect();
        while !wave.is_empty() {
            wave.retain(|(id, part)| {
                let marked = self.manifests.get(id).copied();
                let is_more = marked.is_none_or(|marked| marked < *part);
                if is_more {
                    self.manifests.insert(*id, *part);
                }
                is_more
            });
            let reads = stream::iter(wave).map(|(id, part)| async move { (id, part, Manifest::read(store, id).await) });
            let mut reads = reads.buffer_unordered(limits::GC_PARALLEL);
            let mut next = Vec::new();
            while let Some((id, part, read)) = reads.next().await {
                match read {
                    Ok(manifest) => {
                        self.segments.extend(&manifest.segments);
                        next.extend(manifest.parent.map(|parent| (parent, Part::Base)));
                        if part == Part::Whole {
                            next.extend(manifest.includes.into_iter().map(|included| (included, Part::Whole)));
                        }
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

/// How much of a manifest is needed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// What others are taken against: its own segments and its parent.
    Base,
    /// With what it includes.
    Whole,
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
