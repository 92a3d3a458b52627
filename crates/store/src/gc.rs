//! Garbage collection: what no head and no lease keeps is removed.
//!
//! ```text
//!   list the realm's objects ──► read the roots (heads and leases, one instant) ──► mark ──► sweep: listed, not marked, not young
//! ```
//!
//! It is safe whatever any clock says, by two orders. Writers let a lease keep an object *before* they write it, and the roots are read
//! *after* the objects are listed: so an object on the list is kept by its lease, or by the head that the lease's commit moved, or that
//! commit fails. What is removed is therefore needed by nobody, now or later. Youth, by the store's own clock, is a second belt: it
//! spares readers without a lease.
//!
//! In doubt nothing is removed: not if a manifest that a head needs cannot be read, and not if the objects belong to the heads of another
//! database. Keys, and objects that this program does not know, are never removed.

mod identity;
mod mark;
mod survey;

use std::time::{Duration, SystemTime};

use futures::{StreamExt, TryStreamExt, stream};

pub use self::identity::bind;
use self::{
    mark::{Marked, mark},
    survey::{Kind, Listed},
};
use crate::{
    Store,
    heads::{Heads, HeadsError},
    id::ManifestId,
    limits,
    manifest::ManifestError,
    object::ObjectError,
};

/// Why nothing, or not everything, was collected.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum GcError {
    #[error("the heads are out of reach")]
    Heads { source: HeadsError },
    #[error("the objects are out of reach")]
    Objects { source: ObjectError },
    #[error("manifest {manifest}, which a head needs, cannot be read: run verify")]
    Manifest { manifest: ManifestId, source: ManifestError },
    #[error("the object store belongs to the heads of another database ({found}, this one is {expected})")]
    OtherStore { expected: String, found: String },
    #[error("nothing says which database holds the heads of this object store: start a node with both first")]
    Unbound,
    #[error("which database holds the store's heads cannot be read or written")]
    Identity { source: ObjectError },
    #[error("the object that says which database holds the store's heads is damaged")]
    DamagedIdentity { source: base::frame::FrameError },
}

/// Whether garbage is removed or only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is removed, and no lease ended.
    DryRun,
    /// Expired leases end, and garbage is removed.
    Remove,
}

/// Objects and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub objects: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// What a collection found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Leases that were over.
    pub leases_ended: u64,
    /// Objects that heads or leases keep.
    pub kept: Tally,
    /// Objects that nothing keeps, too young to be removed.
    pub young: Tally,
    /// Objects that were removed, or in a dry run would be.
    pub garbage: Tally,
    /// The keys of these.
    pub garbage_keys: Vec<String>,
}

/// What a realm has in the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Heads.
    pub heads: u64,
    /// Leases, expired ones too.
    pub leases: u64,
    /// Manifests.
    pub manifests: Tally,
    /// Segments.
    pub segments: Tally,
    /// Wrapped data keys.
    pub keys: Tally,
    /// What this program does not know.
    pub unknown: Tally,
    /// Of manifests and segments, what heads or leases keep.
    pub kept: Tally,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}

/// Collects the garbage of `store`'s realm that was written at least `grace` ago ([`limits::GC_GRACE`] unless somebody knows better).
pub async fn collect(heads: &Heads, store: &Store, mode: Mode, grace: Duration) -> Result<GcReport, GcError> {
    identity::check(heads, store.objects()).await?;
    let mut report = GcReport::default();
    if mode == Mode::Remove {
        report.leases_ended = heads.expire_leases(store.realm()).await.map_err(heads_failed)?;
    }
    let now = survey::now(store).await.map_err(objects_failed)?;
    let (survey, marked) = look(heads, store).await?;
    let mut garbage = Vec::new();
    for listed in survey {
        match listed.kind {
            // Never garbage.
            Kind::Key | Kind::Unknown => {}
            _ if marked.keeps(listed.kind) => report.kept.add(listed.meta.bytes),
            // Perhaps another collector needs it just now.
            Kind::Probe if is_young(&listed, now, limits::GC_GRACE) => {}
            _ if is_young(&listed, now, grace) => report.young.add(listed.meta.bytes),
            _ => garbage.push(listed),
        }
    }
    // Manifests go first: none is ever there without its segments.
    garbage.sort_by_key(|listed| !matches!(listed.kind, Kind::Manifest(_)));
    if mode == Mode::Remove {
        let manifests = garbage.partition_point(|listed| matches!(listed.kind, Kind::Manifest(_)));
        remove(store, &garbage[..manifests]).await?;
        remove(store, &garbage[manifests..]).await?;
    }
    for listed in garbage {
        report.garbage.add(listed.meta.bytes);
        report.garbage_keys.push(listed.meta.key);
    }
    Ok(report)
}

/// Counts what `store`'s realm has.
pub async fn stats(heads: &Heads, store: &Store) -> Result<Stats, GcError> {
    let (survey, marked) = look(heads, store).await?;
    let leases = heads.leases(store.realm()).await.map_err(heads_failed)?;
    let mut stats = Stats { heads: marked.heads, leases: leases.len() as u64, ..Stats::default() };
    for Listed { meta, kind } in survey {
        match kind {
            Kind::Manifest(_) => stats.manifests.add(meta.bytes),
            Kind::Segment(_) => stats.segments.add(meta.bytes),
            Kind::Key => stats.keys.add(meta.bytes),
            Kind::Probe => {}
            Kind::Unknown => stats.unknown.add(meta.bytes),
        }
        if marked.keeps(kind) {
            stats.kept.add(meta.bytes);
        }
    }
    Ok(stats)
}

/// Lists, and then marks: the order is what makes it safe.
async fn look(heads: &Heads, store: &Store) -> Result<(Vec<Listed>, Marked), GcError> {
    let survey = survey::list(store).await.map_err(objects_failed)?;
    let mut attempt = 1;
    loop {
        let roots = heads.roots(store.realm()).await.map_err(heads_failed)?;
        match mark(store, &roots).await {
            // Perhaps the head has moved since the roots were read, and another collector was quick.
            Err(GcError::Manifest { source: ManifestError::NotFound { .. }, .. }) if attempt < limits::GC_ATTEMPTS => {
                attempt += 1;
            }
            marked => return Ok((survey, marked?)),
        }
    }
}

fn is_young(listed: &Listed, now: SystemTime, grace: Duration) -> bool {
    // An object from the future is young, too.
    now.duration_since(listed.meta.modified).map_or(true, |age| age < grace)
}

async fn remove(store: &Store, garbage: &[Listed]) -> Result<(), GcError> {
    let keys: Vec<String> = garbage.iter().map(|listed| listed.meta.key.clone()).collect();
    let removals = stream::iter(keys).map(|key| async move { store.objects().delete(&key).await });
    let removed = removals.buffer_unordered(limits::GC_PARALLEL).try_collect::<()>().await;
    removed.map_err(objects_failed)
}

fn heads_failed(source: HeadsError) -> GcError {
    GcError::Heads { source }
}

fn objects_failed(source: ObjectError) -> GcError {
    GcError::Objects { source }
}
