//! Builds: asked for, begun, ready or failed.

use std::time::Duration;

use base::{
    id::{BuildId, TeamId, TemplateId},
    limits::{EVENT_DETAIL_BYTES_MAX, TEMPLATE_BUILDS_MAX, TEMPLATE_NAMES_MAX},
};
use db::{Fields, failed, retry};
use sqlx::{AnyConnection, AssertSqlSafe};

use super::{
    Build, BuildStatus, DEFAULT_TAG, Template, TemplateKind, TemplateRef, Templates, add, locate, names::tag_of,
    record, tags,
};
use crate::{ControlError, Inner, Noun, Resource, Size, Time, quota, time::sql};

/// After so long a build that was not started makes room for others.
const WAITING_MAX: Duration = Duration::from_secs(3_600);

/// A build that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRequest {
    /// The template, which the request may have made.
    pub template: Template,
    /// The build. It waits.
    pub build: Build,
    /// The tags that it gets when it is ready.
    pub tags: Vec<String>,
    /// Old builds that made room. The node may remove their sources.
    pub dropped: Vec<Build>,
}

/// What became of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildUpdate {
    /// The node builds it.
    Building,
    /// It is ready, and gets its tags.
    Ready {
        /// The node's name of what was built.
        source: String,
    },
    /// It failed.
    Failed {
        /// Why, for the client.
        reason: String,
    },
}

/// A build that is about to be added.
pub(super) struct NewBuild<'a> {
    pub(super) template: &'a TemplateId,
    pub(super) tags: &'a [String],
    pub(super) size: Size,
    pub(super) status: BuildStatus,
    pub(super) source: &'a str,
    pub(super) origin: &'a str,
}

