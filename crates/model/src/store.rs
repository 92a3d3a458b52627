//! The store behind checkpoints: what is in it, whether it is sound, and what of it is garbage.

use base::id::TemplateName;

/// Objects and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub objects: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// What is in the store, and what this node has asked of it since it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreStats {
    /// Where the objects are.
    pub objects: String,
    /// Names, each with a state that it stands for.
    pub heads: u64,
    /// Promises of the garbage collector to those who are writing.
    pub leases: u64,
    /// Descriptions of states.
    pub manifests: Tally,
    /// Sealed data.
    pub segments: Tally,
    /// Wrapped keys.
    pub keys: Tally,
    /// What this version does not know.
    pub unknown: Tally,
    /// Of manifests and segments, what heads or leases keep; the rest is garbage.
    pub kept: Tally,
    /// Bytes in this node's cache, which sandboxes' checkpoints and volumes share.
    pub cache_bytes: u64,
    /// Most bytes in it.
    pub cache_bytes_max: u64,
    /// Where this node got chunks from.
    pub reads: StoreReads,
    /// What it asked of other nodes, and they of it.
    pub peers: PeerStats,
    /// What it has asked of the object store.
    pub requests: StoreRequests,
}

/// Where chunks came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreReads {
    /// From the local cache.
    pub cached: u64,
    /// From another node.
    pub from_peers: u64,
    /// Sealed bytes of these.
    pub peer_bytes: u64,
    /// From the object store.
    pub fetched: u64,
    /// Answers that did not open, and were thrown away.
    pub broken: u64,
}

/// Asking other nodes, and being asked, since this node began. The pager's process asks for itself and is not in here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerStats {
    /// Where others reach this node; none: it serves nobody.
    pub address: Option<String>,
    /// Other nodes that are known now.
    pub known: u64,
    /// Chunks that one of them gave.
    pub hits: u64,
    /// Chunks that none of those asked gave.
    pub misses: u64,
    /// Answers that did not come in time, or were none.
    pub failures: u64,
    /// Chunks given to others.
    pub served: u64,
    /// Sealed bytes of these.
    pub served_bytes: u64,
    /// Requests that were refused: without the realm's key, or not understood.
    pub refused: u64,
}

/// Requests to the object store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreRequests {
    /// Attempts made.
    pub attempts: u64,
    /// Attempts that followed a failed one.
    pub retries: u64,
    /// Attempts that failed.
    pub errors: u64,
    /// Bytes written.
    pub bytes_out: u64,
    /// Bytes read.
    pub bytes_in: u64,
}

/// What verifying the store has seen: all that any head needs was read and opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreVerification {
    /// Heads.
    pub heads: u64,
    /// Different manifests.
    pub manifests: u64,
    /// Different nodes of trees.
    pub nodes: u64,
    /// Different segments.
    pub segments: u64,
    /// Chunks in these.
    pub chunks: u64,
    /// What is damaged or missing.
    pub damage: Vec<StoreDamage>,
    /// What could not be read and may be sound: the store was out of reach, or a master key is not known to this node.
    pub unreachable: Vec<StoreDamage>,
}

/// Something that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreDamage {
    /// The heads that need it: `checkpoint/NAME`.
    pub heads: Vec<String>,
    /// What is wrong.
    pub problem: String,
}

/// Body of a request to collect garbage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GcOptions {
    /// Only say what would go.
    pub dry_run: bool,
    /// Spare what was written less than this ago, by the store's own clock; none: the default of an hour.
    pub grace_ms: Option<u64>,
    /// Also empty this node's cache of the store.
    pub cache: bool,
}

/// What a collection found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcReport {
    /// Nothing was removed.
    pub dry_run: bool,
    /// Leases that were over.
    pub leases_ended: u64,
    /// What heads or leases keep.
    pub kept: Tally,
    /// Garbage that is too young to be removed.
    pub young: Tally,
    /// What was removed, or would be.
    pub garbage: Tally,
    /// The keys of that.
    pub garbage_keys: Vec<String>,
    /// Bytes that the cache had and that are gone, or would be; none if it was not asked for.
    pub cache_bytes: Option<u64>,
}

/// What rotating the master key has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRotation {
    /// The name of the current master key, which alone opens all data keys now.
    pub master: String,
    /// Data keys.
    pub keys: u64,
    /// Those that it did not wrap before.
    pub wrapped: u64,
}

/// What verifying one checkpoint has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointVerification {
    /// Its name.
    pub name: TemplateName,
    /// The immutable state that the name stands for.
    pub manifest: String,
    /// Its segments.
    pub segments: u64,
    /// Chunks in these, each opened.
    pub chunks: u64,
    /// Pages of memory, each decoded.
    pub pages: u64,
    /// Files, directories and the like in its layers, each unpacked.
    pub files: u64,
    /// What is damaged or missing.
    pub damage: Vec<Damage>,
    /// What could not be read and may be sound.
    pub unreachable: Vec<Damage>,
}

/// A part of a checkpoint that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Which: `manifest`, `segment ID`, `state`, `memory`, `layer N`.
    pub part: String,
    /// What is wrong.
    pub problem: String,
}
