//! Every bound of this crate, each with its reason.

use std::time::Duration;

pub(crate) use base::limits::MESSAGE_BYTES_MAX;

/// Longest name of a holder: a path.
pub const HOLDER_BYTES_MAX: usize = 4096;

/// Most holders of one superblock: with names of usual length they fit into one message.
pub const HOLDERS_MAX: usize = 1024;

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
