//! Verifying: everything that a realm's heads need is read and opened. What is wrong is reported, and the rest goes on.
//!
//! Segments are read from the object store, past caches and peers. A lease keeps what is being looked at, so that a head which moves on
//! meanwhile is no false alarm.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use futures::{StreamExt, stream};

use crate::{
    Store,
    heads::{Head, HeadName, Heads, HeadsError, Lease},
    id::{ManifestId, SegmentId},
    keys::KeyError,
    limits,
    manifest::{Manifest, ManifestError},
    object::ObjectError,
    segment::SegmentError,
    tree::{Checker, TreeError},
};

/// Something that cannot be read any more.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Problem {
    #[error("a manifest cannot be read")]
    Manifest(#[source] ManifestError),
    #[error("tree {index} of manifest {manifest} cannot be read whole")]
    Tree { manifest: ManifestId, index: usize, source: TreeError },
    #[error("a segment is not sound")]
    Segment(#[source] SegmentError),
}

impl Problem {
    /// Whether it says nothing about what is stored: the store did not answer, or a master key is not known here.
    pub fn is_out_of_reach(&self) -> bool {
        is_out_of_reach(self)
    }
}

/// Whether an error of the store, among its causes, is one of reaching the store or of knowing its master key. What is missing or does
/// not open is damage.
pub fn is_out_of_reach(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source()).any(|cause| {
        let object = cause.downcast_ref().or_else(|| cause.downcast_ref::<Arc<ObjectError>>().map(Arc::as_ref));
        let key = cause.downcast_ref().or_else(|| cause.downcast_ref::<Arc<KeyError>>().map(Arc::as_ref));
        let away = match object {
            Some(
                ObjectError::Denied { .. }
                | ObjectError::Unavailable { .. }
                | ObjectError::Failed { .. }
                | ObjectError::Open { .. },
            ) => true,
            Some(
                ObjectError::NotFound { .. }
                | ObjectError::AlreadyExists { .. }
                | ObjectError::TooLarge { .. }
                | ObjectError::TooShort { .. },
            )
            | None => false,
        };
        away || matches!(key, Some(KeyError::UnknownMaster { .. }))
    })
}

/// A problem, and whom it harms.
#[derive(Debug)]
pub struct Finding {
    /// The heads that need what is damaged.
    pub heads: Vec<HeadName>,
    /// What is wrong.
    pub problem: Problem,
}

/// What a verification saw.
#[derive(Debug, Default)]
pub struct VerifyReport {
    /// Heads.
    pub heads: u64,
    /// Different manifests.
    pub manifests: u64,
    /// Different nodes of trees.
    pub nodes: u64,
    /// Different segments.
    pub segments: u64,
    /// Chunks in these, each opened.
    pub chunks: u64,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

/// Reads everything that the heads of `store`'s realm need. Fails only if the heads are out of reach.
pub async fn verify(heads: &Heads, store: &Store) -> Result<VerifyReport, HeadsError> {
    let mut lease = heads.lease(store.realm(), "verify", limits::VERIFY_LEASE).await?;
    let mut verifier = Verifier { store, report: VerifyReport::default(), users: Users::default() };
    let verified = verifier.run(heads, &mut lease).await;
    heads.release(lease).await?;
    verified.map(|()| verifier.report)
}

struct Verifier<'a> {
    store: &'a Store,
    report: VerifyReport,
    users: Users,
}

/// Who needs what. Heads by their place in `names`.
#[derive(Default)]
struct Users {
    names: Vec<HeadName>,
    /// Without what the client says.
    manifests: HashMap<ManifestId, (Result<Manifest, ManifestError>, Vec<usize>)>,
    segments: HashMap<SegmentId, Vec<usize>>,
}

impl Users {
    fn named(&self, users: &[usize]) -> Vec<HeadName> {
        users.iter().filter_map(|&user| self.names.get(user).cloned()).collect()
    }
}

