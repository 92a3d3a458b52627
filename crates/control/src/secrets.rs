//! Secrets: texts that a team stores and that no request gets back.
//!
//! ```text
//! sealed text (`store::text`): {team, secret, version, value}
//! ```
//!
//! The database has the sealed text only. The data key that opens it is in the object store, wrapped by a master key,
//! which is in neither. What is sealed names its row, so a value that was moved to another row is refused.

use std::collections::BTreeMap;

use base::{
    id::{SecretId, TeamId},
    limits::{SECRET_BYTES_MAX, SECRET_NAME_BYTES_MAX, TEAM_SECRETS_MAX},
};
use db::{DbError, Fields, failed, retry};
use serde::{Deserialize, Serialize};
use sqlx::{AnyConnection, AssertSqlSafe, any::AnyRow};
use store::{
    keys::RealmKeys,
    text::{self, TextError},
};
use zeroize::Zeroizing;

use crate::{ControlError, Inner, Noun, Order, Page, PageToken, Time, quota, sandboxes, time::sql};

const COLUMNS: &str = "id, team, name, version, metadata, created_ms, updated_ms";
/// Begins the id of a secret for clients, who may also use its name.
const PREFIX: &str = "sec_";

/// What is known of a secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretInfo {
    /// Its id.
    pub id: SecretId,
    /// Its name, which the team uses once.
    pub name: String,
    /// How often it was set.
    pub version: u64,
    /// What the team keeps with it.
    pub metadata: BTreeMap<String, String>,
    /// When it was made.
    pub created: Time,
    /// When it was set last.
    pub updated: Time,
}

impl SecretInfo {
    /// The id for clients.
    pub fn public_id(&self) -> String {
        format!("{PREFIX}{}", self.id)
    }
}

/// A secret to make.
#[derive(Clone)]
pub struct NewSecret {
    /// Its name. Capital letters become small ones.
    pub name: String,
    /// Its value.
    pub value: Zeroizing<String>,
    /// What the team keeps with it.
    pub metadata: BTreeMap<String, String>,
}

/// A new value for a secret.
#[derive(Clone)]
pub struct SecretUpdate {
    /// The value.
    pub value: Zeroizing<String>,
    /// Replaces the metadata, if there is some.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// What is sealed.
#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    team: &'a str,
    secret: &'a str,
    version: u64,
    value: std::borrow::Cow<'a, str>,
}

/// The secrets of a server.
#[derive(Clone, Copy)]
pub struct Secrets<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) keys: &'a RealmKeys,
}

