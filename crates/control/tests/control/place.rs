//! A new database for one test, removed with it, and what most tests make first.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use base::id::{BuildId, SandboxId, TeamId, TemplateId};
use control::{
    Control, ControlError, IdempotencyKey, Lifetime, ManualClock, NewSandbox, OnTimeout, PauseMode, Quota, Refused,
    Reserved, Runtime, Sandbox, Scope, Size, Time,
};

use sqlx::Connection;

use crate::postgres::Postgres;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

pub(crate) struct Place {
    url: String,
    pub(crate) clock: Arc<ManualClock>,
    _directory: Option<tempfile::TempDir>,
    _server: Option<Arc<Postgres>>,
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        let directory = tempfile::Builder::new().prefix("pando-control").tempdir().unwrap();
        let url = format!("sqlite://{}?mode=rwc", directory.path().join("control.db").display());
        Self { url, clock: clock(), _directory: Some(directory), _server: None }
    }

    pub(crate) async fn postgres() -> Self {
        let server = Postgres::shared();
        let url = server.new_database().await;
        Self { url, clock: clock(), _directory: None, _server: Some(server) }
    }

    /// A connection without the control plane.
    pub(crate) async fn connect(&self) -> sqlx::AnyConnection {
        sqlx::AnyConnection::connect(&self.url).await.unwrap()
    }

    /// Connections of their own, as another server, or the same one started again, has them.
    pub(crate) async fn open(&self, server: &str) -> Control {
        Control::open(&self.url, server, self.clock.clone()).await.unwrap()
    }
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Time::from_ms(1_795_713_796_123)))
}

pub(crate) async fn team(control: &Control, slug: &str) -> TeamId {
    control.teams().create(&slug.parse().unwrap(), slug, Quota::default()).await.unwrap().id
}

pub(crate) fn scopes(scope: Scope) -> BTreeSet<Scope> {
    [scope].into()
}

/// A sandbox that is killed after five minutes.
pub(crate) fn spec() -> NewSandbox {
    NewSandbox {
        template: TemplateId::random(),
        build: BuildId::random(),
        alias: Some("base".to_owned()),
        metadata: Default::default(),
        env_vars: Default::default(),
        network: None,
        volume_mounts: Vec::new(),
        allow_internet: true,
        size: Size { cpus: 2, memory_mb: 512, disk_mb: 1_024 },
        lifetime: Lifetime { timeout: 5 * MINUTE, on_timeout: OnTimeout::Kill, auto_resume: false },
    }
}

/// The same, paused at its end.
pub(crate) fn pausing(mode: PauseMode) -> NewSandbox {
    let mut spec = spec();
    spec.lifetime.on_timeout = OnTimeout::Pause(mode);
    spec
}

pub(crate) async fn create(control: &Control, team: &TeamId, spec: &NewSandbox) -> Result<Sandbox, ControlError> {
    create_with(control, team, spec, None).await
}

pub(crate) async fn create_with(
    control: &Control,
    team: &TeamId,
    spec: &NewSandbox,
    key: Option<&IdempotencyKey>,
) -> Result<Sandbox, ControlError> {
    match control.sandboxes().reserve(team, spec, key, 10 * SECOND).await? {
        Reserved::New(reservation) => control.sandboxes().confirm(&reservation, &SandboxId::random()).await,
        Reserved::Existing(sandbox) => Ok(sandbox),
    }
}

pub(crate) async fn kill(control: &Control, sandbox: &Sandbox) {
    let transition = control.begin_kill(&sandbox.team, &sandbox.id).await.unwrap();
    control.killed(transition, "asked for").await.unwrap();
}

pub(crate) async fn pause(control: &Control, sandbox: &Sandbox) {
    let transition = control.begin_pause(&sandbox.team, &sandbox.id).await.unwrap();
    control.paused(transition, PauseMode::Full, false).await.unwrap();
}

/// A node that notes what it was asked for, and refuses when it is told to.
#[derive(Debug, Default)]
pub(crate) struct Node {
    done: Mutex<Vec<(SandboxId, Option<PauseMode>)>>,
    refusal: Mutex<Option<String>>,
}

impl Node {
    pub(crate) fn refuse(&self, reason: Option<&str>) {
        *self.refusal.lock().unwrap() = reason.map(str::to_owned);
    }

    /// What it did since the last call.
    pub(crate) fn done(&self) -> Vec<(SandboxId, Option<PauseMode>)> {
        std::mem::take(&mut *self.done.lock().unwrap())
    }

    fn act(&self, id: &SandboxId, mode: Option<PauseMode>) -> Result<(), Refused> {
        let refusal = self.refusal.lock().unwrap().clone();
        if let Some(reason) = refusal {
            return Err(Refused { reason });
        }
        self.done.lock().unwrap().push((id.clone(), mode));
        Ok(())
    }
}

#[async_trait::async_trait]
impl Runtime for Node {
    async fn kill(&self, id: &SandboxId) -> Result<(), Refused> {
        self.act(id, None)
    }

    async fn pause(&self, id: &SandboxId, mode: PauseMode) -> Result<(), Refused> {
        self.act(id, Some(mode))
    }
}

/// One look of a scheduler, with all the work that it begins.
pub(crate) async fn look(scheduler: &control::Scheduler) -> usize {
    let (work, _) = scheduler.look().await.unwrap();
    let begun = work.len();
    for work in work {
        work.await.unwrap();
    }
    begun
}