impl Templates<'_> {
    /// Asks for a build of the team's template of this name, which is made if there is none. The build gets the tag of
    /// the name and
    /// `tags`, or `default` if both are empty.
    pub async fn request_build(
        &self,
        team: &TeamId,
        name: &TemplateRef,
        tags: &[String],
        size: Size,
    ) -> Result<BuildRequest, ControlError> {
        let mut wanted = Vec::new();
        for tag in name.explicit_tag().into_iter().chain(tags.iter().map(String::as_str)) {
            let tag = tag_of(tag)?;
            if !wanted.contains(&tag) {
                wanted.push(tag);
            }
        }
        if wanted.is_empty() {
            wanted.push(DEFAULT_TAG.to_owned());
        }
        if wanted.len() as u64 > TEMPLATE_NAMES_MAX {
            return Err(ControlError::invalid("the list of tags", format!("use at most {TEMPLATE_NAMES_MAX}")));
        }
        retry(|| self.try_request(team, name, &wanted, size)).await
    }

    async fn try_request(
        &self,
        team: &TeamId,
        name: &TemplateRef,
        tags: &[String],
        size: Size,
    ) -> Result<BuildRequest, ControlError> {
        let mut transaction = self.0.db.begin().await?;
        let quota = quota::lock_team(self.0, &mut transaction, team).await?;
        quota::check_size(&quota, &size)?;
        let template = own_or_new(self.0, &mut transaction, team, TemplateKind::Template, name).await?;
        let dropped = make_room(&mut transaction, &template, self.0.clock.now()).await?;
        let (status, source, origin) = (BuildStatus::Waiting, "", "");
        let new = NewBuild { template: &template, tags, size, status, source, origin };
        let build = insert(&mut transaction, &new, self.0.clock.now()).await?;
        let template = record::template(&mut transaction, team, &template).await?;
        transaction.commit().await.map_err(failed("ask for a build"))?;
        Ok(BuildRequest { template, build, tags: tags.to_vec(), dropped })
    }

    /// A build of a template of the team.
    pub async fn build(&self, team: &TeamId, template: &TemplateId, id: &BuildId) -> Result<Build, ControlError> {
        let mut connection = record::reader(self.0).await?;
        locate::own(&mut connection, team, &TemplateRef::from(template)).await?;
        get(&mut connection, template, id).await
    }

    /// The builds of a template of the team that are kept, the newest first.
    pub async fn builds(&self, team: &TeamId, template: &TemplateId) -> Result<Vec<Build>, ControlError> {
        let mut connection = record::reader(self.0).await?;
        locate::own(&mut connection, team, &TemplateRef::from(template)).await?;
        of(&mut connection, template).await
    }

    /// Builds that wait or are under way, of all teams: a server that starts goes on with them or fails them.
    pub async fn unfinished_builds(&self) -> Result<Vec<(TeamId, Build)>, ControlError> {
        let select = format!(
            "SELECT {}, (SELECT team FROM templates WHERE templates.id = template) AS team FROM template_builds
            WHERE status IN ('waiting', 'building') ORDER BY created_ms, id",
            record::BUILD_COLUMNS
        );
        let rows = sqlx::query(AssertSqlSafe(select)).fetch_all(self.0.db.pool()).await;
        let rows = rows.map_err(failed("list builds"))?;
        rows.iter().map(|row| Ok((row.parsed("team", "team id")?, record::build(row)?))).collect()
    }

    /// Says what became of a build. One that is ready or has failed does not change any more.
    pub async fn update_build(
        &self,
        team: &TeamId,
        build: &Build,
        update: &BuildUpdate,
    ) -> Result<Build, ControlError> {
        retry(|| self.try_update(team, build, update)).await
    }

    async fn try_update(&self, team: &TeamId, build: &Build, update: &BuildUpdate) -> Result<Build, ControlError> {
        let (failed, now) = (|| failed("change a build"), self.0.clock.now());
        let mut transaction = self.0.db.begin().await?;
        quota::lock_team(self.0, &mut transaction, team).await?;
        locate::own(&mut transaction, team, &TemplateRef::from(&build.template)).await?;
        let (status, reason, source) = match update {
            BuildUpdate::Building => (BuildStatus::Building, "", ""),
            BuildUpdate::Ready { source } => (BuildStatus::Ready, "", &**source),
            BuildUpdate::Failed { reason } => (BuildStatus::Error, &**reason, ""),
        };
        let reason: String = base::text::harmless(reason).chars().take(EVENT_DETAIL_BYTES_MAX).collect();
        // A build begins once.
        let before = if status == BuildStatus::Building { "'waiting'" } else { "'waiting', 'building'" };
        let change = format!(
            "UPDATE template_builds SET status = $1, reason = $2, source = $3, updated_ms = $4
            WHERE id = $5 AND template = $6 AND status IN ({before}) RETURNING wanted_tags"
        );
        let change = sqlx::query(AssertSqlSafe(change)).bind(status.as_str()).bind(reason).bind(source).bind(now.sql());
        let change = change.bind(build.id.as_str()).bind(build.template.as_str());
        let row = change.fetch_optional(&mut *transaction).await.map_err(failed())?;
        if row.is_none() && status == BuildStatus::Building {
            // First: of others a team learns nothing.
            get(&mut transaction, &build.template, &build.id).await?;
            return Err(ControlError::Exists { noun: Noun::Build, name: format!("{} (it was started)", build.id) });
        }
        if let (Some(row), BuildStatus::Ready) = (row, status) {
            let wanted = row.text("wanted_tags")?;
            for tag in wanted.split(' ').filter(|tag| !tag.is_empty()) {
                tags::assign(&mut transaction, (&build.template, tag), &build.id, now).await?;
            }
        }
        let changed = get(&mut transaction, &build.template, &build.id).await?;
        transaction.commit().await.map_err(failed())?;
        Ok(changed)
    }
}

/// The team's template of this name, which is made if there is none. The transaction has locked the team.
pub(super) async fn own_or_new(
    inner: &Inner,
    transaction: &mut AnyConnection,
    team: &TeamId,
    kind: TemplateKind,
    name: &TemplateRef,
) -> Result<TemplateId, ControlError> {
    match locate::own(transaction, team, name).await {
        // A public template of the server has the name: the team's own one comes first from now on.
        Err(ControlError::ForeignTemplate { .. }) if name.slug().is_none() && name.id().is_none() => {}
        Err(ControlError::NotFound { noun: Noun::Template, .. }) => {}
        Ok(id) => return of_kind(transaction, id, kind, name).await,
        Err(other) => return Err(other),
    }
    add(inner, transaction, team, kind, Some(name.name())).await
}

