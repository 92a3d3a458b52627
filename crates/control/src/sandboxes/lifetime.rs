//! When sandboxes end.
//!
//! Only a running sandbox has an end. A connect extends it and never shortens it. A request about the timeout sets it
//! exactly.

use std::time::Duration;

use base::id::{SandboxId, TeamId};
use db::{failed, retry};
use serde_json::Value;
use sqlx::AnyConnection;

use super::{Sandbox, Sandboxes, State, record, start::check_timeout};
use crate::{ControlError, Doing, EventKind, events, time::span_sql};

/// How a new end replaces the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Exactly,
    ExtendOnly,
}

impl Sandboxes<'_> {
    /// Lets a running sandbox live at least `timeout` from now. For a connect and for keep-alives.
    pub async fn extend(&self, team: &TeamId, id: &SandboxId, timeout: Duration) -> Result<Sandbox, ControlError> {
        self.set_end(team, id, timeout, How::ExtendOnly).await
    }

    /// Lets a running sandbox live exactly `timeout` from now. Zero ends it at once, as its end would.
    pub async fn set_timeout(&self, team: &TeamId, id: &SandboxId, timeout: Duration) -> Result<Sandbox, ControlError> {
        self.set_end(team, id, timeout, How::Exactly).await
    }

    async fn set_end(
        &self,
        team: &TeamId,
        id: &SandboxId,
        timeout: Duration,
        how: How,
    ) -> Result<Sandbox, ControlError> {
        check_timeout(timeout)?;
        let changed = retry(|| self.try_set_end(team, id, timeout, how)).await?;
        if how == How::Exactly {
            self.0.wake.notify_one();
        }
        Ok(changed)
    }

    async fn try_set_end(
        &self,
        team: &TeamId,
        id: &SandboxId,
        timeout: Duration,
        how: How,
    ) -> Result<Sandbox, ControlError> {
        let now = self.0.clock.now();
        let mut transaction = self.0.db.begin_relaxed().await?;
        let mut found = record::of_team(&mut transaction, team, id, (now, self.0.db.for_update())).await?;
        check_runs(&found)?;
        let end = now + timeout;
        if how == How::ExtendOnly && end <= found.end {
            return Ok(found);
        }
        found.end = end;
        found.spec.lifetime.timeout = timeout;
        found.refusals = 0;
        set(&mut transaction, &found).await?;
        if how == How::Exactly {
            events::add(&mut transaction, (team, id), now, EventKind::TimeoutSet, &end.to_string()).await?;
        }
        transaction.commit().await.map_err(failed("set the end of a sandbox"))?;
        Ok(found)
    }

    /// Replaces the network policy of a running sandbox, as the client wrote it.
    pub async fn set_network(
        &self,
        team: &TeamId,
        id: &SandboxId,
        network: Option<&Value>,
        allow_internet: bool,
    ) -> Result<(), ControlError> {
        let failed = || failed("note the network policy of a sandbox");
        let attempt = || async {
            let now = self.0.clock.now();
            let mut transaction = self.0.db.begin_relaxed().await?;
            let mut found = record::of_team(&mut transaction, team, id, (now, self.0.db.for_update())).await?;
            check_runs(&found)?;
            found.spec.network = network.cloned();
            record::check(&found.spec)?;
            let update = sqlx::query("UPDATE sandboxes SET network = $1, allow_internet = $2 WHERE id = $3");
            let update = update.bind(record::text(&network)?).bind(i64::from(allow_internet)).bind(id.as_str());
            update.execute(&mut *transaction).await.map_err(failed())?;
            Ok(transaction.commit().await.map_err(failed())?)
        };
        retry(attempt).await
    }
}

/// Fails unless the sandbox runs and will go on to.
fn check_runs(sandbox: &Sandbox) -> Result<(), ControlError> {
    let id = sandbox.id.clone();
    match (sandbox.doing, sandbox.state) {
        (Some(doing @ (Doing::Killing | Doing::Pausing | Doing::Resuming)), _) => Err(ControlError::Busy { id, doing }),
        (None, State::Paused(_)) => Err(ControlError::Paused { id }),
        (None, State::Running) => Ok(()),
    }
}

/// Writes the end of a sandbox that the transaction has locked. It is due then.
async fn set(transaction: &mut AnyConnection, sandbox: &Sandbox) -> Result<(), ControlError> {
    let update = "UPDATE sandboxes SET end_ms = $1, due_ms = $1, timeout_ms = $2, refusals = 0 WHERE id = $3";
    let update = sqlx::query(update).bind(sandbox.end.sql()).bind(span_sql(sandbox.spec.lifetime.timeout));
    let update = update.bind(sandbox.id.as_str()).execute(transaction).await;
    update.map_err(failed("set the end of a sandbox"))?;
    Ok(())
}
