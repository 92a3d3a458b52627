//! Whether a team may have more.

use base::{id::TeamId, limits::RETRY_AFTER};
use db::{Fields, failed};
use sqlx::{AnyConnection, AssertSqlSafe};

use crate::{ControlError, Inner, Noun, Quota, Resource, Size, Time};

/// Reads the quota of a team and locks the team until the transaction ends: what is counted then does not change before
/// it is acted on.
pub(crate) async fn lock_team(
    inner: &Inner,
    transaction: &mut AnyConnection,
    team: &TeamId,
) -> Result<Quota, ControlError> {
    let select = format!(
        "SELECT sandboxes_max, memory_mb_max, cpus_max, starts_max FROM teams WHERE id = $1{}",
        inner.db.for_update()
    );
    let select = sqlx::query(AssertSqlSafe(select)).bind(team.as_str());
    let row = select.fetch_optional(transaction).await.map_err(failed("read a team's quota"))?;
    let row = row.ok_or_else(|| ControlError::not_found(Noun::Team, team))?;
    Ok(Quota {
        sandboxes: row.count("sandboxes_max")?,
        memory_mb: row.count("memory_mb_max")?,
        cpus: row.count("cpus_max")?,
        starts: row.count("starts_max")?,
    })
}

/// How many rows of `table` are the team's.
pub(crate) async fn rows_of(
    transaction: &mut AnyConnection,
    table: &'static str,
    team: &TeamId,
) -> Result<u64, ControlError> {
    let select = format!("SELECT COUNT(*) AS used FROM {table} WHERE team = $1");
    let row = sqlx::query(AssertSqlSafe(select)).bind(team.as_str()).fetch_one(transaction).await;
    Ok(row.map_err(failed("count what a team has"))?.count("used")?)
}

/// Fails if one more would be too many.
pub(crate) fn check_kept(noun: Noun, limit: u64, used: u64) -> Result<(), ControlError> {
    check(Resource::Kept(noun), limit, used, 1)
}

fn check(resource: Resource, limit: u64, used: u64, asked: u64) -> Result<(), ControlError> {
    if used.saturating_add(asked) <= limit {
        return Ok(());
    }
    Err(ControlError::OverQuota { resource, limit, used, asked, retry_after: RETRY_AFTER })
}

/// Fails if the team may never run a sandbox of this size.
pub(crate) fn check_size(quota: &Quota, size: &Size) -> Result<(), ControlError> {
    check(Resource::MemoryMb, quota.memory_mb, 0, size.memory_mb)?;
    check(Resource::Cpus, quota.cpus, 0, size.cpus)
}

/// Fails unless the team may run one more sandbox of this size. The transaction has locked the team.
pub(crate) async fn check_room(
    transaction: &mut AnyConnection,
    team: &TeamId,
    quota: &Quota,
    size: &Size,
    now: Time,
) -> Result<(), ControlError> {
    // One statement, so one instant: a confirmed start goes from the one table to the other.
    let select = "SELECT CAST(SUM(used) AS BIGINT) AS used, CAST(SUM(cpus) AS BIGINT) AS cpus,
        CAST(SUM(memory_mb) AS BIGINT) AS memory_mb, CAST(SUM(starts) AS BIGINT) AS starts FROM (
            SELECT COUNT(*) AS used, COALESCE(SUM(cpus), 0) AS cpus, COALESCE(SUM(memory_mb), 0) AS memory_mb,
            COALESCE(SUM(CASE WHEN state = 'running' THEN 0 ELSE 1 END), 0) AS starts
            FROM sandboxes WHERE team = $1 AND (state = 'running' OR (doing = 'resuming' AND doer_until_ms > $2))
            UNION ALL
            SELECT COUNT(*) AS used, COALESCE(SUM(cpus), 0) AS cpus, COALESCE(SUM(memory_mb), 0) AS memory_mb,
            COUNT(*) AS starts FROM reservations WHERE team = $1 AND expires_ms > $2
        ) AS parts";
    let select = sqlx::query(select).bind(team.as_str()).bind(now.sql());
    let row = select.fetch_one(transaction).await.map_err(failed("count what a team uses"))?;
    let (cpus, memory_mb) = (row.count("cpus")?, row.count("memory_mb")?);
    let used = Quota { sandboxes: row.count("used")?, memory_mb, cpus, starts: row.count("starts")? };
    check(Resource::Starts, quota.starts, used.starts, 1)?;
    check(Resource::Sandboxes, quota.sandboxes, used.sandboxes, 1)?;
    check(Resource::MemoryMb, quota.memory_mb, used.memory_mb, size.memory_mb)?;
    check(Resource::Cpus, quota.cpus, used.cpus, size.cpus)
}
