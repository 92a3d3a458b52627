//! Changes of state, each claimed by one server.

use std::time::Duration;

use base::{
    id::{SandboxId, TeamId},
    limits::{CLAIM_MAX, PAUSE_RETRY},
};
use db::{failed, retry};
use sqlx::AnyConnection;

use super::{PauseMode, Sandbox, Sandboxes, State, forks, record, start::check_timeout};
use crate::{ControlError, Doing, EventKind, Inner, Noun, Time, events, quota, time::span_sql};

/// A claim on a sandbox. It is renewed while this value lives, and ends two minutes after it is dropped without an
/// answer.
#[derive(Debug)]
#[must_use = "say how it ended"]
pub struct Transition {
    sandbox: Sandbox,
    doing: Doing,
    inner: std::sync::Arc<Inner>,
}

impl Transition {
    /// The sandbox as it was when it was claimed.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }
}

impl Drop for Transition {
    fn drop(&mut self) {
        // A kill that took over a pause of the same server has the same sandbox.
        let mut held = self.inner.held();
        match held.get_mut(&self.sandbox.id) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(held.remove(&self.sandbox.id)),
        }
    }
}

/// What a server sees of a sandbox on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// It runs.
    Running,
    /// It is paused.
    Paused(PauseMode),
    /// There is none.
    Gone,
}

impl crate::Control {
    /// Claims a running sandbox to pause it. A conflict if it is paused already.
    pub async fn begin_pause(&self, team: &TeamId, id: &SandboxId) -> Result<Transition, ControlError> {
        self.begin(Some(team), id, Doing::Pausing).await
    }

    /// Claims a paused sandbox to resume it, if its team has room. A conflict if it runs: extend it then.
    pub async fn begin_resume(&self, team: &TeamId, id: &SandboxId) -> Result<Transition, ControlError> {
        self.begin(Some(team), id, Doing::Resuming).await
    }

    /// Claims a sandbox to kill it, whatever its state is, and whatever is done with it.
    pub async fn begin_kill(&self, team: &TeamId, id: &SandboxId) -> Result<Transition, ControlError> {
        self.begin(Some(team), id, Doing::Killing).await
    }

    async fn begin(&self, team: Option<&TeamId>, id: &SandboxId, doing: Doing) -> Result<Transition, ControlError> {
        let sandbox = retry(|| try_begin(&self.0, team, id, doing)).await?;
        Ok(Transition::of(&self.0, sandbox, doing))
    }

    /// Says that the claimed sandbox is paused now.
    pub async fn paused(
        &self,
        transition: Transition,
        mode: PauseMode,
        unresponsive: bool,
    ) -> Result<(), ControlError> {
        let set = format!(
            "state = 'paused', pause_mode = '{}', unresponsive = {}, refusals = 0",
            mode.as_str(),
            i64::from(unresponsive)
        );
        retry(|| finish(&transition, &set, (EventKind::Paused, mode.as_str()))).await
    }

    /// Says that the claimed sandbox runs now, for `timeout` from now. Returns it as it is.
    pub async fn resumed(&self, transition: Transition, timeout: Duration) -> Result<Sandbox, ControlError> {
        check_timeout(timeout)?;
        let end = self.0.clock.now() + timeout;
        let (end_ms, timeout_ms) = (end.sql(), span_sql(timeout));
        let set = format!(
            "state = 'running', pause_mode = '', unresponsive = 0, refusals = 0, end_ms = {end_ms}, due_ms = {end_ms},
            timeout_ms = {timeout_ms}"
        );
        retry(|| finish(&transition, &set, (EventKind::Resumed, ""))).await?;
        self.0.wake.notify_one();
        let mut sandbox = transition.sandbox.clone();
        (sandbox.state, sandbox.end, sandbox.refusals, sandbox.unresponsive) = (State::Running, end, 0, false);
        sandbox.server.clone_from(&transition.inner.server);
        sandbox.spec.lifetime.timeout = timeout;
        Ok(sandbox)
    }

