//! Every bound of this crate, each with its reason.

use std::time::Duration;

pub(crate) use base::limits::MESSAGE_BYTES_MAX;

/// Longest name of a holder: a path.
pub const HOLDER_BYTES_MAX: usize = 4096;

/// Names of all holders of one superblock together: as JSON they fit into one message in any case. Some 3,000 sandboxes.
pub const HOLDERS_BYTES_MAX: usize = 48 << 10;

/// Holders that an error names: twice, in its text and its details, and the longest names still fit into one message. Of others it says how many.
pub(crate) const HOLDERS_NAMED: usize = 6;

/// How long the processes may take to come up.
pub(crate) const START_MAX: Duration = Duration::from_secs(10);
/// Between two looks whether they have.
pub(crate) const START_TICK: Duration = Duration::from_millis(2);
/// Longest wait for an answer to a request other than HTTP: a volume may have to be opened and its log repeated.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(120);

/// A worker that lived this long was healthy; if it dies the next one is started at once.
pub(crate) const HEALTHY: Duration = Duration::from_secs(10);
/// Pause before the second attempt to start a worker or a guardian that dies at once; doubled each time.
pub(crate) const RESTART_FIRST: Duration = Duration::from_millis(20);
/// Longest of these.
pub(crate) const RESTART_MAX: Duration = Duration::from_secs(5);
/// Attempts after which the guardian gives up: five minutes, in which programs waited. What ends them then is an error that says so.
pub(crate) const RESTARTS_MAX: u32 = 64;
/// The same where nothing is mounted: whoever asked for the first volume shall hear of it.
pub(crate) const RESTARTS_UNUSED_MAX: u32 = 3;
/// How often a client asks a worker that dies over the question.
pub(crate) const CONTROL_ATTEMPTS: usize = 5;
/// Clients that may wait in a socket while there is no worker.
pub(crate) const CLIENTS_WAITING: i32 = 1024;
/// How long a new guardian waits for one that is about to end.
pub(crate) const LOCK_MAX: Duration = Duration::from_secs(5);

/// Steps on trees at a time by HTTP. Of these and the next three one volume has half at most, and less the more volumes are busy (`worker::turns`).
pub(crate) const STEPS: usize = 64;
/// Files that are being sent to clients.
pub(crate) const READS: usize = 128;
/// Changes by HTTP at a time, which wait while too much is dirty.
pub(crate) const CHANGES: usize = 64;
/// Files that come from clients.
pub(crate) const WRITES: usize = 128;
/// Volumes that are opened, committed, closed and so on at a time.
pub(crate) const WHOLES: usize = 32;
/// Looks for what other nodes have committed, of one volume one at a time.
pub(crate) const FOLLOWS: usize = 16;
/// Names of volumes and snapshots that are not to be made any more, and are remembered: the requests that would make them were sent seconds ago.
pub(crate) const UNWANTED_MAX: usize = 1024;
/// Bytes of a file that are read or written at a time for one request.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// Pieces of a file that wait for a slow reader.
pub(crate) const PIECES_WAITING: usize = 2;
/// Most bytes of a body that are read although nobody wants them, and how long that may take.
pub(crate) const REST_BYTES_MAX: usize = 256 << 20;
pub(crate) const REST_MAX: Duration = Duration::from_secs(10);
/// Entries of a directory in one answer, unless the request says otherwise.
pub(crate) const LIST_DEFAULT: usize = 1_000;
/// Most of them.
pub(crate) const LIST_MAX: usize = 10_000;
/// Entries that are read at a time for a list of many levels.
pub(crate) const TREE_ENTRIES: usize = 256;
/// How often idle volumes are looked for.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// How often it is looked for what another node has committed of a volume that is followed.
pub(crate) const FOLLOW_PAUSE: Duration = Duration::from_millis(900);
/// Readers' leases are for an hour.
pub(crate) const RENEWAL: Duration = Duration::from_secs(15 * 60);
/// How long a request waits for a volume that is being opened or closed: its log may be long.
pub(crate) const SLOT_WAIT_MAX: Duration = Duration::from_secs(60);
/// Between two attempts to go on with a mount while the store is away.
pub(crate) const ADOPTION_PAUSE: Duration = Duration::from_millis(500);
/// How long it is waited for whether another node writes an open volume.
pub(crate) const CONFIRM_MAX: Duration = Duration::from_secs(1);
/// How often the heads are asked whether another node writes an open volume in which nothing changes: each time that so many commits could have been,
pub(crate) const CONFIRM_COMMITS: u32 = 5;
/// and at least so often.
pub(crate) const CONFIRM_PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long the store is waited for when an open volume is described.
pub(crate) const INSPECT_MAX: Duration = Duration::from_secs(1);
/// After what time threads of the worker make room for others that are ready: the shortest that the kernel takes. Reading and sealing is much work on
/// many threads. With the kernel's own 3 ms a program that waits for an answer waits for the work of other volumes each time before it goes on.
pub(crate) const SLICE: Duration = Duration::from_micros(100);
/// Pause before the second attempt to open the store; doubled each time.
pub(crate) const STORE_PAUSE_FIRST: Duration = Duration::from_millis(50);
/// How long requests have to finish when the worker ends.
pub(crate) const END_MAX: Duration = Duration::from_secs(5);
