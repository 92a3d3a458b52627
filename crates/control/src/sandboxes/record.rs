//! Sandboxes as rows.

use std::{collections::BTreeMap, time::Duration};

use base::{
    id::{SandboxId, TeamId},
    limits::{METADATA_PAIRS_MAX, SANDBOX_JSON_BYTES_MAX},
};
use db::{DbError, Fields, failed};
use ring::digest::{SHA256, digest};
use serde::{Serialize, de::DeserializeOwned};
use sqlx::{Any, AnyConnection, AssertSqlSafe, any::AnyRow, pool::PoolConnection};

use super::{Lifetime, NewSandbox, OnTimeout, PauseMode, Sandbox, Size, State};
use crate::{
    ControlError, Doing, Inner, Noun, Time,
    time::{span_sql, sql},
};

pub(super) const COLUMNS: &str =
    "id, team, template, build, alias, state, pause_mode, unresponsive, metadata, env_vars,
    network, volume_mounts, allow_internet, cpus, memory_mb, disk_mb, on_timeout, auto_resume, timeout_ms, started_ms,
    end_ms, refusals, doing, doer_until_ms, token_generation, server";

/// A connection for one read.
pub(crate) async fn reader(inner: &Inner) -> Result<PoolConnection<Any>, ControlError> {
    Ok(inner.db.pool().acquire().await.map_err(failed("connect to the database"))?)
}

/// A sandbox of a team, as it is `now`. `lock` is the end of the statement.
pub(super) async fn of_team(
    connection: &mut AnyConnection,
    team: &TeamId,
    id: &SandboxId,
    (now, lock): (Time, &str),
) -> Result<Sandbox, ControlError> {
    let found = of_any(connection, id, (now, lock)).await?;
    if found.team == *team { Ok(found) } else { Err(ControlError::not_found(Noun::Sandbox, id)) }
}

/// A sandbox of any team.
pub(super) async fn of_any(
    connection: &mut AnyConnection,
    id: &SandboxId,
    (now, lock): (Time, &str),
) -> Result<Sandbox, ControlError> {
    let select = format!("SELECT {COLUMNS} FROM sandboxes WHERE id = $1{lock}");
    let row = sqlx::query(AssertSqlSafe(select)).bind(id.as_str()).fetch_optional(connection).await;
    let row = row.map_err(failed("read a sandbox"))?;
    Ok(sandbox(&row.ok_or_else(|| ControlError::not_found(Noun::Sandbox, id))?, now)?)
}

/// Reads a row as it is to be seen `now`: a claim that is over is none, but for that of a kill, which will be finished.
pub(super) fn sandbox(row: &AnyRow, now: Time) -> Result<Sandbox, DbError> {
    let alias = row.text("alias")?;
    let state = match row.text("state")?.as_str() {
        "running" => State::Running,
        _ => State::Paused(mode(row.text("pause_mode")?)?),
    };
    let on_timeout = on_timeout_of(row)?;
    let claimed_until = Time::from_ms(row.count("doer_until_ms")?);
    let timeout = Duration::from_millis(row.count("timeout_ms")?);
    let size = Size { cpus: row.count("cpus")?, memory_mb: row.count("memory_mb")?, disk_mb: row.count("disk_mb")? };
    let spec = NewSandbox {
        template: row.parsed("template", "template id")?,
        build: row.parsed("build", "build id")?,
        alias: (!alias.is_empty()).then_some(alias),
        metadata: json(row, "metadata")?,
        env_vars: json(row, "env_vars")?,
        network: json(row, "network")?,
        volume_mounts: json(row, "volume_mounts")?,
        allow_internet: row.flag("allow_internet")?,
        size,
        lifetime: Lifetime { timeout, on_timeout, auto_resume: row.flag("auto_resume")? },
    };
    Ok(Sandbox {
        id: row.parsed("id", "sandbox id")?,
        team: row.parsed("team", "team id")?,
        spec,
        state,
        unresponsive: row.flag("unresponsive")?,
        doing: Doing::parse(&row.text("doing")?).filter(|doing| *doing == Doing::Killing || claimed_until > now),
        started: Time::from_ms(row.count("started_ms")?),
        end: Time::from_ms(row.count("end_ms")?),
        refusals: row.count("refusals")?,
        token_generation: row.count("token_generation")?,
        server: row.text("server")?,
    })
}

