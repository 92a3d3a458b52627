//! Bounds of what a registry may cost. Each holds for one pull, unless it says otherwise.

use std::time::Duration;

/// Manifests of a node that are asked for at a time. More wait.
pub(crate) const MANIFESTS_AT_ONCE: usize = 16;
/// Pulls of a node that download at a time. More wait.
pub(crate) const PULLS_MAX: usize = 4;
/// Blobs that are downloaded at a time.
pub(crate) const BLOBS_AT_ONCE: usize = 3;
/// Most bytes of all layers together, as they are stored.
pub(crate) const BLOBS_BYTES_MAX: u64 = 64 << 30;
/// Longest answer of a token service.
pub(crate) const TOKEN_BYTES_MAX: u64 = 256 << 10;
/// How much of an error's text is read.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 16 << 10;
/// Indexes that lead to each other.
pub(crate) const INDEXES_MAX: usize = 3;
/// Redirects of a request.
pub(crate) const REDIRECTS_MAX: usize = 5;

/// How long a connection may take to come about.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(15);
/// How long the head of an answer may take.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(60);
/// How long so many bytes may take, or what is left.
pub(crate) const STEP_MAX: Duration = Duration::from_secs(60);
/// See [`STEP_MAX`].
pub(crate) const STEP_BYTES: u64 = 256 << 10;
/// How long all may take: what is there by then is resumed by the next pull.
pub(crate) const PULL_MAX: Duration = Duration::from_secs(2 * 60 * 60);

/// How often a request is made that fails for a while only, without a byte of progress.
pub(crate) const ATTEMPTS_MAX: u32 = 5;
/// Pause before the second attempt. It doubles.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(250);
/// Longest pause, also of those that a registry asks for.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(15);

/// Downloads of a node that nothing works on, and that wait for a pull to resume them. The oldest go.
pub(crate) const WAITING_MAX: usize = 8;
/// How many bytes they have together.
pub(crate) const WAITING_BYTES_MAX: u64 = 32 << 30;
/// How long they wait.
pub(crate) const WAITING_TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Room on the disk that a download leaves free.
pub(crate) const ROOM_MIN: u64 = 1 << 30;
