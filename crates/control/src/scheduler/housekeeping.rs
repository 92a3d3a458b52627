//! Forgets what is old.

use base::limits::{EVENTS_KEPT, IDEMPOTENCY_KEPT, IDEMPOTENCY_KEYS_MAX, RESERVATION_KEPT};
use db::{Fields, failed, retry};

use crate::{
    ControlError, Inner, Time,
    time::{span_sql, sql},
};

/// Removes idempotency keys, events and reservations whose time is over, and the oldest keys of teams that have too
/// many.
pub(super) async fn forget_old(inner: &Inner) -> Result<(), ControlError> {
    let now = inner.clock.now();
    let (crowded, failed) = (crowded(inner).await?, || failed("forget what is old"));
    let attempt = || async {
        let mut transaction = inner.db.begin_relaxed().await?;
        for (delete, before) in [
            ("DELETE FROM idempotency_keys WHERE created_ms <= $1", before(now, span_sql(IDEMPOTENCY_KEPT))),
            ("DELETE FROM sandbox_events WHERE at_ms <= $1", before(now, span_sql(EVENTS_KEPT))),
            ("DELETE FROM reservations WHERE expires_ms <= $1", before(now, span_sql(RESERVATION_KEPT))),
        ] {
            sqlx::query(delete).bind(before).execute(&mut *transaction).await.map_err(failed())?;
        }
        for (team, surplus) in &crowded {
            let delete = "DELETE FROM idempotency_keys WHERE team = $1 AND name IN (SELECT name FROM idempotency_keys
                WHERE team = $2 ORDER BY created_ms LIMIT $3)";
            let delete = sqlx::query(delete).bind(&**team).bind(&**team).bind(sql(*surplus));
            delete.execute(&mut *transaction).await.map_err(failed())?;
        }
        Ok(transaction.commit().await.map_err(failed())?)
    };
    retry(attempt).await
}

fn before(now: Time, span_ms: i64) -> i64 {
    now.sql() - span_ms
}

/// Teams that have too many idempotency keys, and how many too many.
async fn crowded(inner: &Inner) -> Result<Vec<(String, u64)>, ControlError> {
    let select = "SELECT team, COUNT(*) AS used FROM idempotency_keys GROUP BY team HAVING COUNT(*) > $1";
    let select = sqlx::query(select).bind(sql(IDEMPOTENCY_KEYS_MAX));
    let rows = select.fetch_all(inner.db.pool()).await.map_err(failed("count idempotency keys"))?;
    let one = |row| -> Result<_, ControlError> {
        let row: &sqlx::any::AnyRow = row;
        Ok((row.text("team")?, row.count("used")?.saturating_sub(IDEMPOTENCY_KEYS_MAX)))
    };
    rows.iter().map(one).collect()
}