/// Fails if the name is of a template of the other kind.
async fn of_kind(
    transaction: &mut AnyConnection,
    id: TemplateId,
    kind: TemplateKind,
    name: &TemplateRef,
) -> Result<TemplateId, ControlError> {
    let select = sqlx::query("SELECT kind FROM templates WHERE id = $1").bind(id.as_str());
    let found = select.fetch_one(transaction).await.map_err(failed("read a template"))?.text("kind")?;
    if found == kind.as_str() {
        return Ok(id);
    }
    Err(ControlError::Exists { noun: Noun::Template, name: format!("{name} (a {found})") })
}

/// Adds a build.
pub(super) async fn insert(
    transaction: &mut AnyConnection,
    new: &NewBuild<'_>,
    now: Time,
) -> Result<Build, ControlError> {
    let (id, failed) = (BuildId::random(), || failed("add a build"));
    let insert = format!(
        "INSERT INTO template_builds ({}, wanted_tags) VALUES ($1, $2, $3, '', $4, $5, $6, $7, $8, $9, $10, $11)",
        record::BUILD_COLUMNS
    );
    let insert = sqlx::query(AssertSqlSafe(insert)).bind(id.as_str()).bind(new.template.as_str());
    let insert = insert.bind(new.status.as_str()).bind(new.source).bind(new.origin).bind(sql(new.size.cpus));
    let insert = insert.bind(sql(new.size.memory_mb)).bind(sql(new.size.disk_mb)).bind(now.sql()).bind(now.sql());
    insert.bind(new.tags.join(" ")).execute(&mut *transaction).await.map_err(failed())?;
    get(transaction, new.template, &id).await
}

/// A build of a template.
pub(super) async fn get(
    connection: &mut AnyConnection,
    template: &TemplateId,
    id: &BuildId,
) -> Result<Build, ControlError> {
    let select = format!("SELECT {} FROM template_builds WHERE id = $1 AND template = $2", record::BUILD_COLUMNS);
    let select = sqlx::query(AssertSqlSafe(select)).bind(id.as_str()).bind(template.as_str());
    let row = select.fetch_optional(connection).await.map_err(failed("read a build"))?;
    Ok(record::build(&row.ok_or_else(|| ControlError::not_found(Noun::Build, id))?)?)
}

/// All builds of a template, the newest first.
pub(super) async fn of(connection: &mut AnyConnection, template: &TemplateId) -> Result<Vec<Build>, ControlError> {
    let select = format!(
        "SELECT {} FROM template_builds WHERE template = $1 ORDER BY created_ms DESC, id DESC",
        record::BUILD_COLUMNS
    );
    let rows = sqlx::query(AssertSqlSafe(select)).bind(template.as_str()).fetch_all(connection).await;
    Ok(rows.map_err(failed("list builds"))?.iter().map(record::build).collect::<Result<_, _>>()?)
}

/// Removes the oldest build that has no tag and is done, or was not started for long, if there are as many as a template may have.
pub(super) async fn make_room(
    transaction: &mut AnyConnection,
    template: &TemplateId,
    now: Time,
) -> Result<Vec<Build>, ControlError> {
    let all = of(transaction, template).await?;
    let used = all.len() as u64;
    if used < TEMPLATE_BUILDS_MAX {
        return Ok(Vec::new());
    }
    let tagged = tags::of(transaction, template).await?;
    let done = |build: &Build| match build.status {
        BuildStatus::Ready | BuildStatus::Error => true,
        BuildStatus::Waiting => now.since(build.updated) > WAITING_MAX,
        BuildStatus::Building => false,
    };
    let free = all.into_iter().rev().filter(|build| done(build) && !tagged.iter().any(|tag| tag.build == build.id));
    let old: Vec<Build> = free.take(1).collect();
    if old.is_empty() {
        let (resource, limit, retry_after) =
            (Resource::Kept(Noun::Build), TEMPLATE_BUILDS_MAX, base::limits::RETRY_AFTER);
        return Err(ControlError::OverQuota { resource, limit, used, asked: 1, retry_after });
    }
    remove(transaction, old).await
}

/// Removes builds, and returns them.
pub(super) async fn remove(transaction: &mut AnyConnection, builds: Vec<Build>) -> Result<Vec<Build>, ControlError> {
    for build in &builds {
        let delete = sqlx::query("DELETE FROM template_builds WHERE id = $1").bind(build.id.as_str());
        delete.execute(&mut *transaction).await.map_err(failed("remove a build"))?;
    }
    Ok(builds)
}
