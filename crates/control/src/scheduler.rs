//! Ends and pauses sandboxes in time.
//!
//! One task per server. It reads what is due on its own node, decides with [`plan::plan`], claims each sandbox by a
//! compare-and-swap, and does the work through a [`Runtime`]. The database holds every end, so what fell due while no
//! server ran is done when one starts.
//!
//! A pause that is refused leaves the sandbox running. It counts against the quota, an event tells of it, and the next
//! attempt follows a minute later. The same holds for a kill that fails.

mod housekeeping;
mod plan;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use base::{
    id::SandboxId,
    limits::{
        CLAIM_MAX, CLAIM_RENEWAL, PAUSE_RETRY, SCHEDULE_BATCH_MAX, SCHEDULE_POLL, SCHEDULED_KILLS_MAX,
        SCHEDULED_PAUSES_MAX,
    },
};
use db::{failed, retry};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
    time::Instant,
};

use self::plan::{Action, Due, plan};
use crate::{
    Control, ControlError, Doing, EventKind, Inner, OnTimeout, PauseMode, Time, Transition, sandboxes, servers,
};

/// Why a node did not do what the scheduler wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// For the owner of the sandbox.
    pub reason: String,
}

/// What a node does for the scheduler. Each call may be repeated after it succeeded: then it does nothing and succeeds.
#[async_trait]
pub trait Runtime: std::fmt::Debug + Send + Sync {
    /// Ends the sandbox, whatever its state is. Succeeds if there is none.
    async fn kill(&self, id: &SandboxId) -> Result<(), Refused>;

    /// Pauses the sandbox. Succeeds if it is paused. A refusal leaves it running.
    async fn pause(&self, id: &SandboxId, mode: PauseMode) -> Result<(), Refused>;
}

/// The scheduler of one server.
#[derive(Debug)]
pub struct Scheduler {
    inner: Arc<Inner>,
    runtime: Arc<dyn Runtime>,
    kills: Arc<Semaphore>,
    pauses: Arc<Semaphore>,
}

impl Scheduler {
    pub(crate) fn new(inner: Arc<Inner>, runtime: Arc<dyn Runtime>) -> Self {
        let kills = Arc::new(Semaphore::new(SCHEDULED_KILLS_MAX));
        Self { inner, runtime, kills, pauses: Arc::new(Semaphore::new(SCHEDULED_PAUSES_MAX)) }
    }

    /// Works until the future is dropped. What it has begun then goes on.
    pub async fn run(&self) {
        let mut renewed = Instant::now();
        loop {
            let woken = self.inner.wake.notified();
            let pause = match self.look().await {
                Ok((_, pause)) => pause,
                Err(error) => {
                    tracing::warn!(error = base::error::chain(&error), "the scheduler cannot read the database");
                    SCHEDULE_POLL
                }
            };
            if renewed.elapsed() >= CLAIM_RENEWAL {
                renewed = Instant::now();
                self.keep().await;
            }
            let _ = tokio::time::timeout(pause, woken).await;
        }
    }

    /// Begins everything that is due now. Returns the work, and how long until the next look is needed.
    pub async fn look(&self) -> Result<(Vec<JoinHandle<()>>, Duration), ControlError> {
        let (now, rows) = (self.inner.clock.now(), self.due().await?);
        let full = rows.len() >= SCHEDULE_BATCH_MAX;
        let (actions, next) = plan(now, &rows);
        let mut work = Vec::new();
        for (id, action) in actions {
            let permits = match action {
                Action::Kill => &self.kills,
                Action::Pause(_) => &self.pauses,
            };
            // With no permit left, the end of other work wakes the scheduler.
            let Ok(permit) = permits.clone().try_acquire_owned() else { continue };
            let claimed = retry(|| claim(&self.inner, &id, action, now)).await?;
            if let Some(transition) = claimed {
                work.push(self.begin(transition, action, permit));
            }
        }
        let pause = match next {
            _ if full && !work.is_empty() => Duration::ZERO,
            Some(at) => at.since(now).min(SCHEDULE_POLL),
            None => SCHEDULE_POLL,
        };
        Ok((work, pause))
    }

    fn begin(&self, transition: Transition, action: Action, permit: OwnedSemaphorePermit) -> JoinHandle<()> {
        let (inner, runtime) = (self.inner.clone(), self.runtime.clone());
        tokio::spawn(async move {
            let id = transition.sandbox().id.clone();
            if let Err(error) = perform(Control(inner.clone()), &*runtime, transition, action).await {
                let error = base::error::chain(&error);
                tracing::warn!(sandbox = %id, error, "cannot note what became of a sandbox at its end");
            }
            drop(permit);
            inner.wake.notify_one();
        })
    }

