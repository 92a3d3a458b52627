//! Templates and snapshots: names, tags, builds.
//!
//! ```text
//!   name (per team) ──► template ──tag──► build ──► what the node has built (`source`)
//! ```
//!
//! A snapshot is a template whose builds were taken of a sandbox. A build gets its tags when it is ready, so a build
//! that fails changes nothing for those who start sandboxes. The server's own templates belong to the system team, are
//! public, and are found by their plain names. A team's own template of the same name comes first.

mod builds;
mod locate;
mod names;
mod record;
mod snapshots;
mod tags;

use base::{
    id::{BuildId, SandboxId, TeamId, TemplateId},
    limits::TEAM_TEMPLATES_MAX,
};
use db::{failed, retry};
use sqlx::{AnyConnection, AssertSqlSafe};

pub use self::{
    builds::{BuildRequest, BuildUpdate},
    names::TemplateRef,
    snapshots::{NewSnapshot, SnapshotFilter},
    tags::Tag,
};
use crate::{ControlError, Inner, Noun, Order, Page, PageToken, Size, Slug, Time, quota};

/// The tag of a name without one.
pub(crate) const DEFAULT_TAG: &str = "default";

/// What the builds of a template are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateKind {
    /// Of images and steps.
    Template,
    /// Of a sandbox.
    Snapshot,
}

impl TemplateKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::Snapshot => "snapshot",
        }
    }
}

/// How far a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildStatus {
    /// It was asked for.
    Waiting,
    /// The node builds it.
    Building,
    /// Sandboxes can be made from it.
    Ready,
    /// It failed.
    Error,
}

impl BuildStatus {
    /// The word of the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Building => "building",
            Self::Ready => "ready",
            Self::Error => "error",
        }
    }
}

/// One build of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// Its id.
    pub id: BuildId,
    /// The template that it is of.
    pub template: TemplateId,
    /// How far it is.
    pub status: BuildStatus,
    /// Why it failed, or an empty text.
    pub reason: String,
    /// The node's name of what was built. Empty until the build is ready.
    pub source: String,
    /// The sandbox that it was taken of, for a snapshot.
    pub origin: Option<SandboxId>,
    /// What its sandboxes may use.
    pub size: Size,
    /// When it was asked for.
    pub created: Time,
    /// When its status changed last.
    pub updated: Time,
}

/// A template, or a snapshot, as a team sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Its id.
    pub id: TemplateId,
    /// Whose it is.
    pub team: TeamId,
    /// The slug of that team.
    pub slug: Slug,
    /// What its builds are made of.
    pub kind: TemplateKind,
    /// Whether other teams may use it.
    pub public: bool,
    /// Its names, without the slug.
    pub names: Vec<String>,
    /// When it was made.
    pub created: Time,
    /// When it was changed last.
    pub updated: Time,
    /// When a sandbox was last made from it. Only its own team sees that.
    pub spawned: Option<Time>,
    /// How many sandboxes were made from it. Zero for other teams.
    pub spawn_count: u64,
    /// How many builds of it are kept. Zero for other teams.
    pub build_count: u64,
    /// The build with the tag `default`, or else the newest one.
    pub build: Option<Build>,
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The template.
    pub template: Template,
    /// The build that the tag points to. It is ready.
    pub build: Build,
}

/// The templates of a server.
#[derive(Debug, Clone, Copy)]
pub struct Templates<'a>(pub(crate) &'a Inner);

