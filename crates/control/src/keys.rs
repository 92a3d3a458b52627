//! API keys: `e2b_` and 40 hexadecimal digits, the form that E2B's clients check.
//!
//! The database holds the SHA-256 of a key. A key has 160 random bits, so the hash needs no salt and no work factor.
//! Looking a hash up takes a time that tells nothing of the key.

mod cache;

use std::{collections::BTreeSet, str::FromStr};

use base::{
    id::{KeyId, TeamId, fill_random, hex},
    limits::{KEY_USE_NOTED, TEAM_KEYS_MAX},
};
use db::{Fields, failed, retry};
use ring::digest::{SHA256, digest};
use sqlx::any::AnyRow;

pub(crate) use self::cache::Cache;
use crate::{ControlError, Inner, Noun, Time, teams::label};

const PREFIX: &str = "e2b_";
const DIGITS: usize = 40;
/// Digits that a mask shows at each end.
const SHOWN: usize = 4;

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Everything that the team may do.
    All,
    /// To see what there is.
    Read,
}

impl Scope {
    /// The word in lists.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Read => "read",
        }
    }
}

impl FromStr for Scope {
    type Err = ControlError;

    fn from_str(text: &str) -> Result<Self, ControlError> {
        let found = [Self::All, Self::Read].into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| ControlError::invalid("the scope", "use `all` or `read`"))
    }
}

/// Who sends a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The team. What it does not own does not exist for it.
    pub team: TeamId,
    /// The key that was used.
    pub key: KeyId,
    /// What the key may do.
    pub scopes: BTreeSet<Scope>,
}

impl Caller {
    /// Fails unless the key may change things.
    pub fn may_write(&self) -> Result<(), ControlError> {
        if self.scopes.contains(&Scope::All) { Ok(()) } else { Err(ControlError::ReadOnly) }
    }
}

/// A key as it may be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// Its id.
    pub id: KeyId,
    /// The name that its owner gave it.
    pub name: String,
    /// The beginning and the end of the key.
    pub mask: String,
    /// What it may do.
    pub scopes: BTreeSet<Scope>,
    /// When it was made.
    pub created: Time,
    /// When it was used last, to ten minutes.
    pub used: Option<Time>,
}

/// The keys of a server.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'a>(pub(crate) &'a Inner);

