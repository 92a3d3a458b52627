//! Which entries of a log a request wants.

use api::e2b::{LogEntry, LogLevel};
use base::limits::{LOG_ENTRIES_MAX, LOG_SEARCH_BYTES_MAX};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::e2b::failed::{Failed, Result};

/// Where a list of entries goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[schema(as = LogsDirection)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    /// From the cursor on, the oldest first.
    #[default]
    Forward,
    /// Up to the cursor, the newest first.
    Backward,
}

/// Which entries.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Milliseconds since 1970. Entries of that instant are among them.
    pub(crate) cursor: Option<u64>,
    /// At most so many.
    #[param(minimum = 0, maximum = 1000)]
    pub(crate) limit: Option<usize>,
    /// From the cursor on, or back from it.
    pub(crate) direction: Direction,
    /// Those of this level, and of worse ones.
    pub(crate) level: Option<LogLevel>,
    /// Those whose message has this text.
    pub(crate) search: Option<String>,
}

impl Wanted {
    pub(crate) fn check(&self) -> Result<()> {
        if self.limit.is_some_and(|limit| limit > LOG_ENTRIES_MAX) {
            return Err(Failed::invalid(format!("limit: use 0 to {LOG_ENTRIES_MAX}")));
        }
        if self.search.as_ref().is_some_and(|search| search.len() > LOG_SEARCH_BYTES_MAX) {
            return Err(Failed::invalid(format!("search: use at most {LOG_SEARCH_BYTES_MAX} bytes")));
        }
        Ok(())
    }

    /// Those of all entries, which are in order of time and have it beside them.
    pub(crate) fn of(&self, mut all: Vec<(u64, LogEntry)>) -> Vec<LogEntry> {
        if self.direction == Direction::Backward {
            all.reverse();
        }
        let in_time = |at: u64| match (self.cursor, self.direction) {
            (Some(cursor), Direction::Forward) => at >= cursor,
            (Some(cursor), Direction::Backward) => at <= cursor,
            (None, _) => true,
        };
        let bad = |level: LogLevel| self.level.is_none_or(|least| level >= least);
        let said = |entry: &LogEntry| self.search.as_ref().is_none_or(|text| entry.message.contains(text.as_str()));
        let wanted = |(at, entry): &(u64, LogEntry)| in_time(*at) && bad(entry.level) && said(entry);
        let limit = self.limit.unwrap_or(LOG_ENTRIES_MAX);
        all.into_iter().filter(wanted).take(limit).map(|(_, entry)| entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Vec<(u64, LogEntry)> {
        let entry = |at: u64, level, message: &str| {
            let entry =
                LogEntry { timestamp: at.to_string(), message: message.to_owned(), level, fields: Default::default() };
            (at, entry)
        };
        vec![
            entry(1, LogLevel::Info, "sandbox created"),
            entry(2, LogLevel::Warn, "sandbox pause_refused"),
            entry(2, LogLevel::Info, "sandbox timeout_set"),
            entry(3, LogLevel::Info, "sandbox paused"),
        ]
    }

    fn found(wanted: &Wanted) -> Vec<String> {
        wanted.of(log()).into_iter().map(|entry| entry.timestamp).collect()
    }

    #[test]
    fn entries_are_chosen_by_time_direction_level_and_text() {
        let all = Wanted::default();
        assert_eq!(found(&all), ["1", "2", "2", "3"]);
        assert_eq!(found(&Wanted { cursor: Some(2), ..all.clone() }), ["2", "2", "3"]);
        let back = Wanted { cursor: Some(2), direction: Direction::Backward, ..all.clone() };
        assert_eq!(found(&back), ["2", "2", "1"]);
        assert_eq!(found(&Wanted { limit: Some(1), ..back }), ["2"]);
        assert_eq!(found(&Wanted { level: Some(LogLevel::Warn), ..all.clone() }), ["2"]);
        assert_eq!(found(&Wanted { search: Some("paused".to_owned()), ..all.clone() }), ["3"]);
        assert!(Wanted { limit: Some(LOG_ENTRIES_MAX + 1), ..all.clone() }.check().is_err());
        assert!(Wanted { search: Some("x".repeat(LOG_SEARCH_BYTES_MAX + 1)), ..all }.check().is_err());
    }
}
