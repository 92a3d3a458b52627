//! See [`super`].

use crate::{
    CheckpointVerification, Damage, GcReport, GcRequest, KeyRotation, PeerStats, StoreDamage, StoreReads,
    StoreRequests, StoreStats, StoreVerification, Tally,
};

impl From<model::Tally> for Tally {
    fn from(model::Tally { objects, bytes }: model::Tally) -> Self {
        Self { objects, bytes }
    }
}

impl From<model::StoreStats> for StoreStats {
    fn from(
        model::StoreStats {
            objects,
            heads,
            leases,
            manifests,
            segments,
            keys,
            unknown,
            kept,
            cache_bytes,
            cache_bytes_max,
            reads,
            peers,
            requests,
        }: model::StoreStats,
    ) -> Self {
        Self {
            objects,
            heads,
            leases,
            manifests: manifests.into(),
            segments: segments.into(),
            keys: keys.into(),
            unknown: unknown.into(),
            kept: kept.into(),
            cache_bytes,
            cache_bytes_max,
            reads: reads.into(),
            peers: peers.into(),
            requests: requests.into(),
        }
    }
}

impl From<model::StoreReads> for StoreReads {
    fn from(model::StoreReads { cached, from_peers, peer_bytes, fetched, broken }: model::StoreReads) -> Self {
        Self { cached, from_peers, peer_bytes, fetched, broken }
    }
}

impl From<model::PeerStats> for PeerStats {
    fn from(
        model::PeerStats { address, known, hits, misses, failures, served, served_bytes, refused }: model::PeerStats,
    ) -> Self {
        Self { address, known, hits, misses, failures, served, served_bytes, refused }
    }
}

impl From<model::StoreRequests> for StoreRequests {
    fn from(model::StoreRequests { attempts, retries, errors, bytes_out, bytes_in }: model::StoreRequests) -> Self {
        Self { attempts, retries, errors, bytes_out, bytes_in }
    }
}

impl From<model::StoreVerification> for StoreVerification {
    fn from(
        model::StoreVerification { heads, manifests, nodes, segments, chunks, damage, unreachable }: model::StoreVerification,
    ) -> Self {
        Self {
            heads,
            manifests,
            nodes,
            segments,
            chunks,
            damage: damage.into_iter().map(Into::into).collect(),
            unreachable: unreachable.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<model::StoreDamage> for StoreDamage {
    fn from(model::StoreDamage { heads, problem }: model::StoreDamage) -> Self {
        Self { heads, problem }
    }
}

impl From<model::GcReport> for GcReport {
    fn from(
        model::GcReport { dry_run, leases_ended, kept, young, garbage, garbage_keys, cache_bytes }: model::GcReport,
    ) -> Self {
        Self {
            dry_run,
            leases_ended,
            kept: kept.into(),
            young: young.into(),
            garbage: garbage.into(),
            garbage_keys,
            cache_bytes,
        }
    }
}

impl From<model::KeyRotation> for KeyRotation {
    fn from(model::KeyRotation { master, keys, wrapped }: model::KeyRotation) -> Self {
        Self { master, keys, wrapped }
    }
}

impl From<model::CheckpointVerification> for CheckpointVerification {
    fn from(
        model::CheckpointVerification { name, manifest, segments, chunks, pages, files, damage, unreachable }: model::CheckpointVerification,
    ) -> Self {
        Self {
            name,
            manifest,
            segments,
            chunks,
            pages,
            files,
            damage: damage.into_iter().map(Into::into).collect(),
            unreachable: unreachable.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<model::Damage> for Damage {
    fn from(model::Damage { part, problem }: model::Damage) -> Self {
        Self { part, problem }
    }
}

impl From<GcRequest> for model::GcOptions {
    fn from(GcRequest { dry_run, grace_ms, cache }: GcRequest) -> Self {
        Self { dry_run, grace_ms, cache }
    }
}