    /// Says that the claimed sandbox is gone.
    pub async fn killed(&self, transition: Transition, reason: &str) -> Result<(), ControlError> {
        let (inner, sandbox) = (&self.0, &transition.sandbox);
        retry(|| remove(inner, sandbox, reason)).await
    }

    /// Leaves a kill that was begun to the server whose node has the sandbox. Its scheduler finishes the kill.
    pub async fn leave_kill(&self, transition: Transition) -> Result<(), ControlError> {
        retry(|| release(&transition, self.now())).await
    }

    /// Says that nothing has changed: the node refused. A kill stays begun: the scheduler tries again after a minute.
    pub async fn cancel(&self, transition: Transition) -> Result<(), ControlError> {
        retry(|| release(&transition, self.now() + PAUSE_RETRY)).await
    }

    /// Brings what is known of a sandbox in line with what this server's node has, for a server that starts. Says whether
    /// it changed. A sandbox that is there is this server's from then on.
    pub async fn observe(&self, id: &SandboxId, observed: Observed) -> Result<bool, ControlError> {
        retry(|| try_observe(&self.0, id, observed)).await
    }
}

impl Transition {
    pub(crate) fn of(inner: &std::sync::Arc<Inner>, sandbox: Sandbox, doing: Doing) -> Self {
        *inner.held().entry(sandbox.id.clone()).or_default() += 1;
        Self { sandbox, doing, inner: inner.clone() }
    }
}

impl Sandboxes<'_> {
    /// Ends the claims of an earlier process of this server.
    pub(crate) async fn release_own_claims(&self) -> Result<(), ControlError> {
        let failed = || failed("end old claims");
        let attempt = || async {
            // A kill that was begun is due at once.
            let updates = [
                "UPDATE sandboxes SET doer_until_ms = 0 WHERE doer = $1 AND doing = 'killing'",
                "UPDATE sandboxes SET doing = '', doer = '', doer_until_ms = 0 WHERE doer = $1 AND doing <> 'killing'",
            ];
            let mut transaction = self.0.db.begin().await?;
            for update in updates {
                let update = sqlx::query(update).bind(&*self.0.server);
                update.execute(&mut *transaction).await.map_err(failed())?;
            }
            Ok(transaction.commit().await.map_err(failed())?)
        };
        retry(attempt).await
    }
}

async fn try_begin(
    inner: &Inner,
    team: Option<&TeamId>,
    id: &SandboxId,
    doing: Doing,
) -> Result<Sandbox, ControlError> {
    let now = inner.clock.now();
    let mut transaction = inner.db.begin_relaxed().await?;
    let lock = inner.db.for_update();
    // Every transaction locks a team before a sandbox: no deadlock.
    let quota = match (doing, team) {
        (Doing::Resuming, Some(team)) => Some((team, quota::lock_team(inner, &mut transaction, team).await?)),
        _ => None,
    };
    let mut found = match team {
        Some(team) => record::of_team(&mut transaction, team, id, (now, lock)).await?,
        None => record::of_any(&mut transaction, id, (now, lock)).await?,
    };
    check(&found, doing)?;
    if doing == Doing::Pausing && !found.is_of(&inner.server) {
        return Err(ControlError::Elsewhere { id: id.clone(), server: found.server });
    }
    if let Some((team, quota)) = quota {
        quota::check_room(&mut transaction, team, &quota, &found.spec.size, now).await?;
    }
    claim(inner, &mut transaction, id, doing, now).await?;
    transaction.commit().await.map_err(failed("claim a sandbox"))?;
    found.doing = Some(doing);
    Ok(found)
}

