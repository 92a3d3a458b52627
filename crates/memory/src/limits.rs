//! Every bound of page images, each with its reason.

/// Most bytes of a chunk's name: a reference into a segment (32 bytes) with room to grow.
pub const CHUNK_ID_BYTES_MAX: usize = 48;

/// Most pages of one chunk: a reader makes room for the pages (4 MiB) before it has seen them.
pub const CHUNK_PAGES_MAX: usize = 1024;

/// Most runs in one leaf of an index: one leaf is decoded to find one page, in well under a millisecond, and takes about 100 KiB in memory.
pub const LEAF_RUNS_MAX: usize = 4096;

/// Leaves lie in the root up to this many bytes, so that small images are opened with one read; later ones become chunks.
pub const ROOT_INLINE_BYTES_MAX: usize = 256 << 10;

/// Largest root that is opened, in bytes: 32 times the inline leaves, enough for images of terabytes.
pub const ROOT_BYTES_MAX: usize = 8 << 20;

/// First page number that no process has: addresses have 57 bits (five-level page tables).
pub const PAGE_NUMBER_END: u64 = 1 << (57 - 12);

/// Most images that one is built on, itself included: each may have to be asked for a page.
pub const LAYERS_MAX: usize = 64;

/// Bytes of address space that are scanned at a time: in the worst case, every other page, the runs in it take 2 MiB.
pub const SCAN_BYTES: u64 = 1 << 30;

/// Bytes of memory read at a time: large enough that a system call costs nothing beside the copy, small enough to stay in the cache.
pub const READ_BYTES: usize = 1 << 20;

/// Distinct pages remembered to find equal ones, in each of two generations (7/8 of 2^19 slots of 24 bytes): 26 MiB at most.
pub const SEEN_PAGES_MAX: usize = 7 << 16;

/// Pages of older images that a dump can refer to: 20 bytes each, 12.5 MiB in all, which with the rest of a dump stays below 64 MiB. As
/// many as differ in 2.5 GiB.
pub const KNOWN_PAGES_MAX: usize = 5 << 17;

/// Chunks of older images that a dump can refer to: 1.6 MiB of names; at 64 pages each more than there are pages.
pub const KNOWN_CHUNKS_MAX: usize = 1 << 15;

/// Of so many pages one is looked at to learn how much of a program is known: a prime, so that no pattern follows it; 3 % of the time to
/// hash them all.
pub const SAMPLE_EVERY: u64 = 31;

/// Pages in a piece of a list of contents: 512 KiB of hashes, held three times for the moment in which it is written.
pub const PIECE_PAGES: usize = 1 << 15;

/// Pieces asked for at once: 2 MiB, held beside what is known of them.
pub const PIECES_PER_READ: usize = 4;

/// Chunks whose names are kept during a dump, so that later pages can refer to them: 3 MiB, at least 16 GiB of data back.
pub const RECENT_CHUNKS_MAX: usize = 1 << 16;

/// Chunks that a page reader keeps open, with the clusters of them that it has decoded: at most 16 MiB at 64 pages each.
pub const OPEN_CHUNKS_MAX: usize = 32;

/// Leaves that each image keeps decoded: 1.6 MiB.
pub const OPEN_LEAVES_MAX: usize = 16;

/// Chunks asked for at once by sequential readers, so that neighbours in a segment are one request.
pub const CHUNKS_PER_READ: usize = 8;

/// Most pages of a working set (4 GiB): beyond that an eager restore is the better plan.
pub const HOT_PAGES_MAX: usize = 1 << 20;