impl Secrets<'_> {
    /// Makes a secret. A conflict if the team has one of this name.
    pub async fn create(&self, team: &TeamId, new: &NewSecret) -> Result<SecretInfo, ControlError> {
        let now = self.inner.clock.now();
        let (id, name) = (SecretId::random(), checked_name(&new.name)?);
        let metadata = new.metadata.clone();
        let secret = SecretInfo { id, name, version: 1, metadata, created: now, updated: now };
        let sealed = self.seal(team, &secret, &new.value).await?;
        retry(|| self.insert(team, &secret, &sealed)).await?;
        Ok(secret)
    }

    async fn insert(&self, team: &TeamId, secret: &SecretInfo, sealed: &str) -> Result<(), ControlError> {
        let (failed, metadata) = (|| failed("add a secret"), sandboxes::metadata_text(&secret.metadata)?);
        let mut transaction = self.inner.db.begin().await?;
        quota::lock_team(self.inner, &mut transaction, team).await?;
        let used = quota::rows_of(&mut transaction, "secrets", team).await?;
        quota::check_kept(Noun::Secret, TEAM_SECRETS_MAX, used)?;
        let insert = format!(
            "INSERT INTO secrets ({COLUMNS}, sealed) VALUES ($1, $2, $3, 1, $4, $5, $5, $6)
            ON CONFLICT (team, name) DO NOTHING"
        );
        let insert = sqlx::query(AssertSqlSafe(insert)).bind(secret.id.as_str()).bind(team.as_str());
        let insert = insert.bind(&*secret.name).bind(metadata).bind(secret.created.sql()).bind(sealed);
        if insert.execute(&mut *transaction).await.map_err(failed())?.rows_affected() == 0 {
            return Err(ControlError::Exists { noun: Noun::Secret, name: secret.name.clone() });
        }
        Ok(transaction.commit().await.map_err(failed())?)
    }

    /// Sets a secret, by its id or name.
    pub async fn update(&self, team: &TeamId, secret: &str, new: &SecretUpdate) -> Result<SecretInfo, ControlError> {
        let failed = || failed("set a secret");
        loop {
            let mut next = self.get(team, secret).await?;
            let seen = next.version;
            (next.version, next.updated) = (seen + 1, self.inner.clock.now());
            if let Some(metadata) = &new.metadata {
                next.metadata.clone_from(metadata);
            }
            let (sealed, metadata) =
                (self.seal(team, &next, &new.value).await?, sandboxes::metadata_text(&next.metadata)?);
            let attempt = || async {
                let update = "UPDATE secrets SET version = $1, metadata = $2, sealed = $3, updated_ms = $4
                    WHERE id = $5 AND version = $6";
                let mut transaction = self.inner.db.begin().await?;
                let update = sqlx::query(update).bind(sql(next.version)).bind(&*metadata).bind(&*sealed);
                let update = update.bind(next.updated.sql()).bind(next.id.as_str()).bind(sql(seen));
                let changed = update.execute(&mut *transaction).await.map_err(failed())?.rows_affected();
                transaction.commit().await.map_err(failed())?;
                Ok::<_, ControlError>(changed)
            };
            // Another request was faster: this one is the version after that.
            if retry(attempt).await? == 1 {
                return Ok(next);
            }
        }
    }

    /// A secret, by its id or name.
    pub async fn get(&self, team: &TeamId, secret: &str) -> Result<SecretInfo, ControlError> {
        let mut connection = sandboxes::reader(self.inner).await?;
        Ok(info(&row(&mut connection, team, secret, COLUMNS).await?)?)
    }

    /// A page of the secrets of a team, the newest first.
    pub async fn list(&self, team: &TeamId, page: &Page) -> Result<(Vec<SecretInfo>, Option<PageToken>), ControlError> {
        page.check(Order::Desc)?;
        let after = page.after.as_ref().map(|_| format!(" AND {}", Order::Desc.after(("created_ms", "id"), 2)));
        let (after, limit) = (after.unwrap_or_default(), page.limit + 1);
        let select = format!(
            "SELECT {COLUMNS} FROM secrets WHERE team = $1{after} ORDER BY created_ms DESC, id DESC LIMIT {limit}"
        );
        let mut select = sqlx::query(AssertSqlSafe(select)).bind(team.as_str());
        if let Some(after) = &page.after {
            select = select.bind(after.time.sql()).bind(&*after.id);
        }
        let rows = select.fetch_all(self.inner.db.pool()).await.map_err(failed("list secrets"))?;
        let mut found = rows.iter().map(info).collect::<Result<Vec<_>, _>>()?;
        let next = page.cut(&mut found, Order::Desc, |last| (last.created, last.id.to_string()));
        Ok((found, next))
    }

    /// Removes a secret, by its id or name.
    pub async fn delete(&self, team: &TeamId, secret: &str) -> Result<(), ControlError> {
        let failed = || failed("remove a secret");
        let attempt = || async {
            let mut transaction = self.inner.db.begin().await?;
            let found = info(&row(&mut transaction, team, secret, COLUMNS).await?)?;
            let delete = sqlx::query("DELETE FROM secrets WHERE id = $1").bind(found.id.as_str());
            let removed = delete.execute(&mut *transaction).await.map_err(failed())?.rows_affected();
            transaction.commit().await.map_err(failed())?;
            if removed == 0 { Err(ControlError::not_found(Noun::Secret, secret)) } else { Ok(()) }
        };
        retry(attempt).await
    }

    /// The value, for the server itself: no request gets it.
    pub async fn value(&self, team: &TeamId, secret: &str) -> Result<Zeroizing<String>, ControlError> {
        let mut connection = sandboxes::reader(self.inner).await?;
        let row = row(&mut connection, team, secret, &format!("{COLUMNS}, sealed")).await?;
        let (info, sealed) = (info(&row)?, row.text("sealed")?);
        let damaged = || ControlError::Seal { name: info.name.clone() };
        let plain = text::open(self.keys, &sealed).await.map_err(|error| match error {
            TextError::Seal(_) => damaged(),
            TextError::Key(error) => error.into(),
        })?;
        let opened: Sealed<'_> = serde_json::from_slice(&plain).map_err(|_| damaged())?;
        let expected = (team.as_str(), info.id.as_str(), info.version);
        if (opened.team, opened.secret, opened.version) != expected {
            return Err(damaged());
        }
        Ok(Zeroizing::new(opened.value.into_owned()))
    }

    async fn seal(&self, team: &TeamId, secret: &SecretInfo, value: &str) -> Result<String, ControlError> {
        if value.len() > SECRET_BYTES_MAX {
            return Err(ControlError::invalid("the secret's value", format!("use at most {SECRET_BYTES_MAX} bytes")));
        }
        let (team, id, version) = (team.as_str(), secret.id.as_str(), secret.version);
        let sealed = Sealed { team, secret: id, version, value: value.into() };
        let plain = serde_json::to_vec(&sealed).map(Zeroizing::new);
        let plain = plain.map_err(|error| ControlError::invalid("the secret's value", error.to_string()))?;
        Ok(text::seal(self.keys, &plain).await?)
    }
}