/// Whether a sandbox may be claimed for this.
fn check(sandbox: &Sandbox, wanted: Doing) -> Result<(), ControlError> {
    let id = sandbox.id.clone();
    match (wanted, sandbox.doing, sandbox.state) {
        (Doing::Killing, _, _) => Ok(()),
        (Doing::Pausing | Doing::Resuming, Some(doing), _) => Err(ControlError::Busy { id, doing }),
        (Doing::Pausing, None, State::Running) | (Doing::Resuming, None, State::Paused(_)) => Ok(()),
        (Doing::Pausing, None, State::Paused(_)) => Err(ControlError::Paused { id }),
        (Doing::Resuming, None, State::Running) => Err(ControlError::Running { id }),
    }
}

/// Writes a claim on a sandbox that the transaction has locked.
pub(crate) async fn claim(
    inner: &Inner,
    transaction: &mut AnyConnection,
    id: &SandboxId,
    doing: Doing,
    now: Time,
) -> Result<(), ControlError> {
    let update = "UPDATE sandboxes SET doing = $1, doer = $2, doer_until_ms = $3 WHERE id = $4";
    let update = sqlx::query(update).bind(doing.as_str()).bind(&*inner.server).bind((now + CLAIM_MAX).sql());
    update.bind(id.as_str()).execute(transaction).await.map_err(failed("claim a sandbox"))?;
    Ok(())
}

/// Ends a claim with a change of the sandbox. Fails if another server has taken it over, or killed it.
async fn finish(transition: &Transition, set: &str, event: (EventKind, &str)) -> Result<(), ControlError> {
    let (inner, sandbox) = (&transition.inner, &transition.sandbox);
    let failed = || failed("change the state of a sandbox");
    // What is paused outlives a power cut, and so must the news of it.
    let mut transaction = inner.db.begin().await?;
    let update = format!(
        "UPDATE sandboxes SET doing = '', doer = '', doer_until_ms = 0, server = $3, {set}
        WHERE id = $1 AND doing = $2 AND doer = $3"
    );
    let update = sqlx::query(sqlx::AssertSqlSafe(update)).bind(sandbox.id.as_str());
    let update = update.bind(transition.doing.as_str()).bind(&*inner.server);
    if update.execute(&mut *transaction).await.map_err(failed())?.rows_affected() == 0 {
        return Err(ControlError::not_found(Noun::Sandbox, &sandbox.id));
    }
    let owner = (&sandbox.team, &sandbox.id);
    events::add(&mut transaction, owner, inner.clock.now(), event.0, event.1).await?;
    Ok(transaction.commit().await.map_err(failed())?)
}

async fn remove(inner: &Inner, sandbox: &Sandbox, reason: &str) -> Result<(), ControlError> {
    let mut transaction = inner.db.begin().await?;
    let lock = (inner.clock.now(), inner.db.for_update());
    match record::of_any(&mut transaction, &sandbox.id, lock).await {
        Err(ControlError::NotFound { .. }) => return Ok(()),
        found => found?,
    };
    record::remove(&mut transaction, &sandbox.id).await?;
    forks::forget(&mut transaction, &sandbox.id, inner.db.for_update()).await?;
    let owner = (&sandbox.team, &sandbox.id);
    events::add(&mut transaction, owner, inner.clock.now(), EventKind::Killed, reason).await?;
    Ok(transaction.commit().await.map_err(failed("remove a sandbox"))?)
}

/// Ends a claim without a change. A kill is tried again at `retry_at`.
async fn release(transition: &Transition, retry_at: Time) -> Result<(), ControlError> {
    let inner = &transition.inner;
    let mut transaction = inner.db.begin_relaxed().await?;
    unclaim(&mut transaction, transition, "refusals = refusals", retry_at).await?;
    Ok(transaction.commit().await.map_err(failed("end a claim"))?)
}

