//! What happened to a sandbox, for its owner. The newest events are kept, also when the sandbox has ended.

use base::{
    id::{SandboxId, TeamId},
    limits::{EVENT_DETAIL_BYTES_MAX, EVENTS_MAX},
};
use db::{DbError, Fields, failed};
use sqlx::{AnyConnection, any::AnyRow};

use crate::{Sandboxes, Time, time::sql};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It was made.
    Created,
    /// Its end was moved.
    TimeoutSet,
    /// It was paused.
    Paused,
    /// It was resumed.
    Resumed,
    /// It could not be paused at its end. It runs on, and another attempt follows.
    PauseRefused,
    /// It could not be killed at its end. Another attempt follows.
    KillRefused,
    /// It was killed.
    Killed,
}

impl EventKind {
    const ALL: [Self; 7] = [
        Self::Created,
        Self::TimeoutSet,
        Self::Paused,
        Self::Resumed,
        Self::PauseRefused,
        Self::KillRefused,
        Self::Killed,
    ];

    /// The word in the database and for clients.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::TimeoutSet => "timeout_set",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::PauseRefused => "pause_refused",
            Self::KillRefused => "kill_refused",
            Self::Killed => "killed",
        }
    }
}

/// An event of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its number. The events of one sandbox are counted from 1.
    pub sequence: u64,
    /// When it happened.
    pub at: Time,
    /// What happened.
    pub kind: EventKind,
    /// Why, or an empty text.
    pub detail: String,
}

impl Sandboxes<'_> {
    /// The events of a sandbox after the one numbered `after`, the oldest first. Empty for a sandbox that the team
    /// never had.
    pub async fn events(&self, team: &TeamId, id: &SandboxId, after: u64) -> Result<Vec<Event>, crate::ControlError> {
        let select = "SELECT sequence, at_ms, kind, detail FROM sandbox_events
            WHERE sandbox = $1 AND team = $2 AND sequence > $3 ORDER BY sequence";
        let select = sqlx::query(select).bind(id.as_str()).bind(team.as_str()).bind(sql(after));
        let rows = select.fetch_all(self.0.db.pool()).await.map_err(failed("read events"))?;
        Ok(rows.iter().map(event).collect::<Result<_, _>>()?)
    }
}

fn event(row: &AnyRow) -> Result<Event, DbError> {
    let kind = row.text("kind")?;
    let known = EventKind::ALL.into_iter().find(|known| known.as_str() == kind);
    Ok(Event {
        sequence: row.count("sequence")?,
        at: Time::from_ms(row.count("at_ms")?),
        kind: known.ok_or(DbError::Damaged { expected: "kind of event", value: kind })?,
        detail: row.text("detail")?,
    })
}

/// Adds an event. The transaction has locked the sandbox, or is about to make it.
pub(crate) async fn add(
    transaction: &mut AnyConnection,
    (team, id): (&TeamId, &SandboxId),
    at: Time,
    kind: EventKind,
    detail: &str,
) -> Result<(), DbError> {
    let failed = || failed("add an event");
    // PostgreSQL takes no zero bytes: they are escaped.
    let detail: String = base::text::one_line(detail).chars().take(EVENT_DETAIL_BYTES_MAX / 4).collect();
    let insert = "INSERT INTO sandbox_events (sandbox, sequence, team, at_ms, kind, detail)
        SELECT $1, COALESCE(MAX(sequence), 0) + 1, $2, $3, $4, $5 FROM sandbox_events WHERE sandbox = $6
        RETURNING sequence";
    let insert = sqlx::query(insert).bind(id.as_str()).bind(team.as_str()).bind(at.sql()).bind(kind.as_str());
    let row = insert.bind(detail).bind(id.as_str()).fetch_one(&mut *transaction).await.map_err(failed())?;
    let oldest = row.number("sequence")? - sql(EVENTS_MAX);
    let delete = sqlx::query("DELETE FROM sandbox_events WHERE sandbox = $1 AND sequence <= $2").bind(id.as_str());
    delete.bind(oldest).execute(transaction).await.map_err(failed())?;
    Ok(())
}
