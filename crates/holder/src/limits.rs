//! Bounds of the holder's own, each with its reason.

use std::time::Duration;

/// Bytes of a pipe that are taken at once: E2B's chunk of output.
pub(crate) const PIPE_CHUNK_BYTES: u64 = 32 << 10;

/// Bytes of a terminal that are taken at once: E2B's chunk of terminal output.
pub(crate) const TERMINAL_CHUNK_BYTES: u64 = 16 << 10;

/// Most bytes of input in one request: what a pipe holds by default.
pub const INPUT_BYTES_MAX: usize = 64 << 10;

/// Largest message, in bytes: input or output with its head, below the kernel's default socket buffer (212,992).
pub(crate) const MESSAGE_BYTES_MAX: usize = 96 << 10;

/// Connections that wait to be accepted. A client beyond that tries again.
pub(crate) const CLIENTS_WAITING: i32 = 1_024;

/// How long output is still waited for after a command's end while a process that it left behind keeps the pipe open.
/// Long enough for last words, short enough for a client that started a service in the background.
pub(crate) const DRAIN_MAX: Duration = Duration::from_millis(200);

/// How much of that output is taken before the end is told: a process left behind may write for ever.
pub(crate) const DRAIN_BYTES_MAX: u64 = 4 << 20;

/// How long the parent of a command may take to reap it. After that the status counts as unknown.
pub(crate) const REAPED_MAX: Duration = Duration::from_secs(5);

/// Between two looks for the status of an ended command: the kernel also wakes the holder when the command is reaped.
pub(crate) const REAPED_LOOK: Duration = Duration::from_millis(2);

/// How long a holder without commands and clients stays.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(30);

/// How long an earlier family may take to give up its folder.
pub(crate) const LOCK_MAX: Duration = Duration::from_secs(5);

/// Pause before a spare that died at once is started again, at first and at most.
pub(crate) const RESPAWN_MIN: Duration = Duration::from_millis(5);
/// See [`RESPAWN_MIN`].
pub(crate) const RESPAWN_MAX: Duration = Duration::from_secs(1);

/// How long a client looks for a holder that is being replaced.
pub(crate) const REPLACED_MAX: Duration = Duration::from_secs(5);
