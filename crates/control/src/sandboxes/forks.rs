//! Who was forked from whom.

use std::collections::{BTreeMap, BTreeSet};

use base::{
    id::{SandboxId, TeamId},
    limits::FORKS_LISTED_MAX,
};
use db::{Fields, failed};
use sqlx::{AnyConnection, AssertSqlSafe};

use super::{Sandbox, Sandboxes, State, record};
use crate::{ControlError, Time};

/// A sandbox that was forked, or that others were forked from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relative {
    /// The sandbox.
    pub id: SandboxId,
    /// The one that it was forked from, if it was.
    pub parent: Option<SandboxId>,
    /// When that was.
    pub forked: Option<Time>,
    /// Whether it runs; none: it is gone.
    pub is_running: Option<bool>,
}

/// Notes a fork.
pub(super) async fn add(
    transaction: &mut AnyConnection,
    sandbox: &Sandbox,
    parent: &SandboxId,
) -> Result<(), ControlError> {
    let insert = sqlx::query("INSERT INTO forks (child, parent, team, forked_ms) VALUES ($1, $2, $3, $4)");
    let insert = insert.bind(sandbox.id.as_str()).bind(parent.as_str()).bind(sandbox.team.as_str());
    insert.bind(sandbox.started.sql()).execute(transaction).await.map_err(failed("note a fork"))?;
    Ok(())
}

/// Forgets the fork of a sandbox that is gone, and those above it, unless a sandbox is there that descends from them. `lock` is the end of a
/// statement that reads: all walk up, so that none waits for another one that waits for it.
pub(super) async fn forget(transaction: &mut AnyConnection, id: &SandboxId, lock: &str) -> Result<(), ControlError> {
    let failed = || failed("forget a fork");
    let mut id = id.to_string();
    loop {
        let select = format!("SELECT parent FROM forks WHERE child = $1{lock}");
        let select = sqlx::query(AssertSqlSafe(select)).bind(&id);
        let Some(row) = select.fetch_optional(&mut *transaction).await.map_err(failed())? else { return Ok(()) };
        let delete = "DELETE FROM forks WHERE child = $1
            AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE sandboxes.id = $1)
            AND NOT EXISTS (SELECT 1 FROM forks later WHERE later.parent = $1)";
        let deleted = sqlx::query(delete).bind(&id).execute(&mut *transaction).await.map_err(failed())?;
        if deleted.rows_affected() == 0 {
            return Ok(());
        }
        id = row.text("parent")?;
    }
}

fn is_running(state: &str) -> bool {
    state == "running"
}

/// Those that have the same root as `of`; none if it is not among them.
fn family(all: Vec<Relative>, of: &SandboxId) -> Vec<Relative> {
    let parents: BTreeMap<SandboxId, Option<SandboxId>> =
        all.iter().map(|one| (one.id.clone(), one.parent.clone())).collect();
    let root = |id: &SandboxId| {
        let mut root = id.clone();
        while let Some(Some(parent)) = parents.get(&root) {
            root.clone_from(parent);
        }
        root
    };
    let wanted = root(of);
    all.into_iter().filter(|one| root(&one.id) == wanted).collect()
}

impl Sandboxes<'_> {
    /// The trees of forks of a team, or only the one that a sandbox is in: the sandboxes by the time of their fork, before them those that were not
    /// forked. Of more than [`FORKS_LISTED_MAX`] forks the oldest.
    pub async fn forks(&self, team: &TeamId, of: Option<&SandboxId>) -> Result<Vec<Relative>, ControlError> {
        let failed = || failed("read the forks of a team");
        let mut connection = record::reader(self.0).await?;
        let forks = format!(
            "SELECT child, parent, forked_ms, sandboxes.state FROM forks
            LEFT JOIN sandboxes ON sandboxes.id = forks.child WHERE forks.team = $1
            ORDER BY forked_ms, child LIMIT {FORKS_LISTED_MAX}"
        );
        let forks = sqlx::query(AssertSqlSafe(forks)).bind(team.as_str()).fetch_all(&mut *connection).await;
        let roots = "SELECT id, state FROM sandboxes WHERE team = $1
            AND EXISTS (SELECT 1 FROM forks WHERE forks.parent = sandboxes.id)";
        let roots = sqlx::query(roots).bind(team.as_str()).fetch_all(&mut *connection).await;
        let mut states = BTreeMap::new();
        for row in roots.map_err(failed())? {
            states.insert(row.parsed::<SandboxId>("id", "sandbox id")?, is_running(&row.text("state")?));
        }
        let mut forked = Vec::new();
        for row in forks.map_err(failed())? {
            let state = row.text_or_null("state")?;
            forked.push(Relative {
                id: row.parsed("child", "sandbox id")?,
                parent: Some(row.parsed("parent", "sandbox id")?),
                forked: Some(Time::from_ms(row.count("forked_ms")?)),
                is_running: state.as_deref().map(is_running),
            });
        }
        let known: BTreeSet<SandboxId> = forked.iter().map(|one| one.id.clone()).collect();
        let roots: BTreeSet<SandboxId> =
            forked.iter().filter_map(|one| one.parent.clone()).filter(|parent| !known.contains(parent)).collect();
        let root = |id: SandboxId| {
            let is_running = states.get(&id).copied();
            Relative { id, parent: None, forked: None, is_running }
        };
        let mut all: Vec<Relative> = roots.into_iter().map(root).chain(forked).collect();
        if let Some(of) = of {
            all = family(all, of);
            if all.is_empty() {
                // Alone, or another team's, or none.
                let sandbox = record::of_team(&mut connection, team, of, (self.0.clock.now(), "")).await?;
                let is_running = Some(sandbox.state == State::Running);
                all.push(Relative { id: of.clone(), parent: None, forked: None, is_running });
            }
        }
        Ok(all)
    }
}