impl Verifier<'_> {
    async fn run(&mut self, heads: &Heads, lease: &mut Lease) -> Result<(), HeadsError> {
        let mut after = None;
        loop {
            let some = heads.list(self.store.realm(), "", after.as_ref()).await?;
            let Some(last) = some.last() else { break };
            after = Some(last.name.clone());
            for listed in &some {
                match heads.open_under(lease, &listed.name).await {
                    Ok(head) => self.read_manifests(head).await,
                    // Removed since it was listed.
                    Err(HeadsError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            heads.renew(lease, limits::VERIFY_LEASE).await?;
        }
        self.check_trees(heads, lease).await?;
        self.check_segments(heads, lease).await
    }

    /// Reads the manifest of `head` and those it needs, and notes who needs which segment.
    async fn read_manifests(&mut self, head: Head) {
        self.report.heads += 1;
        let user = self.users.names.len();
        self.users.names.push(head.name);
        // Those that it is taken against come last, without what they include.
        let mut next = VecDeque::from([(head.manifest, true)]);
        while let Some((id, is_whole)) = next.pop_front() {
            if !self.users.manifests.contains_key(&id) {
                let read = Manifest::read(self.store, id).await;
                let read = read.map(|manifest| Manifest { client: Bytes::new(), ..manifest });
                self.users.manifests.insert(id, (read, Vec::new()));
            }
            let Some((manifest, users)) = self.users.manifests.get_mut(&id) else { continue };
            if users.last() == Some(&user) {
                continue;
            }
            users.push(user);
            let Ok(manifest) = manifest else { continue };
            for segment in &manifest.segments {
                let users = self.users.segments.entry(*segment).or_default();
                if users.last() != Some(&user) {
                    users.push(user);
                }
            }
            next.extend(manifest.parent.map(|parent| (parent, false)));
            if is_whole {
                manifest.includes.iter().for_each(|included| next.push_front((*included, true)));
            }
        }
    }

    async fn check_trees(&mut self, heads: &Heads, lease: &mut Lease) -> Result<(), HeadsError> {
        let mut checker = Checker::default();
        for (manifest, (read, users)) in std::mem::take(&mut self.users.manifests) {
            self.report.manifests += 1;
            let mut problems = Vec::new();
            match read {
                Err(error) => problems.push(Problem::Manifest(error)),
                Ok(read) => {
                    for (index, tree) in read.trees.iter().enumerate() {
                        let checked = checker.check(self.store, tree).await;
                        problems.extend(checked.err().map(|source| Problem::Tree { manifest, index, source }));
                    }
                }
            }
            for problem in problems {
                self.report.findings.push(Finding { heads: self.users.named(&users), problem });
            }
            heads.renew(lease, limits::VERIFY_LEASE).await?;
        }
        self.report.nodes = checker.nodes() as u64;
        Ok(())
    }

    async fn check_segments(&mut self, heads: &Heads, lease: &mut Lease) -> Result<(), HeadsError> {
        let store = self.store;
        let segments = std::mem::take(&mut self.users.segments);
        let mut checks = stream::iter(segments)
            .map(|(segment, users)| async move { (check_segment(store, segment).await, users) })
            .buffer_unordered(limits::VERIFY_PARALLEL);
        while let Some((checked, users)) = checks.next().await {
            self.report.segments += 1;
            match checked {
                Ok(chunks) => self.report.chunks += chunks,
                Err(error) => {
                    let heads = self.users.named(&users);
                    self.report.findings.push(Finding { heads, problem: Problem::Segment(error) });
                }
            }
            heads.renew(lease, limits::VERIFY_LEASE).await?;
        }
        Ok(())
    }
}

/// Opens every chunk of a segment, and says how many there are.
async fn check_segment(store: &Store, segment: SegmentId) -> Result<u64, SegmentError> {
    let reader = store.segment(segment).await?;
    reader.verify().await?;
    Ok(reader.chunks().len() as u64)
}