/// A team's row, by the secret's id for clients or its name.
async fn row(
    connection: &mut AnyConnection,
    team: &TeamId,
    secret: &str,
    columns: &str,
) -> Result<AnyRow, ControlError> {
    let id = secret.strip_prefix(PREFIX).and_then(|id| id.parse::<SecretId>().ok());
    let (column, value) = match &id {
        Some(id) => ("id", id.to_string()),
        None => ("name", secret.to_lowercase().replace('\0', "\u{fffd}")),
    };
    let select = format!("SELECT {columns} FROM secrets WHERE team = $1 AND {column} = $2");
    let select = sqlx::query(AssertSqlSafe(select)).bind(team.as_str()).bind(value);
    let row = select.fetch_optional(connection).await.map_err(failed("look a secret up"))?;
    row.ok_or_else(|| ControlError::not_found(Noun::Secret, secret))
}

fn info(row: &AnyRow) -> Result<SecretInfo, DbError> {
    let metadata = row.text("metadata")?;
    Ok(SecretInfo {
        id: row.parsed("id", "secret id")?,
        name: row.text("name")?,
        version: row.count("version")?,
        metadata: serde_json::from_str(&metadata)
            .map_err(|_| DbError::Damaged { expected: "metadata", value: metadata })?,
        created: Time::from_ms(row.count("created_ms")?),
        updated: Time::from_ms(row.count("updated_ms")?),
    })
}

/// A name can stand in `${e2b.secrets.NAME}`, and is not taken for an id.
fn checked_name(name: &str) -> Result<String, ControlError> {
    let name = name.to_lowercase();
    let allowed = |letter: char| !letter.is_control() && letter != '{' && letter != '}';
    let fits = (1..=SECRET_NAME_BYTES_MAX).contains(&name.len());
    if fits && name.chars().all(allowed) && !name.starts_with(PREFIX) {
        return Ok(name);
    }
    let rule = format!(
        "use 1 to {SECRET_NAME_BYTES_MAX} bytes without control characters, braces, and {PREFIX:?} at the front"
    );
    Err(ControlError::invalid("the secret's name", rule))
}
