//! Of hands: file work in sandboxes.

/// Most requests of a hand at a time, beside transfers and watches: each has a thread. A slow directory then leaves room for others.
pub const HAND_REQUESTS_MAX: usize = 16;

/// Most transfers of a hand at a time: each has a thread with 256 KiB of buffer, and a pipe of [`HAND_PIPE_BYTES`].
pub const HAND_TRANSFERS_MAX: usize = 16;

/// Most watches of a hand: each has a thread that sleeps.
pub const HAND_WATCHES_MAX: usize = 64;

/// Most directories that a hand watches: each takes about 1 KiB of the kernel's memory, and all processes of one user of the host share one
/// bound (`fs.inotify.max_user_watches`), which is 8,192 on small hosts.
pub const HAND_WATCHED_DIRECTORIES_MAX: usize = 8_192;

/// Events of one watch that wait for the client: the kernel's own bound of a queue. More are said to be lost.
pub const HAND_EVENTS_MAX: usize = 16_384;

/// Bytes of events of one watch that wait for the client: 16,384 events with names of 100 bytes need 3 MiB. More are
/// said to be lost.
pub const WATCH_BYTES_MAX: usize = 4 << 20;

/// The same of all watches of one sandbox.
pub const WATCH_BYTES_SANDBOX_MAX: usize = 16 << 20;

/// The same of all watches of a node: events with their files take up to 16 KiB each, and sandboxes are many.
pub const WATCH_BYTES_NODE_MAX: usize = 256 << 20;

/// Bytes of all names and other texts of one list, with 128 bytes for each file: 100,000 files with paths of 100 bytes
/// have 23 MiB.
pub const HAND_LIST_BYTES_MAX: usize = 32 << 20;

/// Most lists of a sandbox that the node puts together at a time.
pub const HAND_LISTS_MAX: usize = 2;

/// Size of the pipe of a transfer, in bytes: the kernel's bound for users (`fs.pipe-max-size`).
pub const HAND_PIPE_BYTES: usize = 1 << 20;

/// Bytes of one file that a transfer leaves in the page cache: the cache of larger files is written and dropped behind the transfer, because
/// it is charged to the node.
pub const HAND_CACHED_BYTES_MAX: u64 = 64 << 20;

/// Most files of one list.
pub const HAND_LIST_ENTRIES_MAX: usize = 100_000;

/// Largest file of /proc or /sys that is read, in bytes: only reading tells its size, and some have no end.
pub const HAND_KERNEL_FILE_BYTES_MAX: u64 = 1 << 20;

/// Most bytes of a sandbox's `/etc/passwd` and `/etc/group` that are looked at for names.
pub const HAND_NAMES_BYTES_MAX: u64 = 1 << 20;

/// A transfer ends when its client does nothing for this many seconds.
pub const HAND_PEER_IDLE_S: u64 = 600;

/// A transfer fails when the sandbox's filesystem does nothing for this many seconds: its disk or volume hangs.
pub const HAND_STALL_S: u64 = 60;

/// Most users of a sandbox for whom hands work at a time: each hand is a process.
pub const HAND_USERS_MAX: usize = 8;

/// A hand ends when it had nothing to do for this many seconds: starting one takes milliseconds, and each keeps a process and the mounts of
/// its sandbox.
pub const HAND_IDLE_S: u64 = 60;

/// Descriptors of a hand: up to three for each request and transfer, and its own.
pub const HAND_DESCRIPTORS_MAX: u64 = 256;
