//! Volumes: the team's name for one, the node's name for it, and the token for its content.

use base::{
    id::{TeamId, VolumeId, VolumeName},
    limits::{TEAM_VOLUMES_MAX, TEMPLATE_NAME_BYTES_MAX},
};
use db::{DbError, Fields, failed, retry};
use sqlx::{AssertSqlSafe, any::AnyRow};

use crate::{ControlError, Inner, Noun, Time, Token, quota, secret::Purpose};

const COLUMNS: &str = "id, team, name, node_volume, token_generation, created_ms";

/// A volume of a team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its id.
    pub id: VolumeId,
    /// Whose it is.
    pub team: TeamId,
    /// The team's name for it.
    pub name: String,
    /// The node's name for it, which no other volume of any team has.
    pub node_volume: VolumeName,
    /// When it was made.
    pub created: Time,
    token_generation: u64,
}

/// The volumes of a server.
#[derive(Debug, Clone, Copy)]
pub struct Volumes<'a>(pub(crate) &'a Inner);

impl Volumes<'_> {
    /// Notes a volume. The caller then makes it on the node, and removes it here if that fails.
    pub async fn create(&self, team: &TeamId, name: &str) -> Result<Volume, ControlError> {
        self.adopt(team, name, VolumeName::transient("vol")).await
    }

    /// Notes a volume that the node has already: a copy of a sandbox has got it.
    pub async fn adopt(&self, team: &TeamId, name: &str, node_volume: VolumeName) -> Result<Volume, ControlError> {
        let volume = Volume {
            id: VolumeId::random(),
            team: team.clone(),
            name: checked(name)?,
            node_volume,
            created: self.0.clock.now(),
            token_generation: 1,
        };
        retry(|| self.insert(&volume)).await?;
        Ok(volume)
    }

    async fn insert(&self, volume: &Volume) -> Result<(), ControlError> {
        let failed = || failed("add a volume");
        let mut transaction = self.0.db.begin().await?;
        quota::lock_team(self.0, &mut transaction, &volume.team).await?;
        let used = quota::rows_of(&mut transaction, "volumes", &volume.team).await?;
        quota::check_kept(Noun::Volume, TEAM_VOLUMES_MAX, used)?;
        let insert = format!(
            "INSERT INTO volumes ({COLUMNS}) VALUES ($1, $2, $3, $4, 1, $5) ON CONFLICT (team, name) DO NOTHING"
        );
        let insert = sqlx::query(AssertSqlSafe(insert)).bind(volume.id.as_str()).bind(volume.team.as_str());
        let insert = insert.bind(&*volume.name).bind(volume.node_volume.as_str()).bind(volume.created.sql());
        if insert.execute(&mut *transaction).await.map_err(failed())?.rows_affected() == 0 {
            return Err(ControlError::Exists { noun: Noun::Volume, name: volume.name.clone() });
        }
        Ok(transaction.commit().await.map_err(failed())?)
    }

    /// The volumes of a team, by name.
    pub async fn list(&self, team: &TeamId) -> Result<Vec<Volume>, ControlError> {
        let select = format!("SELECT {COLUMNS} FROM volumes WHERE team = $1 ORDER BY name");
        let rows = sqlx::query(AssertSqlSafe(select)).bind(team.as_str()).fetch_all(self.0.db.pool()).await;
        Ok(rows.map_err(failed("list volumes"))?.iter().map(volume).collect::<Result<_, _>>()?)
    }

    /// All volumes of all teams.
    pub async fn all(&self) -> Result<Vec<Volume>, ControlError> {
        let select = format!("SELECT {COLUMNS} FROM volumes ORDER BY id");
        let rows = sqlx::query(AssertSqlSafe(select)).fetch_all(self.0.db.pool()).await;
        Ok(rows.map_err(failed("list volumes"))?.iter().map(volume).collect::<Result<_, _>>()?)
    }

    /// The volume of a team with this id.
    pub async fn get(&self, team: &TeamId, id: &VolumeId) -> Result<Volume, ControlError> {
        let found = self.find(id).await?;
        if found.team == *team { Ok(found) } else { Err(ControlError::not_found(Noun::Volume, id)) }
    }

    /// The volume of a team with this name: mounts have names.
    pub async fn by_name(&self, team: &TeamId, name: &str) -> Result<Volume, ControlError> {
        let name = checked(name)?;
        let select = format!("SELECT {COLUMNS} FROM volumes WHERE team = $1 AND name = $2");
        let select = sqlx::query(AssertSqlSafe(select)).bind(team.as_str()).bind(&*name);
        let row = select.fetch_optional(self.0.db.pool()).await.map_err(failed("look a volume up"))?;
        Ok(volume(&row.ok_or_else(|| ControlError::not_found(Noun::Volume, &name))?)?)
    }

    /// Removes a volume here. The node's volume is the caller's to remove.
    pub async fn delete(&self, team: &TeamId, id: &VolumeId) -> Result<(), ControlError> {
        let failed = || failed("remove a volume");
        let attempt = || async {
            let delete = sqlx::query("DELETE FROM volumes WHERE team = $1 AND id = $2").bind(team.as_str());
            let mut transaction = self.0.db.begin().await?;
            let removed = delete.bind(id.as_str()).execute(&mut *transaction).await.map_err(failed())?.rows_affected();
            transaction.commit().await.map_err(failed())?;
            if removed == 0 { Err(ControlError::not_found(Noun::Volume, id)) } else { Ok(()) }
        };
        retry(attempt).await
    }

    /// The token for the content of a volume.
    pub fn token(&self, volume: &Volume) -> Token {
        self.0.secret.token(Purpose::Volume, volume.id.as_str(), volume.token_generation)
    }

    /// The volume whose token a request presents. A volume that there is not, and a wrong token, are the same answer.
    pub async fn authenticate(&self, id: &VolumeId, presented: &str) -> Result<Volume, ControlError> {
        let found = match self.find(id).await {
            Err(ControlError::NotFound { .. }) => return Err(ControlError::Token),
            other => other?,
        };
        self.token(&found).verify(presented)?;
        Ok(found)
    }

    async fn find(&self, id: &VolumeId) -> Result<Volume, ControlError> {
        let select = format!("SELECT {COLUMNS} FROM volumes WHERE id = $1");
        let select = sqlx::query(AssertSqlSafe(select)).bind(id.as_str());
        let row = select.fetch_optional(self.0.db.pool()).await.map_err(failed("look a volume up"))?;
        Ok(volume(&row.ok_or_else(|| ControlError::not_found(Noun::Volume, id))?)?)
    }
}

fn volume(row: &AnyRow) -> Result<Volume, DbError> {
    Ok(Volume {
        id: row.parsed("id", "volume id")?,
        team: row.parsed("team", "team id")?,
        name: row.text("name")?,
        node_volume: row.parsed("node_volume", "volume name")?,
        created: Time::from_ms(row.count("created_ms")?),
        token_generation: row.count("token_generation")?,
    })
}

/// A team's name for a volume.
fn checked(name: &str) -> Result<String, ControlError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=TEMPLATE_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(name.to_owned());
    }
    let rule = format!("use 1 to {TEMPLATE_NAME_BYTES_MAX} letters, digits, '-', '_' and '.'");
    Err(ControlError::invalid("the volume's name", rule))
}
