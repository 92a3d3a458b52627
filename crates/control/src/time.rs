//! Points in time, and the clock that tells them.

use std::{
    fmt,
    ops::Add,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use crate::ControlError;

const DAY_MS: i64 = 86_400_000;

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
        let (days, ms) = (sql(self.0) / DAY_MS, self.0 % DAY_MS as u64);
        let (year, month, day) = date(days);
        let (seconds, ms) = (ms / 1000, ms % 1000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{ms:03}Z")
    }
}

impl FromStr for Time {
    type Err = ControlError;

    /// Reads RFC 3339. Digits beyond milliseconds are dropped.
    fn from_str(text: &str) -> Result<Self, ControlError> {
        let rule = "use RFC 3339, such as 2026-11-26T17:30:00Z, not before 1970";
        parse(text).ok_or_else(|| ControlError::invalid("the time", rule))
    }
}

fn parse(text: &str) -> Option<Time> {
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<i64>().ok())?
    };
    let marks = |at: usize, of: &[u8]| text.as_bytes().get(at).is_some_and(|byte| of.contains(byte));
    if !(marks(4, b"-") && marks(7, b"-") && marks(10, b"Tt ") && marks(13, b":") && marks(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let days = days(year, month, day);
    if date(days) != (year, month, day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let rest = text.get(19..)?;
    let digits = rest.strip_prefix('.').map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    let (fraction, zone) = match rest.starts_with('.') {
        true if digits == 0 => return None,
        true => (format!("{:0<3.3}", &rest[1..=digits]).parse::<i64>().ok()?, &rest[1 + digits..]),
        false => (0, rest),
    };
    let ms = days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + fraction - offset(zone)? * 60_000;
    u64::try_from(ms).ok().map(Time::from_ms)
}

/// Minutes east of UTC.
fn offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = match zone.bytes().next()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let two = |text: &str, max: i64| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|&number: &i64| digits && number <= max)
    };
    Some(sign * (two(hours, 23)? * 60 + two(minutes, 59)?))
}

/// Year, month and day of a day since 1970. Years are counted from March, so that the leap day is the last of a year,
/// and in eras of 400 years, which all have the same length.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The inverse of [`date`].
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let march_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
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
