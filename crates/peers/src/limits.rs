//! Every bound of asking and answering, each with its reason.

use std::time::Duration;

/// Longest wait for a connection: a round trip within one data centre is far below a millisecond. Longer is slower than the object store.
pub const CONNECT_MAX: Duration = Duration::from_millis(50);

/// Longest wait for a free connection, and for an answer, but for its body: longer than a cold disk takes, a fraction of a second when
/// it is lost.
pub const ANSWER_MAX: Duration = Duration::from_millis(200);

/// Slowest transfer of a body, in bytes per millisecond (16 MiB/s): slower is no help.
pub const BYTES_PER_MS_MIN: u64 = 16 << 10;

/// Largest sealed chunk that is asked for and answered. Chunks of memory have up to 256 KiB and blobs come in pieces of 1 MiB; for larger ones
/// the time of a request to the store does not matter.
pub const CHUNK_BYTES_MAX: usize = 4 << 20;

/// Peers that are asked for one chunk at once, beside the one that had the last of the segment.
pub const ASKED_MAX: usize = 3;

/// Requests to one peer under way at once, each on a connection of its own.
pub const CONNECTIONS_PER_PEER: usize = 8;

/// How long a connection is kept that is not used: below what the peer waits ([`IDLE_MAX`]).
pub const KEEP_MAX: Duration = Duration::from_secs(5);

/// First rest of a peer that failed, doubled with each further failure: of a peer that hangs, 250 ms are lost, then again after one second,
/// three, seven.
pub const REST_FIRST: Duration = Duration::from_secs(1);

/// Longest rest: a peer that comes back is of use again within a minute.
pub const REST_MAX: Duration = Duration::from_secs(60);

/// Chunks of one segment that no peer had, one after the other, after which nobody is asked for it for a while.
pub const MISSES_MAX: u32 = 8;

/// That while: another node may have fetched it then.
pub const QUIET: Duration = Duration::from_secs(5);

/// Segments that it is remembered of who had them: some checkpoints' worth. All are forgotten when there are more.
pub const SEGMENTS_MAX: usize = 1_024;

/// How often the database is asked who there is, and told that this node is.
pub const DIRECTORY_PERIOD: Duration = Duration::from_secs(5);

/// Longest wait for the database when a store is opened: peers are found later then.
pub const DIRECTORY_WAIT: Duration = Duration::from_secs(2);

/// Connections of a server at once; more are hung up on. With the largest chunk in each it holds 128 MiB.
pub const SERVED_CONNECTIONS_MAX: usize = 32;

/// How long a server waits for the next request's head.
pub const IDLE_MAX: Duration = Duration::from_secs(10);

/// How long a connection lasts at most, so that one that reads slowly does not hold its memory for ever. The asker makes another.
pub const CONNECTION_MAX: Duration = Duration::from_secs(60);

/// Largest head of a request; the least that hyper allows. Ours have 300 bytes.
pub const HEAD_BYTES_MAX: usize = 8 << 10;

/// How often a request with an unknown data key may make a server look for new keys in the store.
pub const KEYS_PERIOD: Duration = Duration::from_secs(30);
