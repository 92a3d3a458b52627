//! Timers that wait for a time of day. In a copy they expire at that time too, or at once if it has passed. All other timers go on with
//! the time that remained.

use serde::{Deserialize, Serialize};

/// A timer that waits for a time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WallTimer {
    /// Its first descriptor, or its number.
    pub(crate) which: i32,
    /// Seconds and nanoseconds since 1970; both 0: it is not armed.
    pub(crate) due: (u64, u64),
    /// Whether its reader is told when somebody sets the clock (`TFD_TIMER_CANCEL_ON_SET`).
    pub(crate) cancels: bool,
}

/// All of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WallTimers {
    pub(crate) descriptors: Vec<WallTimer>,
    pub(crate) posix: Vec<WallTimer>,
}

/// The one that is called `which`.
pub(crate) fn wall_timer(timers: &[WallTimer], which: i32) -> Option<&WallTimer> {
    timers.iter().find(|timer| timer.which == which)
}