impl Keys<'_> {
    /// Makes a key. Its text is returned once and is kept nowhere.
    pub async fn create(
        &self,
        team: &TeamId,
        name: &str,
        scopes: &BTreeSet<Scope>,
    ) -> Result<(KeyInfo, String), ControlError> {
        if scopes.is_empty() {
            return Err(ControlError::invalid("the key's scopes", "use `all` or `read`"));
        }
        let mut bytes = [0; DIGITS / 2];
        fill_random(&mut bytes);
        let text = format!("{PREFIX}{}", hex(&bytes));
        let key = KeyInfo {
            id: KeyId::random(),
            name: label("the key's name", name)?,
            mask: mask(&text),
            scopes: scopes.clone(),
            created: self.0.clock.now(),
            used: None,
        };
        retry(|| self.insert(team, &key, &text)).await?;
        Ok((key, text))
    }

    async fn insert(&self, team: &TeamId, key: &KeyInfo, text: &str) -> Result<(), ControlError> {
        let failed = || failed("create a key");
        let mut transaction = self.0.db.begin().await?;
        crate::quota::lock_team(self.0, &mut transaction, team).await?;
        let used = crate::quota::rows_of(&mut transaction, "api_keys", team).await?;
        crate::quota::check_kept(Noun::Key, TEAM_KEYS_MAX, used)?;
        let insert = "INSERT INTO api_keys (id, team, name, hash, mask, scopes, created_ms, used_ms)
            VALUES ($1, $2, $3, $4, $5, $6, $7, 0)";
        let insert = sqlx::query(insert).bind(key.id.as_str()).bind(team.as_str()).bind(&*key.name);
        let insert = insert.bind(hash(text)).bind(&*key.mask).bind(written(&key.scopes)).bind(key.created.sql());
        insert.execute(&mut *transaction).await.map_err(failed())?;
        Ok(transaction.commit().await.map_err(failed())?)
    }

    /// The keys of a team, the oldest first.
    pub async fn list(&self, team: &TeamId) -> Result<Vec<KeyInfo>, ControlError> {
        let select = "SELECT id, name, mask, scopes, created_ms, used_ms FROM api_keys WHERE team = $1
            ORDER BY created_ms, id";
        let rows = sqlx::query(select).bind(team.as_str()).fetch_all(self.0.db.pool()).await;
        rows.map_err(failed("list keys"))?.iter().map(info).collect()
    }

    /// Removes a key. This server refuses it from now on, others within seconds.
    pub async fn revoke(&self, team: &TeamId, id: &KeyId) -> Result<(), ControlError> {
        let failed = || failed("revoke a key");
        let attempt = || async {
            let delete = sqlx::query("DELETE FROM api_keys WHERE team = $1 AND id = $2").bind(team.as_str());
            let mut transaction = self.0.db.begin().await?;
            let removed = delete.bind(id.as_str()).execute(&mut *transaction).await.map_err(failed())?.rows_affected();
            transaction.commit().await.map_err(failed())?;
            Ok::<_, ControlError>(removed)
        };
        let removed = retry(attempt).await;
        // Also after an error: the answer to the commit may have been lost.
        self.0.keys.forget(id);
        if removed? == 0 { Err(ControlError::not_found(Noun::Key, id)) } else { Ok(()) }
    }

    /// Says who presents a key.
    pub async fn authenticate(&self, text: &str) -> Result<Caller, ControlError> {
        if !well_formed(text) {
            return Err(ControlError::Unauthorised);
        }
        let (hash, now) = (hash(text), self.0.clock.now());
        if let Some(caller) = self.0.keys.get(&hash, now) {
            return Ok(caller);
        }
        let epoch = self.0.keys.epoch();
        let select = sqlx::query("SELECT id, team, scopes, used_ms FROM api_keys WHERE hash = $1").bind(&*hash);
        let row = select.fetch_optional(self.0.db.pool()).await.map_err(failed("look a key up"))?;
        let row = row.ok_or(ControlError::Unauthorised)?;
        let team = row.parsed("team", "team id")?;
        let caller = Caller { team, key: row.parsed("id", "key id")?, scopes: read(&row.text("scopes")?) };
        if now.since(Time::from_ms(row.count("used_ms")?)) >= KEY_USE_NOTED {
            // A key is valid though the disk is full.
            if let Err(error) = self.note_use(&caller.key, now).await {
                tracing::warn!(key = %caller.key, error = base::error::chain(&error), "cannot note the use of a key");
            }
        }
        self.0.keys.put(hash, caller.clone(), now, epoch);
        Ok(caller)
    }

    async fn note_use(&self, id: &KeyId, now: Time) -> Result<(), ControlError> {
        let failed = || failed("note the use of a key");
        let attempt = || async {
            let update = sqlx::query("UPDATE api_keys SET used_ms = $1 WHERE id = $2").bind(now.sql());
            let mut transaction = self.0.db.begin_relaxed().await?;
            update.bind(id.as_str()).execute(&mut *transaction).await.map_err(failed())?;
            Ok(transaction.commit().await.map_err(failed())?)
        };
        retry(attempt).await
    }
}

fn info(row: &AnyRow) -> Result<KeyInfo, ControlError> {
    let used = row.count("used_ms")?;
    Ok(KeyInfo {
        id: row.parsed("id", "key id")?,
        name: row.text("name")?,
        mask: row.text("mask")?,
        scopes: read(&row.text("scopes")?),
        created: Time::from_ms(row.count("created_ms")?),
        used: (used > 0).then(|| Time::from_ms(used)),
    })
}

fn well_formed(text: &str) -> bool {
    let digits = text.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == DIGITS && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn hash(text: &str) -> String {
    hex(digest(&SHA256, text.as_bytes()).as_ref())
}

fn mask(text: &str) -> String {
    format!("{}...{}", &text[..PREFIX.len() + SHOWN], &text[text.len() - SHOWN..])
}

fn written(scopes: &BTreeSet<Scope>) -> String {
    scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" ")
}

/// Scopes that only a newer program knows allow nothing here.
fn read(text: &str) -> BTreeSet<Scope> {
    text.split(' ').filter_map(|scope| scope.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_in_the_form_of_clients_are_looked_up() {
        let good = format!("e2b_{}", "0a".repeat(20));
        assert!(well_formed(&good));
        assert_eq!(mask(&good), "e2b_0a0a...0a0a");
        for bad in
            ["", "e2b_", &good[..43], &good.replace('a', "A"), &good.replace("e2b_", "e3b_"), &format!("{good}0")]
        {
            assert!(!well_formed(bad), "{bad}");
        }
    }
}
