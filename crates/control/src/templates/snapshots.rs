//! Snapshots: templates whose builds were taken of a sandbox.

use std::collections::BTreeSet;

use base::id::{SandboxId, TeamId};
use db::{Fields, failed, retry};
use sqlx::AssertSqlSafe;

use super::{
    Build, BuildStatus, Resolved, Template, TemplateKind, TemplateRef, Templates, add,
    builds::{self, NewBuild},
    locate, record, tags,
};
use crate::{ControlError, Order, Page, PageToken, Size, quota};

/// A snapshot that a node has taken.
#[derive(Debug, Clone)]
pub struct NewSnapshot<'a> {
    /// The sandbox that it was taken of.
    pub origin: &'a SandboxId,
    /// The name that the client chose. It may have a tag. A snapshot of a name that exists is a further build of it.
    pub name: Option<&'a TemplateRef>,
    /// What sandboxes made from it may use.
    pub size: Size,
    /// The node's name of what was taken.
    pub source: &'a str,
}

/// Which snapshots.
#[derive(Debug, Clone, Default)]
pub struct SnapshotFilter {
    /// Those taken of this sandbox.
    pub origin: Option<SandboxId>,
    /// Those with this name.
    pub name: Option<TemplateRef>,
}

impl Template {
    /// The full names of a snapshot, `slug/name:tag`. Each can be used where its id can.
    pub fn full_names(&self, tag: &str) -> Vec<String> {
        self.names.iter().map(|name| format!("{}/{name}:{tag}", self.slug)).collect()
    }

    /// The id of a snapshot for clients: its first full name, or `id:tag` if it has none.
    pub fn snapshot_id(&self, tag: &str) -> String {
        self.full_names(tag).into_iter().next().unwrap_or_else(|| format!("{}:{tag}", self.id))
    }
}

impl Templates<'_> {
    /// The sources of all builds of all teams that begin with this text.
    pub async fn sources(&self, prefix: &str) -> Result<BTreeSet<String>, ControlError> {
        let rows = sqlx::query("SELECT source FROM template_builds").fetch_all(self.0.db.pool()).await;
        let rows = rows.map_err(failed("list the sources of builds"))?;
        let sources = rows.iter().map(|row| row.text("source")).collect::<Result<BTreeSet<_>, _>>()?;
        Ok(sources.into_iter().filter(|source| source.starts_with(prefix)).collect())
    }

    /// Notes a snapshot. It is ready, and has the tag of its name. Returns old builds that made room, too: the node may
    /// remove their sources.
    pub async fn add_snapshot(
        &self,
        team: &TeamId,
        new: &NewSnapshot<'_>,
    ) -> Result<(Resolved, Vec<Build>), ControlError> {
        retry(|| self.try_add(team, new)).await
    }

    async fn try_add(&self, team: &TeamId, new: &NewSnapshot<'_>) -> Result<(Resolved, Vec<Build>), ControlError> {
        let now = self.0.clock.now();
        let mut transaction = self.0.db.begin().await?;
        quota::lock_team(self.0, &mut transaction, team).await?;
        let kind = TemplateKind::Snapshot;
        let template = match new.name {
            Some(name) => builds::own_or_new(self.0, &mut transaction, team, kind, name).await?,
            None => add(self.0, &mut transaction, team, kind, None).await?,
        };
        let dropped = builds::make_room(&mut transaction, &template, self.0.clock.now()).await?;
        let tag = new.name.map_or(super::DEFAULT_TAG, TemplateRef::tag);
        let build = NewBuild {
            template: &template,
            tags: &[],
            size: new.size,
            status: BuildStatus::Ready,
            source: new.source,
            origin: new.origin.as_str(),
        };
        let build = builds::insert(&mut transaction, &build, now).await?;
        tags::assign(&mut transaction, (&template, tag), &build.id, now).await?;
        let template = record::template(&mut transaction, team, &template).await?;
        transaction.commit().await.map_err(failed("note a snapshot"))?;
        Ok((Resolved { template, build }, dropped))
    }

    /// A page of the team's snapshots, the newest first.
    pub async fn snapshots(
        &self,
        team: &TeamId,
        filter: &SnapshotFilter,
        page: &Page,
    ) -> Result<(Vec<Template>, Option<PageToken>), ControlError> {
        page.check(Order::Desc)?;
        let mut connection = record::reader(self.0).await?;
        let named = match &filter.name {
            Some(name) => match locate::own(&mut connection, team, name).await {
                Ok(id) => Some(id),
                // A list of what there is not is empty.
                Err(ControlError::NotFound { .. } | ControlError::ForeignTemplate { .. }) => {
                    return Ok((Vec::new(), None));
                }
                Err(error) => return Err(error),
            },
            None => None,
        };
        let mut condition = format!("team = $1 AND kind = '{}'", TemplateKind::Snapshot.as_str());
        let (mut texts, mut at) = (Vec::new(), 2);
        if let Some(origin) = &filter.origin {
            condition += &format!(
                " AND EXISTS (SELECT 1 FROM template_builds WHERE template = templates.id AND origin = ${at})"
            );
            texts.push(origin.to_string());
            at += 1;
        }
        if let Some(id) = named {
            condition += &format!(" AND id = ${at}");
            texts.push(id.to_string());
            at += 1;
        }
        if page.after.is_some() {
            condition += &format!(" AND {}", Order::Desc.after(("created_ms", "id"), at));
        }
        let limit = page.limit + 1;
        let select = format!(
            "SELECT id, created_ms FROM templates WHERE {condition} ORDER BY created_ms DESC, id DESC LIMIT {limit}"
        );
        let mut select = sqlx::query(AssertSqlSafe(select)).bind(team.as_str());
        for text in texts {
            select = select.bind(text);
        }
        if let Some(after) = &page.after {
            select = select.bind(after.time.sql()).bind(&*after.id);
        }
        let rows = select.fetch_all(&mut *connection).await.map_err(failed("list snapshots"))?;
        record::page(&mut connection, team, &rows, page).await
    }
}
