//! Points in time, and the clock that tells them.

use std::{
    fmt,
    ops::Add,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use chrono::{DateTime, SecondsFormat};

use crate::ControlError;

/// A point in time, in milliseconds since 1970. Its text is RFC 3339 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// A time of the database or a client. Times beyond the year 9999 become its end.
    pub fn from_ms(ms: u64) -> Self {
        const YEAR_10000_MS: u64 = 253_402_300_800_000;
        Self(ms.min(YEAR_10000_MS - 1))
    }

    /// Milliseconds since 1970.
    pub fn ms(self) -> u64 {
        self.0
    }

    /// Zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn sql(self) -> i64 {
        sql(self.0)
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self::from_ms(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = DateTime::from_timestamp_millis(sql(self.0)).unwrap_or_default();
        f.write_str(&time.to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

impl FromStr for Time {
    type Err = ControlError;

    /// Reads RFC 3339. Digits beyond milliseconds are dropped.
    fn from_str(text: &str) -> Result<Self, ControlError> {
        let ms = DateTime::parse_from_rfc3339(text).ok().and_then(|time| u64::try_from(time.timestamp_millis()).ok());
        let rule = "use RFC 3339, such as 2026-11-26T17:30:00Z, not before 1970";
        ms.map(Self::from_ms).ok_or_else(|| ControlError::invalid("the time", rule))
    }
}

/// SQL has no unsigned numbers.
pub(crate) fn sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn span_sql(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Tells the time.
pub trait Clock: std::fmt::Debug + Send + Sync {
    /// Now.
    fn now(&self) -> Time;
}

/// The clock of this machine. Servers that share a database need clocks that agree to a few seconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Time::from_ms(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A clock that stands until a test moves it.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Time) -> Self {
        Self(AtomicU64::new(now.0))
    }

    /// Moves it forward.
    pub fn advance(&self, span: Duration) {
        self.0.fetch_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_read_in_every_form_of_clients() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00.5Z", 951_825_600_500),
            ("2026-11-26T17:23:16.123456+00:00", 1_795_713_796_123),
            ("2026-11-26T19:23:16.123+02:00", 1_795_713_796_123),
        ] {
            assert_eq!(text.parse::<Time>().unwrap().ms(), ms, "{text}");
        }
        for bad in [
            "",
            "2026-02-30T00:00:00Z",
            "2026-11-26",
            "2026-11-26T17:23:16",
            "1969-12-31T23:59:59Z",
            "2026-11-26T17:23:16.Z",
        ] {
            assert!(bad.parse::<Time>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_time_is_read_back_as_it_was_written(ms in 0u64..253_402_300_800_000) {
            prop_assert_eq!(Time::from_ms(ms).to_string().parse::<Time>().unwrap().ms(), ms);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
            let _ = text.parse::<Time>();
        }
    }
}
