//! Timers of a program. A timer that waits for a time of day expires in a copy at that time too, or at once if it has passed. All other
//! timers go on with the time that remained.

use serde::{Deserialize, Serialize};

/// A timer's remaining time and interval: seconds and nanoseconds of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TimerValue {
    pub(crate) interval: (u64, u64),
    pub(crate) remaining: (u64, u64),
}

/// A POSIX timer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PosixTimer {
    pub(crate) id: i32,
    pub(crate) clock: i32,
    pub(crate) signal: i32,
    pub(crate) sigev_value: u64,
    pub(crate) notify: i32,
    pub(crate) notify_tid: i32,
    pub(crate) value: TimerValue,
}

/// A timer that waits for a time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WallTimer {
    /// Its first descriptor, or its number.
    pub(crate) which: i32,
    /// Seconds and nanoseconds since 1970; both 0: it is not armed.
    pub(crate) due: (u64, u64),
    /// Whether its reader is told when the clock is set (`TFD_TIMER_CANCEL_ON_SET`).
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
