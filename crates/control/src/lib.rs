//! What a server knows beyond its node: teams and their keys, quotas, sandboxes and how long they live, templates,
//! volumes.
//!
//! [`Control`] is a database and the rules for it. It speaks no HTTP and starts no process. Its parts:
//!
//! | part | owns |
//! |---|---|
//! | [`Teams`], [`Keys`] | tenants, quotas, API keys |
//! | [`Sandboxes`] | what was asked for, state, end, tokens, lists, changes of state |
//! | [`Scheduler`] | kills and pauses what is due, through a [`Runtime`] |
//! | [`Templates`], [`Volumes`] | names, tags, builds; volumes and their tokens |
//! | [`Secrets`] | texts that are sealed, and never returned |
//! | [`Servers`] | those that share the database |
//!
//! A method that takes a [`base::id::TeamId`] sees nothing of any other team. Methods without one are for the server
//! itself, and say so. Several servers may share one database: each change is one transaction, a server works on what its
//! own node has, and claims a sandbox first.

mod error;
mod events;
mod keys;
mod page;
mod quota;
mod sandboxes;
mod scheduler;
mod secret;
mod secrets;
mod servers;
mod teams;
mod templates;
mod time;
mod volumes;

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use base::id::SandboxId;
use db::{Database, Fields, Schema, failed, retry};
use tokio::sync::Notify;

pub use self::{
    error::{ControlError, Doing, Kind, Noun, Resource},
    events::{Event, EventKind},
    keys::{Caller, KeyInfo, Keys, Scope},
    page::{Order, Page, PageToken},
    sandboxes::{
        Filter, IdempotencyKey, Lifetime, ListedPage, NewSandbox, Observed, OnTimeout, PauseMode, Relative,
        Reservation, Reserved, Sandbox, Sandboxes, Size, Started, State, States, Transition, VolumeMount,
    },
    scheduler::{Refused, Runtime, Scheduler},
    secret::{FileOperation, SignatureError, SignedUrl, Token},
    secrets::{NewSecret, SecretInfo, SecretUpdate, Secrets},
    servers::{Server, Servers},
    teams::{Quota, Slug, Team, Teams},
    templates::{
        Build, BuildRequest, BuildStatus, BuildUpdate, NewSnapshot, Resolved, SnapshotFilter, Tag, Template,
        TemplateKind, TemplateRef, Templates,
    },
    time::{Clock, ManualClock, SystemClock, Time},
    volumes::{Volume, Volumes},
};
use self::{keys::Cache, secret::Secret};

const MIGRATIONS: &[&str] = &[
    include_str!("schema_1.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
];
const SCHEMA: Schema = Schema { name: "control", migrations: MIGRATIONS, first_rows: "" };

/// The control plane of one server. A clone is the same one.
#[derive(Debug, Clone)]
pub struct Control(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) db: Database,
    pub(crate) clock: Arc<dyn Clock>,
    /// Names this server in claims.
    pub(crate) server: String,
    pub(crate) secret: Secret,
    pub(crate) keys: Cache,
    /// Wakes the scheduler.
    pub(crate) wake: Notify,
    /// Sandboxes that this server has claimed, and how many transitions of each live. Their claims are renewed.
    pub(crate) held: Mutex<HashMap<SandboxId, usize>>,
}

impl Inner {
    pub(crate) fn held(&self) -> MutexGuard<'_, HashMap<SandboxId, usize>> {
        // No operation leaves it half changed.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    /// Opens the database at `url` (`postgres://...` or `sqlite:///path`), and makes what it lacks. `server` names this
    /// server among those that share the database: a name that stays when the server is started again, and that no two
    /// have at once.
    pub async fn open(url: &str, server: &str, clock: Arc<dyn Clock>) -> Result<Self, ControlError> {
        Self::with(Database::open(url, &SCHEMA).await?, server, clock).await
    }

    /// As [`Control::open`], for the SQLite database at `path`.
    pub async fn open_file(path: &Path, server: &str, clock: Arc<dyn Clock>) -> Result<Self, ControlError> {
        Self::with(Database::open_file(path, &SCHEMA).await?, server, clock).await
    }

    async fn with(db: Database, server: &str, clock: Arc<dyn Clock>) -> Result<Self, ControlError> {
        let secret = retry(|| secret(&db)).await?;
        let server = teams::label("the server's name", server)?;
        let (keys, wake, held) = (Cache::default(), Notify::new(), Mutex::default());
        let control = Self(Arc::new(Inner { db, clock, server, secret, keys, wake, held }));
        // What a process with this name claimed, it cannot finish any more.
        control.sandboxes().release_own_claims().await?;
        Ok(control)
    }

    /// Teams, for the operator.
    pub fn teams(&self) -> Teams<'_> {
        Teams(&self.0)
    }

    /// API keys.
    pub fn keys(&self) -> Keys<'_> {
        Keys(&self.0)
    }

    /// Sandboxes.
    pub fn sandboxes(&self) -> Sandboxes<'_> {
        Sandboxes(&self.0)
    }

    /// Templates and snapshots.
    pub fn templates(&self) -> Templates<'_> {
        Templates(&self.0)
    }

    /// Volumes.
    pub fn volumes(&self) -> Volumes<'_> {
        Volumes(&self.0)
    }

    /// Secrets of teams, whose values `keys` seal.
    pub fn secrets<'a>(&'a self, keys: &'a store::keys::RealmKeys) -> Secrets<'a> {
        Secrets { inner: &self.0, keys }
    }

    /// The servers that share the database, for the operator.
    pub fn servers(&self) -> Servers<'_> {
        Servers(&self.0)
    }

    /// What ends and pauses sandboxes in time.
    pub fn scheduler(&self, runtime: Arc<dyn Runtime>) -> Scheduler {
        Scheduler::new(self.0.clone(), runtime)
    }

    /// Now, by the clock that times of this control plane are of.
    pub fn now(&self) -> Time {
        self.0.clock.now()
    }

    /// Closes the database.
    pub async fn close(&self) {
        self.0.db.close().await;
    }
}

/// The secret of the database. Of two servers that open a new one, one makes it.
async fn secret(db: &Database) -> Result<Secret, ControlError> {
    let failed = || failed("read the server's secret");
    let mut transaction = db.begin().await?;
    let insert = "INSERT INTO control_server (one, secret) VALUES (1, $1) ON CONFLICT (one) DO NOTHING";
    sqlx::query(insert).bind(Secret::new_text()).execute(&mut *transaction).await.map_err(failed())?;
    let row = sqlx::query("SELECT secret FROM control_server").fetch_one(&mut *transaction).await.map_err(failed())?;
    transaction.commit().await.map_err(failed())?;
    Ok(Secret::new(&row.text("secret")?))
}
