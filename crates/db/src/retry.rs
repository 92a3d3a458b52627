//! Transactions that lose against others are repeated.

use std::time::Duration;

use crate::{DbError, limits};

/// Errors that may be gone when the same transaction runs again.
pub trait Transient {
    /// Whether the transaction changed nothing and lost only because of another one.
    fn is_transient(&self) -> bool;
}

impl Transient for DbError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Database { source, .. } => is_conflict(source),
            Self::Url
            | Self::Path { .. }
            | Self::NewerSchema { .. }
            | Self::OtherSchema { .. }
            | Self::Damaged { .. } => false,
        }
    }
}

/// Runs `attempt`, which is one whole transaction, until it succeeds or fails for a reason of its own.
pub async fn retry<T, E, F, Fut>(attempt: F) -> Result<T, E>
where
    E: Transient,
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let mut pause = Duration::from_millis(1);
    for _ in 1..limits::TRANSACTION_TRIES {
        match attempt().await {
            Err(error) if error.is_transient() => {}
            other => return other,
        }
        // Rivals must not meet again: each waits a time of its own.
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        pause = limits::RETRY_PAUSE_MAX.min(pause * 2);
    }
    attempt().await
}

/// PostgreSQL's serialisation failure and deadlock, SQLite's busy and locked.
fn is_conflict(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
    matches!(code.as_deref(), Some("40001" | "40P01")) || is_busy(error)
}

pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
    // SQLITE_BUSY, SQLITE_LOCKED and their extended codes: the primary code is the low byte. PostgreSQL's codes have
    // five characters.
    let code = code.filter(|code| code.len() < 5).and_then(|code| code.parse::<u32>().ok());
    code.is_some_and(|code| matches!(code & 0xff, 5 | 6))
}
