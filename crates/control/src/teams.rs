//! Teams: the tenants of a server, and what each may use.

use std::{fmt, str::FromStr};

use base::{
    id::TeamId,
    limits::{
        LABEL_BYTES_MAX, NAME_BYTES_MAX, TEAM_CPUS_DEFAULT, TEAM_MEMORY_MB_DEFAULT, TEAM_SANDBOXES_DEFAULT,
        TEAM_STARTS_DEFAULT,
    },
};
use db::{Fields, failed, retry};
use sqlx::any::AnyRow;

use crate::{ControlError, Inner, Noun, Time, time::sql};

const COLUMNS: &str = "id, slug, name, created_ms, sandboxes_max, memory_mb_max, cpus_max, starts_max";

/// The slug of the team that owns the templates that come with the server. It has no keys.
pub(crate) const SYSTEM: &str = "pando";

/// A team's name in the names of templates: `slug/template`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slug(String);

impl Slug {
    /// The slug as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Slug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Slug {
    type Err = ControlError;

    fn from_str(text: &str) -> Result<Self, ControlError> {
        let ordinary = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let good = text.bytes().next().is_some_and(ordinary)
            && text.len() <= NAME_BYTES_MAX
            && text.bytes().all(|byte| ordinary(byte) || byte == b'-');
        if good {
            return Ok(Self(text.to_owned()));
        }
        Err(ControlError::invalid(
            "the team's slug",
            "use 1 to 63 of a-z, 0-9 and '-', beginning with a letter or digit",
        ))
    }
}

/// What a team may use at once. Paused sandboxes use nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Running sandboxes, starts under way among them.
    pub sandboxes: u64,
    /// Their memory, in MiB.
    pub memory_mb: u64,
    /// Their CPUs.
    pub cpus: u64,
    /// Starts and resumes under way.
    pub starts: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            sandboxes: TEAM_SANDBOXES_DEFAULT,
            memory_mb: TEAM_MEMORY_MB_DEFAULT,
            cpus: TEAM_CPUS_DEFAULT,
            starts: TEAM_STARTS_DEFAULT,
        }
    }
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Team {
    /// Its id.
    pub id: TeamId,
    /// Its name in the names of templates.
    pub slug: Slug,
    /// Its name for people.
    pub name: String,
    /// When it was made.
    pub created: Time,
    /// What it may use.
    pub quota: Quota,
}

/// All teams of a server: for its operator, not for teams.
#[derive(Debug, Clone, Copy)]
pub struct Teams<'a>(pub(crate) &'a Inner);

impl Teams<'_> {
    /// Makes a team.
    pub async fn create(&self, slug: &Slug, name: &str, quota: Quota) -> Result<Team, ControlError> {
        let name = label("the team's name", name)?;
        let team = Team { id: TeamId::random(), slug: slug.clone(), name, created: self.0.clock.now(), quota };
        if retry(|| self.insert(&team)).await? {
            return Ok(team);
        }
        Err(ControlError::Exists { noun: Noun::Team, name: slug.to_string() })
    }

    async fn insert(&self, team: &Team) -> Result<bool, ControlError> {
        let failed = || failed("create a team");
        let insert = format!(
            "INSERT INTO teams ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (slug) DO NOTHING"
        );
        let insert = sqlx::query(sqlx::AssertSqlSafe(insert)).bind(team.id.as_str()).bind(team.slug.as_str());
        let insert = insert.bind(&*team.name).bind(team.created.sql()).bind(sql(team.quota.sandboxes));
        let insert = insert.bind(sql(team.quota.memory_mb)).bind(sql(team.quota.cpus)).bind(sql(team.quota.starts));
        let mut transaction = self.0.db.begin().await?;
        let made = insert.execute(&mut *transaction).await.map_err(failed())?.rows_affected() == 1;
        transaction.commit().await.map_err(failed())?;
        Ok(made)
    }

    /// The team with this slug. Makes it if there is none.
    pub async fn ensure(&self, slug: &Slug, name: &str) -> Result<Team, ControlError> {
        if let Some(team) = self.by_slug(slug).await? {
            return Ok(team);
        }
        match self.create(slug, name, Quota::default()).await {
            Err(ControlError::Exists { .. }) => {
                let missing = || ControlError::not_found(Noun::Team, slug);
                self.by_slug(slug).await?.ok_or_else(missing)
            }
            other => other,
        }
    }

    /// The team that owns the templates that come with the server. Makes it if there is none.
    pub async fn system(&self) -> Result<Team, ControlError> {
        self.ensure(&Slug(SYSTEM.to_owned()), "Pando").await
    }

    /// The team with this id.
    pub async fn get(&self, id: &TeamId) -> Result<Team, ControlError> {
        let rows = self.select("WHERE id = $1", id.as_str()).await?;
        rows.into_iter().next().ok_or_else(|| ControlError::not_found(Noun::Team, id))
    }

    /// The team with this slug, if there is one.
    pub async fn by_slug(&self, slug: &Slug) -> Result<Option<Team>, ControlError> {
        Ok(self.select("WHERE slug = $1", slug.as_str()).await?.into_iter().next())
    }

    /// All teams, by slug.
    pub async fn list(&self) -> Result<Vec<Team>, ControlError> {
        self.select("WHERE slug >= $1 ORDER BY slug", "").await
    }

    async fn select(&self, which: &str, value: &str) -> Result<Vec<Team>, ControlError> {
        let select = format!("SELECT {COLUMNS} FROM teams {which}");
        let rows = sqlx::query(sqlx::AssertSqlSafe(select)).bind(value).fetch_all(self.0.db.pool()).await;
        rows.map_err(failed("read teams"))?.iter().map(team).collect()
    }

    /// Changes what a team may use. What it uses already goes on.
    pub async fn set_quota(&self, id: &TeamId, quota: Quota) -> Result<(), ControlError> {
        let failed = || failed("change a quota");
        let attempt = || async {
            let update = "UPDATE teams SET sandboxes_max = $1, memory_mb_max = $2, cpus_max = $3, starts_max = $4
                WHERE id = $5";
            let update = sqlx::query(update).bind(sql(quota.sandboxes)).bind(sql(quota.memory_mb));
            let update = update.bind(sql(quota.cpus)).bind(sql(quota.starts)).bind(id.as_str());
            let mut transaction = self.0.db.begin().await?;
            let changed = update.execute(&mut *transaction).await.map_err(failed())?.rows_affected();
            transaction.commit().await.map_err(failed())?;
            if changed == 0 { Err(ControlError::not_found(Noun::Team, id)) } else { Ok(()) }
        };
        retry(attempt).await
    }
}

fn team(row: &AnyRow) -> Result<Team, ControlError> {
    let quota = Quota {
        sandboxes: row.count("sandboxes_max")?,
        memory_mb: row.count("memory_mb_max")?,
        cpus: row.count("cpus_max")?,
        starts: row.count("starts_max")?,
    };
    Ok(Team {
        id: row.parsed("id", "team id")?,
        slug: row.parsed("slug", "slug")?,
        name: row.text("name")?,
        created: Time::from_ms(row.count("created_ms")?),
        quota,
    })
}

/// A name for people: any text of one line.
pub(crate) fn label(what: &'static str, text: &str) -> Result<String, ControlError> {
    let good = !text.is_empty() && text.len() <= LABEL_BYTES_MAX && !text.chars().any(char::is_control);
    if good {
        return Ok(text.to_owned());
    }
    Err(ControlError::invalid(what, format!("use 1 to {LABEL_BYTES_MAX} bytes without control characters")))
}