/// Adds a new, running sandbox with its metadata.
pub(super) async fn insert(transaction: &mut AnyConnection, sandbox: &Sandbox) -> Result<(), ControlError> {
    let failed = || failed("add a sandbox");
    let spec = &sandbox.spec;
    let insert = format!(
        "INSERT INTO sandboxes ({COLUMNS}, due_ms, doer) VALUES ($1, $2, $3, $4, $5, 'running', '', 0, $6, $7, $8, $9,
        $10, $11, $12, $13, $14, $15, $16, $17, $18, 0, '', 0, $19, $20, $18, '')"
    );
    let insert = sqlx::query(AssertSqlSafe(insert)).bind(sandbox.id.as_str()).bind(sandbox.team.as_str());
    let insert =
        insert.bind(spec.template.as_str()).bind(spec.build.as_str()).bind(spec.alias.as_deref().unwrap_or(""));
    let insert = insert.bind(text(&spec.metadata)?).bind(text(&spec.env_vars)?).bind(text(&spec.network)?);
    let insert = insert.bind(text(&spec.volume_mounts)?).bind(i64::from(spec.allow_internet));
    let insert = insert.bind(sql(spec.size.cpus)).bind(sql(spec.size.memory_mb)).bind(sql(spec.size.disk_mb));
    let insert = insert.bind(on_timeout(spec.lifetime.on_timeout)).bind(i64::from(spec.lifetime.auto_resume));
    let insert = insert.bind(span_sql(spec.lifetime.timeout)).bind(sandbox.started.sql()).bind(sandbox.end.sql());
    let insert = insert.bind(sql(sandbox.token_generation)).bind(&*sandbox.server);
    insert.execute(&mut *transaction).await.map_err(failed())?;
    for pair in &spec.metadata {
        let insert = sqlx::query("INSERT INTO sandbox_metadata (sandbox, pair) VALUES ($1, $2)");
        let insert = insert.bind(sandbox.id.as_str()).bind(pair_hash(pair.0, pair.1));
        insert.execute(&mut *transaction).await.map_err(failed())?;
    }
    Ok(())
}

/// Removes a sandbox. Its events stay.
pub(crate) async fn remove(transaction: &mut AnyConnection, id: &SandboxId) -> Result<(), ControlError> {
    for delete in ["DELETE FROM sandboxes WHERE id = $1", "DELETE FROM sandbox_metadata WHERE sandbox = $1"] {
        let delete = sqlx::query(delete).bind(id.as_str());
        delete.execute(&mut *transaction).await.map_err(failed("remove a sandbox"))?;
    }
    Ok(())
}

/// Stands for a pair of metadata in the index: any texts, of any length.
pub(super) fn pair_hash(key: &str, value: &str) -> String {
    let text = format!("{}:{key}{value}", key.len());
    base::id::hex(digest(&SHA256, text.as_bytes()).as_ref())
}

pub(super) fn on_timeout(on_timeout: OnTimeout) -> &'static str {
    match on_timeout {
        OnTimeout::Kill => "kill",
        OnTimeout::Pause(mode) => mode.as_str(),
    }
}

fn mode(word: String) -> Result<PauseMode, DbError> {
    let found = [PauseMode::Full, PauseMode::Filesystem].into_iter().find(|mode| mode.as_str() == word);
    found.ok_or(DbError::Damaged { expected: "pause mode", value: word })
}

/// Reads what happens at the end of a sandbox.
pub(crate) fn on_timeout_of(row: &AnyRow) -> Result<OnTimeout, DbError> {
    let word = row.text("on_timeout")?;
    if word == "kill" { Ok(OnTimeout::Kill) } else { Ok(OnTimeout::Pause(mode(word)?)) }
}

/// Checks what the database could not keep.
pub(super) fn check(spec: &NewSandbox) -> Result<(), ControlError> {
    if spec.metadata.len() > METADATA_PAIRS_MAX {
        return Err(ControlError::invalid("the metadata", format!("use at most {METADATA_PAIRS_MAX} pairs")));
    }
    let alias = spec.alias.as_deref().unwrap_or_default();
    if alias.chars().any(char::is_control) || alias.len() > SANDBOX_JSON_BYTES_MAX {
        return Err(ControlError::invalid("the template's name", "use no control characters"));
    }
    let bytes = [
        ("the metadata", text(&spec.metadata)?.len()),
        ("the environment", text(&spec.env_vars)?.len()),
        ("the network policy", text(&spec.network)?.len()),
        ("the list of volumes", text(&spec.volume_mounts)?.len()),
    ];
    match bytes.into_iter().find(|(_, bytes)| *bytes > SANDBOX_JSON_BYTES_MAX) {
        Some((what, _)) => {
            Err(ControlError::invalid(what, format!("use at most {SANDBOX_JSON_BYTES_MAX} bytes of JSON")))
        }
        None => Ok(()),
    }
}

fn json<T: DeserializeOwned>(row: &AnyRow, column: &'static str) -> Result<T, DbError> {
    let value = row.text(column)?;
    // Never the value itself: environment variables are secrets.
    serde_json::from_str(&value)
        .map_err(|_| DbError::Damaged { expected: column, value: format!("{} bytes of something else", value.len()) })
}

/// Metadata as a column, if it is not too much.
pub(crate) fn metadata_text(metadata: &BTreeMap<String, String>) -> Result<String, ControlError> {
    let text = text(metadata)?;
    if metadata.len() > METADATA_PAIRS_MAX || text.len() > SANDBOX_JSON_BYTES_MAX {
        let rule = format!("use at most {METADATA_PAIRS_MAX} pairs and {SANDBOX_JSON_BYTES_MAX} bytes of JSON");
        return Err(ControlError::invalid("the metadata", rule));
    }
    Ok(text)
}

/// JSON has no zero bytes, which PostgreSQL does not take.
pub(super) fn text<T: Serialize>(value: &T) -> Result<String, ControlError> {
    serde_json::to_string(value).map_err(|error| ControlError::invalid("the request", error.to_string()))
}
