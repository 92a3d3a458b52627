//! Every bound of a volume, each with its reason.

use std::time::Duration;

/// Bytes of a file that one key of the tree describes, and the largest chunk of data: a cold read of one byte fetches this much, and a
/// sequential one eight times of it at once.
pub const WINDOW_BYTES: u32 = 128 << 10;

/// Least quotas of a volume: what is smaller is meant otherwise (G left out), and could not take a single file.
pub const BYTES_MAX_LEAST: u64 = 4 << 10;

/// As [`BYTES_MAX_LEAST`], of inodes: the top directory is one.
pub const INODES_MAX_LEAST: u64 = 2;

/// Longest name of an entry: what Linux and POSIX take.
pub const NAME_BYTES_MAX: usize = 255;

/// Longest target of a symbolic link: PATH_MAX without the zero.
pub const TARGET_BYTES_MAX: usize = 4095;

/// Largest size of a file: what fits a signed offset.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Most names of one inode: ext4's bound, which programs know.
pub const LINKS_MAX: u32 = 65_000;

/// Names and values of one inode's extended attributes together: they lie in one value of the tree.
pub const XATTRS_BYTES_MAX: usize = 24 << 10;

/// Longest note of a snapshot: some lines of text. Sealed and in hexadecimal digits it fits a head's note.
pub const NOTE_BYTES_MAX: usize = 1 << 10;

/// Symbolic links that one path may lead through: what Linux takes.
pub const SYMLINKS_MAX: usize = 40;

/// Levels of directories that are walked up when one is moved: bounds what a damaged tree can cost.
pub const DEPTH_MAX: usize = 1 << 16;

/// Pieces that a window may have before neighbours in memory are joined, and before it is written as a whole: as many references as make
/// a value of the tree that is far from its bound.
pub const PIECES_MAX: usize = 64;

/// Holes below this between two pieces in memory are filled when pieces are joined: a page, below which nobody asks for holes.
pub const HOLE_BYTES_MIN: u32 = 4 << 10;

/// Keys that one miss reads: about two leaves of the tree. At least two: an inode comes with its extended attributes.
pub const PAGE_KEYS: usize = 512;

/// Data that is packed into one chunk: many small files together, so that a cold listing of them is few requests.
pub const PACK_BYTES: usize = 128 << 10;

/// Bytes of a data segment at which the next one is begun: one upload of eight parts; with 65,536 segments a volume has 4 TiB.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// Keys that are captured with the lock held at a time: some 100 us.
pub const CAPTURE_KEYS: usize = 512;

/// Paths of directories that whoever walks a tree by its keys remembers: some megabytes.
pub const NAMES_KNOWN: usize = 16 << 10;

/// Pages of keys that it remembers: of inodes and of entries, in two places each.
pub const PAGES_KNOWN: usize = 8;

/// Data that an import or export moves at a time.
pub const ARCHIVE_READ_BYTES: usize = 1 << 20;

/// Segments of nodes above which the small ones are joined: each commit adds one, and a manifest names them all.
pub const NODE_SEGMENTS: usize = 64;

/// Bytes of nodes that one commit moves: some hundred milliseconds.
pub const MOVED_NODE_BYTES: u64 = 32 << 20;

/// Bytes of data that one commit moves: as much as writers may have ahead of it.
pub const MOVED_DATA_BYTES: u64 = 256 << 20;

/// Garbage below which data is not moved, as long as it is less than half of what is in use.
pub const GARBAGE_BYTES_MIN: i64 = 64 << 20;

/// What a small segment of data is, and how many there may be before they are joined: a commit adds one.
pub const SMALL_SEGMENT_BYTES: i64 = 4 << 20;
/// See above.
pub const DATA_SEGMENTS_SMALL: usize = 256;

/// Commits between two looks at what may be moved.
pub const COMPACT_COMMITS: u32 = 64;

/// Chunks that a verification reads at once: 4 MiB.
pub const VERIFY_CHUNKS: usize = 32;

/// Chunks of data kept open in memory: at most 64 MiB. The kernel's page cache is in front of it.
pub const CHUNKS_OPEN: usize = 512;

/// Nodes of the tree kept in memory: at most 32 MiB, all branches of a million files.
pub const NODES_OPEN: usize = 2048;

/// What is in memory and in the log only at which changes wait for a commit, unless the node says otherwise: some seconds of writing, and
/// what a crash makes the next opening replay.
pub const DIRTY_BYTES: u64 = 256 << 20;

/// What an inode, a name or a window that has changed counts as beside its data: a new small file has three of them, and takes some 2.7 KiB.
pub const DIRTY_KEY_BYTES: u64 = 1 << 10;

/// A commit is begun before its time when this part of what writers may have ahead of it is dirty: they write on while it works.
pub const COMMIT_SHARE: u64 = 4;

/// Files of the log that are read for what they say of requests, though a commit has all that is in them: the newest. They are there if process after
/// process dies within a moment, and the kernel waits for no answer so long.
pub const WAL_OVERTAKEN_MAX: usize = 64;

/// Requests of a log that are remembered after it was replayed: far more than the kernel has under way at once.
pub const REQUESTS_KNOWN: usize = 1 << 16;

/// How long a commit waits for answers to requests before it leaves the log as it is: they take microseconds.
pub const ANSWER_PATIENCE: Duration = Duration::from_millis(100);

/// Longest pause between two attempts to commit while the store is away.
pub const COMMIT_BACKOFF: Duration = Duration::from_secs(5);

/// Inodes in memory above which clean ones are let go, unless the node says otherwise: at some 400 bytes each with their entries, 100 MiB.
pub const INODES_IN_MEMORY: usize = 256 << 10;

/// Records that wait in memory for the log's file before a writer writes them (without a sync).
pub const WAL_BUFFER_BYTES: usize = 1 << 20;

/// Zeros that are written to the log ahead of what is synced often: some tens of syncs' worth.
pub const WAL_FILL_BYTES: u64 = 256 << 10;

/// Syncs of one file of the log after which it is filled ahead: most files see none or one.
pub const WAL_SYNCS_MIN: u32 = 4;

/// A file of the log that a commit has overtaken becomes the next one if it is as large, and as much was written during the commit.
pub const WAL_SPARE_BYTES: u64 = 8 << 20;

/// Files of the log that are not synced and kept open for it, above which a commit syncs them.
pub const WAL_UNSYNCED_MAX: usize = 16;

/// Largest batch of the log: a record of the largest write and a buffer before it. Checked before a batch is read.
pub const WAL_BATCH_BYTES_MAX: usize = 32 << 20;

/// Manifests whose contents a node remembers, of all volumes of a realm.
pub const LAYOUTS_KNOWN: usize = 64;

/// Manifests that name more segments are not remembered: 16 bytes each, so that all take at most some 8 MiB.
pub const LAYOUT_SEGMENTS_MAX: usize = 4096;

/// Largest write in one operation.
pub const WRITE_BYTES_MAX: usize = 8 << 20;

/// Times that a head is looked at again because a commit came between what was read of it and what was to be done with it.
pub const HEAD_TRIES: u32 = 10;

/// Names and inodes that are listed for the kernel to forget; of more it forgets all that it knows.
pub const FORGET_MAX: usize = 20_000;

/// What a reader that follows a writer has left behind is kept this long for reads that are under way.
pub const READ_MAX: Duration = Duration::from_secs(60);

/// How long a commit may take before what it wrote may be collected; renewed for each segment.
pub const COMMIT_LEASE: Duration = Duration::from_secs(3600);
