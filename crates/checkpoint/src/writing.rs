//! Writing something durable: everything below it first, its name last.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use store::{
    heads::{Head, HeadName, HeadsError, Lease, Protected},
    id::{ManifestId, SegmentId},
    manifest::Manifest,
    segment::{ChunkRef, SegmentWriter, WriteError},
};
use tokio::runtime::Handle;

use super::Durable;
use crate::error::{Result, Storing};

/// What is written is kept from the garbage collector this long after the last renewal.
const LEASE: Duration = Duration::from_secs(3600);
const RENEW_AFTER: Duration = Duration::from_secs(300);

/// The segments of one new state. Dropped before [`Writing::commit`] it leaves garbage, which the collector removes.
pub struct Writing {
    durable: Durable,
    runtime: Handle,
    lease: Lease,
    renewed: Instant,
    writer: Option<SegmentWriter>,
    segments: BTreeSet<SegmentId>,
    /// Bytes of the segments that are finished.
    finished_bytes: u64,
    /// Bytes that references hold themselves.
    pub(super) inline_bytes: usize,
}

impl Writing {
    /// For `holder`, as lists of leases name it.
    pub fn begin(durable: &Durable, runtime: &Handle, holder: &str) -> Result<Self> {
        let lease =
            runtime.block_on(durable.heads.lease(durable.store.realm(), holder, LEASE)).storing("take a lease")?;
        Ok(Self {
            durable: durable.clone(),
            runtime: runtime.clone(),
            lease,
            renewed: Instant::now(),
            writer: None,
            segments: BTreeSet::new(),
            finished_bytes: 0,
            inline_bytes: 0,
        })
    }

    /// Writes one chunk, in another segment if the present one is full.
    pub fn append(&mut self, plain: &[u8]) -> Result<ChunkRef> {
        self.renew()?;
        match self.try_append(plain) {
            Ok(Err(WriteError::Full { .. })) => {
                self.finish_segment()?;
                self.try_append(plain)?.storing("write a chunk")
            }
            appended => appended?.storing("write a chunk"),
        }
    }

    fn try_append(&mut self, plain: &[u8]) -> Result<std::result::Result<ChunkRef, WriteError>> {
        if self.writer.is_none() {
            self.writer = Some(self.open_segment()?);
        }
        let Some(writer) = &mut self.writer else { unreachable!("it was opened above") };
        Ok(self.runtime.block_on(writer.append(plain)))
    }

    fn open_segment(&mut self) -> Result<SegmentWriter> {
        let writer = self.runtime.block_on(self.durable.store.write()).storing("begin a segment")?;
        // Before the first byte of it is written.
        let segment = [Protected::Segment(writer.id())];
        let protected = self.durable.heads.protect(&self.lease, &segment);
        self.runtime.block_on(protected).storing("protect a segment")?;
        self.segments.insert(writer.id());
        Ok(writer)
    }

    /// What was appended can be read when this returns.
    pub fn finish_segment(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            let segment = self.runtime.block_on(writer.finish()).storing("finish a segment")?;
            self.finished_bytes += segment.bytes;
        }
        Ok(())
    }

    /// The head of this name, whose manifest is kept from now on until the writing is done; none if there is no such head.
    pub fn keep(&self, name: &HeadName) -> Result<Option<Head>> {
        match self.runtime.block_on(self.durable.heads.open_under(&self.lease, name)) {
            Ok(head) => Ok(Some(head)),
            Err(HeadsError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error).storing("keep what is there"),
        }
    }

    fn renew(&mut self) -> Result<()> {
        if self.renewed.elapsed() > RENEW_AFTER {
            self.runtime.block_on(self.durable.heads.renew(&mut self.lease, LEASE)).storing("renew a lease")?;
            self.renewed = Instant::now();
        }
        Ok(())
    }

    /// Makes it all durable and gives it a name, which must be free or `replaces`. Gives the manifest and the bytes of everything.
    pub fn commit(
        mut self,
        name: &HeadName,
        replaces: Option<&Head>,
        mut manifest: Manifest,
    ) -> Result<(ManifestId, u64)> {
        self.finish_segment()?;
        manifest.segments.append(&mut self.segments);
        let Self { durable, runtime, lease, .. } = &self;
        let id = ManifestId::random();
        runtime.block_on(durable.heads.protect(lease, &[Protected::Manifest(id)])).storing("protect a manifest")?;
        runtime.block_on(manifest.write(&durable.store, id)).storing("write a manifest")?;
        let committed: std::result::Result<Head, HeadsError> = match replaces {
            Some(head) => runtime.block_on(durable.heads.commit(head, id, lease)),
            None => runtime.block_on(durable.heads.create(durable.store.realm(), name, id, lease)),
        };
        committed.storing("name it")?;
        Ok((id, self.finished_bytes))
    }
}

impl Writing {
    /// Puts the manifest of `head` with other client bytes in its place, with what was written meanwhile; if `head` is still what there is.
    pub fn amend(self, version: u16, client: bytes::Bytes, head: &Head) -> Result<ManifestId> {
        let read = self.runtime.block_on(Manifest::read(&self.durable.store, head.manifest));
        let manifest = Manifest { version, client, ..read.storing("read a manifest")? };
        self.commit(&head.name, Some(head), manifest).map(|(manifest, _)| manifest)
    }
}

impl Drop for Writing {
    /// Lets the collector have what was not committed, now and not when the lease is over. After a commit there is no lease.
    fn drop(&mut self) {
        let (heads, lease) = (self.durable.heads.clone(), self.lease.clone());
        self.runtime.spawn(async move {
            if let Err(error) = heads.release(lease).await {
                tracing::debug!(error = base::error::chain(&error), "a lease is not released; it ends by itself");
            }
        });
    }
}

impl memory::ChunkSink for Writing {
    fn append(&mut self, bytes: &[u8]) -> std::result::Result<memory::ChunkId, memory::BoxError> {
        let chunk = Self::append(self, bytes)?;
        memory::ChunkId::new(&chunk.encode()).ok_or_else(|| "a chunk's name is too long".into())
    }
}
