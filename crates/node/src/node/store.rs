//! Looking after the store: what is in it, whether it is sound, and what of it is garbage.

use std::{sync::Arc, time::Duration};

use base::id::TemplateName;
use checkpoint::{check, name_of};
use model::{
    CheckpointVerification, GcOptions, GcReport, KeyRotation, StoreDamage, StoreStats, StoreVerification, Tally,
};
use store::{
    gc::{self, Mode},
    heads::{Head, HeadsError, Lease},
    verify::Finding,
};
use tokio::runtime::Handle;

use super::{Node, images::remove_quietly};
use crate::error::{Context, Error, Result, Storing, chain};

/// What is read is kept from the collector this long.
pub(super) const LEASE: Duration = Duration::from_secs(3600);

impl Node {
    /// Counts what is in the store.
    pub async fn store_stats(&self) -> Result<StoreStats> {
        let (heads, store) = (&self.durable.heads, &self.durable.store);
        let stats = gc::stats(heads, store).await.storing("count what is in the store")?;
        let (reads, requests) = (store.counters(), store.objects().counters());
        let cache_bytes = match store.cache() {
            Some(cache) => cache.count().await.storing("count what is in the cache")?,
            None => 0,
        };
        Ok(StoreStats {
            objects: store.objects().location().to_string(),
            heads: stats.heads,
            leases: stats.leases,
            manifests: tally(stats.manifests),
            segments: tally(stats.segments),
            keys: tally(stats.keys),
            unknown: tally(stats.unknown),
            kept: tally(stats.kept),
            cache_bytes,
            cache_bytes_max: self.host.config.durable.cache_bytes,
            reads: model::StoreReads {
                cached: reads.cached,
                from_peers: reads.from_peers,
                peer_bytes: reads.peer_bytes,
                fetched: reads.fetched,
                broken: reads.broken,
            },
            peers: self.peer_stats(),
            requests: model::StoreRequests {
                attempts: requests.requests,
                retries: requests.retries,
                errors: requests.errors,
                bytes_out: requests.bytes_out,
                bytes_in: requests.bytes_in,
            },
        })
    }

    /// Reads everything that any head needs.
    pub async fn verify_store(&self) -> Result<StoreVerification> {
        let verified = store::verify::verify(&self.durable.heads, &self.durable.store).await;
        let report = verified.storing("verify the store")?;
        let damage = |Finding { heads, problem }: Finding| StoreDamage {
            heads: heads.iter().map(ToString::to_string).collect(),
            problem: chain(&problem),
        };
        let (unreachable, damaged): (Vec<Finding>, Vec<Finding>) =
            report.findings.into_iter().partition(|finding| finding.problem.is_out_of_reach());
        Ok(StoreVerification {
            heads: report.heads,
            manifests: report.manifests,
            nodes: report.nodes,
            segments: report.segments,
            chunks: report.chunks,
            damage: damaged.into_iter().map(damage).collect(),
            unreachable: unreachable.into_iter().map(damage).collect(),
        })
    }

    /// Removes what nothing needs, or says what that would be.
    pub async fn collect_garbage(&self, request: GcOptions) -> Result<GcReport> {
        let mode = if request.dry_run { Mode::DryRun } else { Mode::Remove };
        let grace = request.grace_ms.map_or(store::limits::GC_GRACE, Duration::from_millis);
        let collected = gc::collect(&self.durable.heads, &self.durable.store, mode, grace).await;
        let report = collected.storing("collect the store's garbage")?;
        let cache_bytes = if request.cache { Some(self.empty_cache(mode).await?) } else { None };
        Ok(GcReport {
            dry_run: request.dry_run,
            leases_ended: report.leases_ended,
            kept: tally(report.kept),
            young: tally(report.young),
            garbage: tally(report.garbage),
            garbage_keys: report.garbage_keys,
            cache_bytes,
        })
    }

    /// Removes what is cached of the store on this node, for the server, the pager and volumes; how many bytes that were, or would be.
    async fn empty_cache(&self, mode: Mode) -> Result<u64> {
        let Some(cache) = self.durable.store.cache() else { return Ok(0) };
        match mode {
            Mode::DryRun => cache.count().await.storing("count what is in the cache"),
            Mode::Remove => cache.empty().await.storing("empty the cache"),
        }
    }

    /// Has the current master key, and no other one, wrap every data key.
    pub async fn rotate_master_key(&self) -> Result<KeyRotation> {
        let done = self.durable.store.keys().rewrap().await.storing("wrap the data keys by the current master key")?;
        tracing::info!(master = done.master, keys = done.keys, wrapped = done.wrapped, "rotated the master key");
        Ok(KeyRotation { master: done.master, keys: done.keys, wrapped: done.wrapped })
    }

    /// Reads, opens, decodes and unpacks everything of one checkpoint.
    pub async fn verify_checkpoint(self: &Arc<Self>, name: &TemplateName) -> Result<CheckpointVerification> {
        let (head, lease) = self.hold_checkpoint(name, "verify").await?;
        let (durable, runtime, point) = (self.durable.clone(), Handle::current(), self.state().claim());
        let directory = self.host.config.sandbox_dir(&point);
        let (scratch, manifest) = (directory.clone(), head.manifest);
        let check = move || check::checkpoint(manifest, &durable, &runtime, &scratch);
        let checked = tokio::task::spawn_blocking(check).await.doing("verify the checkpoint");
        remove_quietly(&directory).await;
        self.state().release(&point);
        self.let_go(lease).await;
        let checked = checked?;
        Ok(CheckpointVerification {
            name: name.clone(),
            manifest: head.manifest.to_string(),
            segments: checked.segments,
            chunks: checked.chunks,
            pages: checked.pages,
            files: checked.files,
            damage: checked.damage,
            unreachable: checked.unreachable,
        })
    }

    /// The head of a checkpoint, which the collector spares as long as the lease is held.
    pub(super) async fn hold_checkpoint(&self, name: &TemplateName, what: &str) -> Result<(Head, Lease)> {
        let head_name = name_of(name)?;
        let opened = self
            .durable
            .heads
            .open_leased(self.durable.store.realm(), &head_name, &format!("{what} {name}"), LEASE)
            .await;
        match opened {
            Err(HeadsError::NotFound { .. }) => Err(Error::NoCheckpoint(name.clone())),
            opened => opened.storing("look for the checkpoint"),
        }
    }

    /// Ends a lease, now or when its time is over.
    pub(super) async fn let_go(&self, lease: Lease) {
        if let Err(error) = self.durable.heads.release(lease).await {
            tracing::debug!(error = chain(&error), "a lease is not released; it ends by itself");
        }
    }
}

fn tally(tally: gc::Tally) -> Tally {
    Tally { objects: tally.objects, bytes: tally.bytes }
}
