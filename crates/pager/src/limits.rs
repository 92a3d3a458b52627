//! Bounds, each with its reason.

/// Bytes of a page. userfaultfd and pagemap count in these; so does the fork engine, which is for x86-64.
pub const PAGE_BYTES: u64 = 4096;

/// Largest cluster a source may hand over, in pages: what one worker holds in memory at a time.
pub const CLUSTER_PAGES_MAX: u64 = 64;

/// Pages that a demand fault brings, itself included. The process's next fault waits for them, 0.8 us each: measured p50 of a fault is
/// 7.5 us with 1, 13 us with 8, 20 us with 16.
pub const NEIGHBOUR_PAGES: u64 = 8;

/// Images served at a time. Each has a zygote, of which a node keeps a few dozen.
pub const IMAGES_MAX: usize = 256;

/// Longest name of an image, in bytes: it is kept in a fixed place in shared memory.
pub const NAME_BYTES_MAX: usize = 128;

/// Largest opaque description of an image: roots of page images, as they are in a manifest.
pub const IMAGE_BYTES_MAX: u64 = 1 << 20;

/// Processes served at a time: with the descriptors of the sources, well below the usual hard limit of 20,000 descriptors.
pub const PROCESSES_MAX: usize = 4096;

/// Places kept for the children of processes that are killed because there are too many: every thread may have read a full log of forks.
pub const PROCESSES_RESERVE: usize = EVENT_THREADS_MAX * LOG_MESSAGES;

/// Processes of one image, so that one fork bomb does not take the places of other images.
pub const IMAGE_PROCESSES_MAX: usize = 1024;

/// Registered pages of one process: the bits that say which are missing have a fixed place. A checkpoint with more is refused when it is made.
pub const PAGES_MAX: u64 = base::limits::RESTORED_ADDRESS_BYTES_MAX / PAGE_BYTES;

/// Spans that a process may begin with: as many as a captured program may have mappings, so that each checkpoint can be served.
pub const SPANS_AT_START_MAX: usize = base::limits::MAPPINGS_MAX;

/// Spans that the mappings of one process may fall into; beyond it the process is killed. Twice what it may begin with, so that it can divide
/// them: the kernel's own bound is 65,530 mappings.
pub const SPANS_MAX: usize = 2 * SPANS_AT_START_MAX;

/// Moves whose second event is awaited. One per thread of a program that is inside `mremap` at this moment.
pub const ECHOES_MAX: usize = 64;

/// Messages taken from the kernel at a time: what is read and not yet applied when the pager is killed.
pub const LOG_MESSAGES: usize = 16;

/// First faults that are remembered of an image: a working set of 128 MiB.
pub const ORDER_MAX: usize = 32_768;

/// Failures that are remembered, with so many bytes each.
pub const FAILURES_MAX: usize = 64;

/// Bytes of a failure's record: an error with all its causes, of which the last says what is wrong with which object.
pub const FAILURE_BYTES_MAX: usize = 1528;

/// Threads that read events: the first ones, and how many at most. A thread can be held up in the kernel by a process that makes its own
/// memory management slow (its cgroup at its limit, thousands of mappings changed at a time); then another one is made.
pub const EVENT_THREADS: usize = 2;

/// See [`EVENT_THREADS`].
pub const EVENT_THREADS_MAX: usize = 32;

/// Threads that wait for the store on behalf of faults; half of them for one process at most.
pub const FETCH_THREADS: usize = 8;

/// Threads that fill in the background.
pub const FILL_THREADS: usize = 2;

/// Clients connected at a time: the node's server, once for each restore, and some who wait for memory; and a person who looks.
pub const CLIENTS_MAX: usize = 64;

/// Largest message between client and guardian. What is larger goes in a memfd beside it.
pub const MESSAGE_BYTES_MAX: usize = 16 << 10;