    /// What is due, and what will be soon.
    async fn due(&self) -> Result<Vec<Due>, ControlError> {
        // Two statements: each has an index of its own.
        let ends = "SELECT id, on_timeout, due_ms, doing, doer_until_ms FROM sandboxes WHERE state = 'running'
            AND due_ms <= $1 AND server = $3 ORDER BY due_ms LIMIT $2";
        // Any server can remove what is paused.
        let kills = "SELECT id, on_timeout, due_ms, doing, doer_until_ms FROM sandboxes WHERE doing = 'killing'
            AND doer_until_ms <= $1 AND (server = $3 OR state = 'paused') ORDER BY doer_until_ms LIMIT $2";
        let horizon = self.inner.clock.now() + SCHEDULE_POLL;
        let mut found = Vec::new();
        for select in [kills, ends] {
            let select = sqlx::query(select).bind(horizon.sql()).bind(SCHEDULE_BATCH_MAX as i64);
            let rows = select
                .bind(&*self.inner.server)
                .fetch_all(self.inner.db.pool())
                .await
                .map_err(failed("look for what is due"))?;
            for row in &rows {
                found.push(plan::due(row)?);
            }
        }
        Ok(found)
    }

    /// Renews this server's claims, says that it runs, and forgets what is old.
    async fn keep(&self) {
        let results =
            [self.renew().await, servers::appear(&self.inner).await, housekeeping::forget_old(&self.inner).await];
        for result in results {
            if let Err(error) = result {
                tracing::warn!(error = base::error::chain(&error), "cannot keep the server's database in order");
            }
        }
    }

    /// Prolongs the claims that this server works on. [`Scheduler::run`] does it every half minute.
    pub async fn renew(&self) -> Result<(), ControlError> {
        let failed = || failed("renew a claim");
        let held: Vec<SandboxId> = self.inner.held().keys().cloned().collect();
        let until = (self.inner.clock.now() + CLAIM_MAX).sql();
        let attempt = || async {
            let mut transaction = self.inner.db.begin_relaxed().await?;
            for id in &held {
                let update = "UPDATE sandboxes SET doer_until_ms = $1 WHERE id = $2 AND doer = $3 AND doing <> ''";
                let update = sqlx::query(update).bind(until).bind(id.as_str()).bind(&*self.inner.server);
                update.execute(&mut *transaction).await.map_err(failed())?;
            }
            Ok(transaction.commit().await.map_err(failed())?)
        };
        if held.is_empty() { Ok(()) } else { retry(attempt).await }
    }
}

/// Claims what is due, unless that has changed since it was read: another server has it, or its end was moved.
async fn claim(
    inner: &Arc<Inner>,
    id: &SandboxId,
    action: Action,
    now: Time,
) -> Result<Option<Transition>, ControlError> {
    let doing = match action {
        Action::Kill => Doing::Killing,
        Action::Pause(_) => Doing::Pausing,
    };
    let mut transaction = inner.db.begin_relaxed().await?;
    let select = format!(
        "SELECT id, on_timeout, due_ms, doing, doer_until_ms FROM sandboxes
        WHERE id = $1 AND (state = 'running' OR doing = 'killing'){}",
        inner.db.for_update()
    );
    let select = sqlx::query(sqlx::AssertSqlSafe(select)).bind(id.as_str());
    let row = select.fetch_optional(&mut *transaction).await.map_err(failed("claim what is due"))?;
    let Some(row) = row else { return Ok(None) };
    if plan(now, &[plan::due(&row)?]).0 != [(id.clone(), action)] {
        return Ok(None);
    }
    sandboxes::claim(inner, &mut transaction, id, doing, now).await?;
    let sandbox = sandboxes::of_any(&mut transaction, id, now).await?;
    transaction.commit().await.map_err(failed("claim what is due"))?;
    Ok(Some(Transition::of(inner, sandbox, doing)))
}

/// Does the work that was claimed, and writes down what became of it.
async fn perform(
    control: Control,
    runtime: &dyn Runtime,
    transition: Transition,
    action: Action,
) -> Result<(), ControlError> {
    let id = transition.sandbox().id.clone();
    match action {
        Action::Kill => match runtime.kill(&id).await {
            Ok(()) => control.killed(transition, "its time was over").await,
            Err(refused) => refuse(&control, &transition, EventKind::KillRefused, refused).await,
        },
        Action::Pause(mode) => match runtime.pause(&id, mode).await {
            Ok(()) => control.paused(transition, mode, false).await,
            Err(refused) => refuse(&control, &transition, EventKind::PauseRefused, refused).await,
        },
    }
}

/// Notes a refusal. Of many in a row, those numbered 1, 2, 4, 8 ... are events: there is room for other events beside
/// them.
async fn refuse(
    control: &Control,
    transition: &Transition,
    kind: EventKind,
    refused: Refused,
) -> Result<(), ControlError> {
    let count = transition.sandbox().refusals + 1;
    let told = count.is_power_of_two().then_some((kind, &*refused.reason));
    let retry_at = control.now() + PAUSE_RETRY;
    retry(|| sandboxes::refuse(transition, retry_at, told)).await
}

impl OnTimeout {
    fn action(self) -> Action {
        match self {
            Self::Kill => Action::Kill,
            Self::Pause(mode) => Action::Pause(mode),
        }
    }
}