impl Templates<'_> {
    /// What `name[:tag]`, `slug/name[:tag]` or `id[:tag]` stands for, for this team. Fails if the build is not ready.
    pub async fn resolve(&self, team: &TeamId, name: &TemplateRef) -> Result<Resolved, ControlError> {
        let mut connection = record::reader(self.0).await?;
        let template = locate::visible(&mut connection, team, name).await?;
        let build = tags::build(&mut connection, &template, name.tag()).await?;
        if build.status != BuildStatus::Ready {
            let (template, build, status) = (name.to_string(), build.id.to_string(), build.status.as_str());
            return Err(ControlError::NotReady { template, build, status });
        }
        let template = record::template(&mut connection, team, &template).await?;
        Ok(Resolved { template, build })
    }

    /// The template of this name or id. Forbidden if it is another team's and not public: a request about a name then
    /// says that the name exists.
    pub async fn get(&self, team: &TeamId, name: &TemplateRef) -> Result<Template, ControlError> {
        let mut connection = record::reader(self.0).await?;
        let id = locate::visible(&mut connection, team, name).await?;
        record::template(&mut connection, team, &id).await
    }

    /// A page of the team's own templates, without snapshots, the newest first.
    pub async fn list(&self, team: &TeamId, page: &Page) -> Result<(Vec<Template>, Option<PageToken>), ControlError> {
        page.check(Order::Desc)?;
        let mut connection = record::reader(self.0).await?;
        let mut condition = format!("team = $1 AND kind = '{}'", TemplateKind::Template.as_str());
        if page.after.is_some() {
            condition += &format!(" AND {}", Order::Desc.after(("created_ms", "id"), 2));
        }
        let limit = page.limit + 1;
        let select = format!(
            "SELECT id, created_ms FROM templates WHERE {condition} ORDER BY created_ms DESC, id DESC LIMIT {limit}"
        );
        let mut select = sqlx::query(AssertSqlSafe(select)).bind(team.as_str());
        if let Some(after) = &page.after {
            select = select.bind(after.time.sql()).bind(&*after.id);
        }
        let rows = select.fetch_all(&mut *connection).await.map_err(failed("list templates"))?;
        record::page(&mut connection, team, &rows, page).await
    }

    /// Lets all teams use a template, or its own team only.
    pub async fn set_public(&self, team: &TeamId, name: &TemplateRef, public: bool) -> Result<(), ControlError> {
        let failed = || failed("publish a template");
        let attempt = || async {
            let mut transaction = self.0.db.begin().await?;
            let id = locate::own(&mut transaction, team, name).await?;
            let update = sqlx::query("UPDATE templates SET public = $1, updated_ms = $2 WHERE id = $3");
            let update = update.bind(i64::from(public)).bind(self.0.clock.now().sql()).bind(id.as_str());
            update.execute(&mut *transaction).await.map_err(failed())?;
            Ok(transaction.commit().await.map_err(failed())?)
        };
        retry(attempt).await
    }

    /// Removes a template with all its names, tags and builds. If the name has a tag and the template has others, only
    /// that tag and its build are removed. Returns the builds, whose sources the node may now remove.
    pub async fn delete(&self, team: &TeamId, name: &TemplateRef) -> Result<Vec<Build>, ControlError> {
        retry(|| self.try_delete(team, name)).await
    }

    async fn try_delete(&self, team: &TeamId, name: &TemplateRef) -> Result<Vec<Build>, ControlError> {
        let failed = || failed("remove a template");
        let mut transaction = self.0.db.begin().await?;
        quota::lock_team(self.0, &mut transaction, team).await?;
        let id = locate::own(&mut transaction, team, name).await?;
        let tags = tags::of(&mut transaction, &id).await?;
        let removed = match name.explicit_tag() {
            Some(tag) if tags.iter().any(|other| other.tag != tag) => {
                let build = tags::build(&mut transaction, &id, tag).await?;
                tags::remove(&mut transaction, &id, tag).await?;
                match tags.iter().any(|other| other.tag != tag && other.build == build.id) {
                    true => Vec::new(),
                    false => builds::remove(&mut transaction, vec![build]).await?,
                }
            }
            Some(tag) if tags.is_empty() => return Err(ControlError::not_found(Noun::Tag, tag)),
            Some(_) | None => {
                let all = builds::of(&mut transaction, &id).await?;
                for delete in [
                    "DELETE FROM templates WHERE id = $1",
                    "DELETE FROM template_names WHERE template = $1",
                    "DELETE FROM template_tags WHERE template = $1",
                    "DELETE FROM template_builds WHERE template = $1",
                ] {
                    let delete = sqlx::query(delete).bind(id.as_str());
                    delete.execute(&mut *transaction).await.map_err(failed())?;
                }
                all
            }
        };
        transaction.commit().await.map_err(failed())?;
        Ok(removed)
    }
}

/// Adds a template without builds. The transaction has locked the team.
async fn add(
    inner: &Inner,
    transaction: &mut AnyConnection,
    team: &TeamId,
    kind: TemplateKind,
    name: Option<&str>,
) -> Result<TemplateId, ControlError> {
    let failed = || failed("add a template");
    let used = quota::rows_of(transaction, "templates", team).await?;
    quota::check_kept(Noun::Template, TEAM_TEMPLATES_MAX, used)?;
    let (id, now) = (TemplateId::random(), inner.clock.now().sql());
    let insert = "INSERT INTO templates (id, team, kind, public, created_ms, updated_ms, spawned_ms, spawn_count)
        VALUES ($1, $2, $3, 0, $4, $5, 0, 0)";
    let insert = sqlx::query(insert).bind(id.as_str()).bind(team.as_str()).bind(kind.as_str()).bind(now).bind(now);
    insert.execute(&mut *transaction).await.map_err(failed())?;
    if let Some(name) = name {
        let insert = sqlx::query("INSERT INTO template_names (team, name, template) VALUES ($1, $2, $3)");
        let insert = insert.bind(team.as_str()).bind(name).bind(id.as_str());
        insert.execute(&mut *transaction).await.map_err(failed())?;
    }
    Ok(id)
}
