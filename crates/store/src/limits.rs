//! Every bound of the store, each with its reason.

use std::time::Duration;

/// Requests under way at once. Enough to fill a fast link with 8 MiB parts; below what services and file limits bear.
pub const REQUESTS_MAX: usize = 64;

/// Attempts of one request. With the backoff below the last one starts 3 s (mean) to 6 s after the first failure: longer than a
/// restarted server or a throttled prefix needs, shorter than people wait.
pub const ATTEMPTS_MAX: u32 = 8;

/// Pause before the second attempt, doubled for each further one; the true pause is random between zero and this.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(50);

/// Longest pause between two attempts.
pub const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Longest time of one attempt: a part of 8 MiB over a link of 2 Mbit/s.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of one part of a streamed upload. S3 wants at least 5 MiB and at most 10,000 parts, all but the last of one size on some
/// services. Larger parts would only cost memory.
pub const PART_BYTES: usize = 8 << 20;

/// Room behind a part for the end of what was added last: chunks have some 100 KiB.
pub const PART_OVERLAP: usize = 1 << 20;

/// Parts of one upload under way at once; one more is being filled. Bounds an upload's memory to 36 MiB.
pub const PARTS_IN_FLIGHT: usize = 3;

/// Most parts of one upload: S3's own limit.
pub const PARTS_MAX: usize = 10_000;

/// Largest plain chunk. A chunk is fetched, opened and cached as a whole, and a fault waits for it.
pub const CHUNK_BYTES_MAX: usize = 16 << 20;

/// Most chunks of one segment: bounds the index (4 bytes each) that a reader takes into memory.
pub const CHUNKS_MAX: usize = 4 << 20;

/// Largest segment: what 10,000 parts hold, less one part for index and footer and their rounding.
pub const SEGMENT_BYTES_MAX: u64 = ((PARTS_MAX - 4) * PART_BYTES) as u64;

/// Largest gap between two chunks that one range request reads over: about the bytes that arrive in the time of a request of its own.
pub const GAP_BYTES_MAX: u64 = 64 << 10;

/// Largest range request of several chunks: more gains nothing, and one failure would repeat more.
pub const RANGE_BYTES_MAX: u64 = 8 << 20;

/// Most bytes that wait to be written into the cache: a second of a slow disk. More are not cached.
pub const CACHE_PENDING_BYTES_MAX: usize = 64 << 20;

/// Largest object that is read as a whole (wrapped keys, manifests): checked before the bytes are asked for.
pub const WHOLE_OBJECT_BYTES_MAX: u64 = 64 << 20;

/// Largest file of master keys: hundreds of keys.
pub const KEY_FILE_BYTES_MAX: u64 = 64 << 10;

/// Longest name of a head, in bytes: room for a kind, a name of the user's and an id; short enough for a database index.
pub const HEAD_NAME_BYTES_MAX: usize = 255;

/// Longest note of a head, in bytes: some lines of text, sealed and in hexadecimal digits.
pub const HEAD_NOTE_BYTES_MAX: usize = 4 << 10;

/// Heads that one `list` returns: bounds the answer. A caller goes on after the last name.
pub const HEADS_PER_LIST_MAX: u32 = 1_000;

/// Longest key of a tree: a path component and an inode number with much room.
pub const TREE_KEY_BYTES_MAX: usize = 1 << 10;

/// Longest value of a tree: what is larger belongs in a chunk of its own, with a reference here.
pub const TREE_VALUE_BYTES_MAX: usize = 32 << 10;

/// Size that nodes of a tree are split at: one change rewrites a node of each level, one lookup reads one of each. With references of
/// 64 bytes a node has about 200 children, so four levels hold a billion entries.
pub const TREE_NODE_BYTES: usize = 16 << 10;

/// A changed node below this takes in a neighbour.
pub const TREE_NODE_BYTES_MIN: usize = TREE_NODE_BYTES / 4;

/// Largest encoded node: a split leaves at most one entry above `TREE_NODE_BYTES`. Checked before a node is parsed.
pub const TREE_NODE_BYTES_MAX: usize = TREE_NODE_BYTES + TREE_KEY_BYTES_MAX + TREE_VALUE_BYTES_MAX + 64;

/// Levels of a tree above its leaves: never reached (a node has at least six children); bounds what a hostile root can claim.
pub const TREE_HEIGHT_MAX: u8 = 24;

/// Nodes that a scan or a batch reads at once, when it has seen that it needs many: half a megabyte, one request if they are neighbours.
pub const TREE_READ_AHEAD: usize = 32;

/// Most other states that a manifest includes: more than a sandbox has volumes.
pub const MANIFEST_INCLUDES_MAX: usize = 64;

/// Trees of one manifest: a client has a few maps for one state.
pub const MANIFEST_TREES_MAX: usize = 16;

/// Segments that one manifest names: a megabyte of names. Segments of 64 MiB make 4 TiB of it.
pub const MANIFEST_SEGMENTS_MAX: usize = 1 << 16;

/// Bytes of a manifest that are its client's business: it is read as a whole at each opening.
pub const MANIFEST_CLIENT_BYTES_MAX: usize = 1 << 20;

/// Largest manifest object: the bounds above, sealed and framed. Checked before it is read.
pub const MANIFEST_BYTES_MAX: u64 = (MANIFEST_SEGMENTS_MAX * 16 + MANIFEST_CLIENT_BYTES_MAX + (8 << 10)) as u64;

/// Manifests that marking reads, and garbage that a sweep removes, at once: these are many small requests.
pub const GC_PARALLEL: usize = 16;

/// Times that marking begins anew because another collector has removed what a head has left meanwhile.
pub const GC_ATTEMPTS: usize = 5;

/// Segments that `verify` reads at once, each with up to `RANGE_BYTES_MAX` in memory.
pub const VERIFY_PARALLEL: usize = 4;

/// How long garbage is spared: longer than any restore of a reader that has no lease, by the store's own clock.
pub const GC_GRACE: Duration = Duration::from_secs(3600);

/// How long `verify` may take for one step (a segment, a tree) before its lease may be ended.
pub const VERIFY_LEASE: Duration = Duration::from_secs(3600);

/// How long after it was last announced a peer is asked, by the database's clock: three announcements. One that is gone sooner costs a
/// refused connection.
pub const PEER_SEEN_MAX: Duration = Duration::from_secs(30);

/// How long the row of a peer that announces itself no more is kept: for people who look.
pub const PEER_ROW_MAX: Duration = Duration::from_secs(600);

/// Peers that the database names at once, the last seen first: three of them are asked for a chunk.
pub const PEERS_LISTED_MAX: u32 = 16;

/// Longest address of a peer, in bytes: a host name and a port.
pub const PEER_ADDRESS_BYTES_MAX: usize = 253 + 6;
