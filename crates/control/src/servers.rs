//! Servers that share the database. Each has a node of its own, and works on what that node has.

use std::time::Duration;

use base::{id::SandboxId, limits::SERVER_SILENT};
use db::{Fields, failed, retry};
use sqlx::AnyConnection;

use crate::{ControlError, EventKind, Inner, Noun, Sandbox, State, Time, events, sandboxes};

/// A server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The id of its node.
    pub name: String,
    /// When it was last known to run.
    pub seen: Time,
    /// Sandboxes that run on its node.
    pub running: u64,
    /// Paused sandboxes that ran on its node.
    pub paused: u64,
}

/// The servers of a database, for the operator.
#[derive(Debug, Clone, Copy)]
pub struct Servers<'a>(pub(crate) &'a Inner);

impl Servers<'_> {
    /// All servers, by name.
    pub async fn list(&self) -> Result<Vec<Server>, ControlError> {
        let select = "SELECT servers.name AS name, servers.seen_ms AS seen_ms,
            CAST(SUM(CASE WHEN sandboxes.state = 'running' THEN 1 ELSE 0 END) AS BIGINT) AS running,
            CAST(SUM(CASE WHEN sandboxes.state = 'paused' THEN 1 ELSE 0 END) AS BIGINT) AS paused
            FROM servers LEFT JOIN sandboxes ON sandboxes.server = servers.name
            GROUP BY servers.name, servers.seen_ms ORDER BY servers.name";
        let rows = sqlx::query(select).fetch_all(self.0.db.pool()).await.map_err(failed("list servers"))?;
        let server = |row: &sqlx::any::AnyRow| -> Result<Server, ControlError> {
            Ok(Server {
                name: row.text("name")?,
                seen: Time::from_ms(row.count("seen_ms")?),
                running: row.count("running")?,
                paused: row.count("paused")?,
            })
        };
        rows.iter().map(server).collect()
    }

    /// Forgets a server that will not come back. What ran on its node is gone. Its paused sandboxes belong to no server:
    /// the one that resumes a sandbox has it from then on. Returns what ran there.
    pub async fn remove(&self, name: &str) -> Result<Vec<SandboxId>, ControlError> {
        retry(|| self.try_remove(name)).await
    }

    async fn try_remove(&self, name: &str) -> Result<Vec<SandboxId>, ControlError> {
        let (failed, now) = (|| failed("remove a server"), self.0.clock.now());
        let mut transaction = self.0.db.begin().await?;
        let select = format!("SELECT seen_ms FROM servers WHERE name = $1{}", self.0.db.for_update());
        let select = sqlx::query(sqlx::AssertSqlSafe(select)).bind(name);
        let row = select.fetch_optional(&mut *transaction).await.map_err(failed())?;
        let row = row.ok_or_else(|| ControlError::not_found(Noun::Server, name))?;
        let silent = now.since(Time::from_ms(row.count("seen_ms")?));
        if silent < SERVER_SILENT {
            return Err(ControlError::ServerRuns { name: name.to_owned(), wait: SERVER_SILENT - silent });
        }
        let ended = self.end_all(&mut transaction, name, now).await?;
        for statement in [
            "UPDATE sandboxes SET server = '', doing = CASE WHEN doing = 'killing' THEN doing ELSE '' END, doer = '',
                doer_until_ms = 0 WHERE server = $1",
            "DELETE FROM reservations WHERE server = $1",
            "DELETE FROM servers WHERE name = $1",
        ] {
            sqlx::query(statement).bind(name).execute(&mut *transaction).await.map_err(failed())?;
        }
        transaction.commit().await.map_err(failed())?;
        Ok(ended)
    }

    /// Removes the rows of sandboxes that ran on a server's node.
    async fn end_all(
        &self,
        transaction: &mut AnyConnection,
        name: &str,
        now: Time,
    ) -> Result<Vec<SandboxId>, ControlError> {
        let mut ended = Vec::new();
        for sandbox in sandboxes::of_server(transaction, name, now).await? {
            if sandbox.state == State::Running {
                sandboxes::remove(transaction, &sandbox.id).await?;
                let owner = (&sandbox.team, &sandbox.id);
                events::add(transaction, owner, now, EventKind::Killed, "its server was removed").await?;
                ended.push(sandbox.id);
            }
        }
        Ok(ended)
    }
}

impl crate::Control {
    /// Says that this server runs. [`crate::Scheduler::run`] does it every half minute.
    pub async fn appear(&self) -> Result<(), ControlError> {
        appear(&self.0).await
    }

    /// The name of this server among those that share the database.
    pub fn server(&self) -> &str {
        &self.0.server
    }

    /// Fails if the sandbox runs on the node of another server.
    pub fn check_here(&self, sandbox: &Sandbox) -> Result<(), ControlError> {
        if sandbox.state == State::Running && !sandbox.is_of(&self.0.server) {
            return Err(ControlError::Elsewhere { id: sandbox.id.clone(), server: sandbox.server.clone() });
        }
        Ok(())
    }
}

pub(crate) async fn appear(inner: &Inner) -> Result<(), ControlError> {
    let failed = || failed("note that this server runs");
    let attempt = || async {
        let mut transaction = inner.db.begin_relaxed().await?;
        let insert = "INSERT INTO servers (name, seen_ms) VALUES ($1, $2)
            ON CONFLICT (name) DO UPDATE SET seen_ms = excluded.seen_ms";
        let insert = sqlx::query(insert).bind(&*inner.server).bind(inner.clock.now().sql());
        insert.execute(&mut *transaction).await.map_err(failed())?;
        Ok(transaction.commit().await.map_err(failed())?)
    };
    retry(attempt).await
}

/// How long until a request that another server can do is tried again.
pub(crate) const ELSEWHERE_RETRY: Duration = Duration::from_secs(1);