/// Ends a claim of this server with a change of the sandbox. Says whether the server still had it. A kill stays begun
/// until
/// `retry_at`, and is then finished by any server.
async fn unclaim(
    transaction: &mut AnyConnection,
    transition: &Transition,
    set: &str,
    retry_at: Time,
) -> Result<bool, ControlError> {
    let (doing, until) = match transition.doing {
        Doing::Killing => (Doing::Killing.as_str(), retry_at.sql()),
        Doing::Pausing | Doing::Resuming => ("", 0),
    };
    let update = format!(
        "UPDATE sandboxes SET doing = $1, doer = '', doer_until_ms = $2, {set}
        WHERE id = $3 AND doing = $4 AND doer = $5"
    );
    let update = sqlx::query(sqlx::AssertSqlSafe(update)).bind(doing).bind(until);
    let update = update.bind(transition.sandbox.id.as_str()).bind(transition.doing.as_str());
    let update = update.bind(&*transition.inner.server).execute(transaction).await;
    Ok(update.map_err(failed("end a claim"))?.rows_affected() == 1)
}

/// Ends the claim of a transition that did not succeed, and says when the scheduler tries again.
pub(crate) async fn refuse(
    transition: &Transition,
    retry_at: Time,
    event: Option<(EventKind, &str)>,
) -> Result<(), ControlError> {
    let (inner, sandbox) = (&transition.inner, &transition.sandbox);
    let mut transaction = inner.db.begin_relaxed().await?;
    let set = format!("refusals = refusals + 1, due_ms = {}", retry_at.sql());
    let mine = unclaim(&mut transaction, transition, &set, retry_at).await?;
    if let (true, Some((kind, detail))) = (mine, event) {
        let owner = (&sandbox.team, &sandbox.id);
        events::add(&mut transaction, owner, inner.clock.now(), kind, detail).await?;
    }
    Ok(transaction.commit().await.map_err(failed("note a refusal"))?)
}

async fn try_observe(inner: &Inner, id: &SandboxId, observed: Observed) -> Result<bool, ControlError> {
    let failed = || failed("bring a sandbox in line with its node");
    let now = inner.clock.now();
    let mut transaction = inner.db.begin().await?;
    let found = record::of_any(&mut transaction, id, (now, inner.db.for_update())).await?;
    let owner = (&found.team, id);
    match (observed, found.state) {
        (Observed::Running, State::Running) if found.server == inner.server => return Ok(false),
        (Observed::Paused(mode), State::Paused(known)) if mode == known => return Ok(false),
        (Observed::Running, State::Running) => adopt(inner, &mut transaction, id).await?,
        (Observed::Gone, _) => {
            record::remove(&mut transaction, id).await?;
            forks::forget(&mut transaction, id, inner.db.for_update()).await?;
            events::add(&mut transaction, owner, now, EventKind::Killed, "it is not on its node").await?;
        }
        (Observed::Running | Observed::Paused(_), _) => {
            let (state, mode, kind) = match observed {
                Observed::Paused(mode) => ("paused", mode.as_str(), EventKind::Paused),
                Observed::Running | Observed::Gone => ("running", "", EventKind::Resumed),
            };
            // One that was resumed gets the time that it was to have: its end from before is long over.
            let update = "UPDATE sandboxes SET state = $1, pause_mode = $2, doing = '', doer = '', doer_until_ms = 0,
                end_ms = $3, due_ms = $3, server = $5 WHERE id = $4 AND doing <> 'killing'";
            let end = now + found.spec.lifetime.timeout;
            let update = sqlx::query(update).bind(state).bind(mode).bind(end.sql()).bind(id.as_str());
            let update = update.bind(&*inner.server);
            update.execute(&mut *transaction).await.map_err(failed())?;
            events::add(&mut transaction, owner, now, kind, "seen on its node").await?;
        }
    }
    transaction.commit().await.map_err(failed())?;
    inner.wake.notify_one();
    Ok(true)
}

/// Notes that a sandbox is on this server's node.
async fn adopt(inner: &Inner, transaction: &mut AnyConnection, id: &SandboxId) -> Result<(), ControlError> {
    let update = sqlx::query("UPDATE sandboxes SET server = $1 WHERE id = $2").bind(&*inner.server).bind(id.as_str());
    update.execute(transaction).await.map_err(failed("note where a sandbox is"))?;
    Ok(())
}
