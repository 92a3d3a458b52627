//! Tags: names of builds within a template.

use base::{
    id::{BuildId, TeamId, TemplateId},
    limits::TEMPLATE_NAMES_MAX,
};
use db::{Fields, failed, retry};
use sqlx::{AnyConnection, AssertSqlSafe};

use super::{Build, TemplateRef, Templates, locate, names::tag_of, record};
use crate::{ControlError, Noun, Time, quota};

/// A tag of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    /// The tag.
    pub tag: String,
    /// The build that it points to.
    pub build: BuildId,
    /// Since when.
    pub assigned: Time,
}

impl Templates<'_> {
    /// Gives `tags` to the build that `target` (`name:tag`) stands for. Returns the build.
    pub async fn assign_tags(
        &self,
        team: &TeamId,
        target: &TemplateRef,
        tags: &[String],
    ) -> Result<BuildId, ControlError> {
        let tags = tags.iter().map(|tag| tag_of(tag)).collect::<Result<Vec<_>, _>>()?;
        let attempt = || async {
            let now = self.0.clock.now();
            let mut transaction = self.0.db.begin().await?;
            quota::lock_team(self.0, &mut transaction, team).await?;
            let template = locate::own(&mut transaction, team, target).await?;
            let build = build(&mut transaction, &template, target.tag()).await?.id;
            for tag in &tags {
                assign(&mut transaction, (&template, tag), &build, now).await?;
            }
            transaction.commit().await.map_err(failed("assign tags"))?;
            Ok(build)
        };
        retry(attempt).await
    }

    /// Removes tags. Their builds stay. Fails if one of them is missing, and then removes none.
    pub async fn remove_tags(&self, team: &TeamId, name: &TemplateRef, tags: &[String]) -> Result<(), ControlError> {
        let tags = tags.iter().map(|tag| tag_of(tag)).collect::<Result<Vec<_>, _>>()?;
        let attempt = || async {
            let mut transaction = self.0.db.begin().await?;
            quota::lock_team(self.0, &mut transaction, team).await?;
            let template = locate::own(&mut transaction, team, name).await?;
            for tag in &tags {
                remove(&mut transaction, &template, tag).await?;
            }
            Ok(transaction.commit().await.map_err(failed("remove tags"))?)
        };
        retry(attempt).await
    }

    /// The tags of a template, the newest first.
    pub async fn tags(&self, team: &TeamId, name: &TemplateRef) -> Result<Vec<Tag>, ControlError> {
        let mut connection = record::reader(self.0).await?;
        let template = locate::visible(&mut connection, team, name).await?;
        of(&mut connection, &template).await
    }
}

/// The tags of a template, the newest first.
pub(super) async fn of(connection: &mut AnyConnection, template: &TemplateId) -> Result<Vec<Tag>, ControlError> {
    let select = "SELECT tag, build, assigned_ms FROM template_tags WHERE template = $1 ORDER BY assigned_ms DESC, tag";
    let rows = sqlx::query(select).bind(template.as_str()).fetch_all(connection).await;
    let tag = |row: &sqlx::any::AnyRow| {
        let assigned = Time::from_ms(row.count("assigned_ms")?);
        Ok(Tag { tag: row.text("tag")?, build: row.parsed("build", "build id")?, assigned })
    };
    rows.map_err(failed("list tags"))?.iter().map(tag).collect()
}

/// The build that a tag points to.
pub(super) async fn build(
    connection: &mut AnyConnection,
    template: &TemplateId,
    tag: &str,
) -> Result<Build, ControlError> {
    let select = format!(
        "SELECT {} FROM template_builds WHERE id IN (SELECT build FROM template_tags WHERE template = $1 AND tag = $2)",
        record::BUILD_COLUMNS
    );
    let select = sqlx::query(AssertSqlSafe(select)).bind(template.as_str()).bind(tag);
    let row = select.fetch_optional(connection).await.map_err(failed("look a tag up"))?;
    Ok(record::build(&row.ok_or_else(|| ControlError::not_found(Noun::Tag, tag))?)?)
}

/// Points a tag to a build. The transaction has locked the team.
pub(super) async fn assign(
    transaction: &mut AnyConnection,
    (template, tag): (&TemplateId, &str),
    build: &BuildId,
    now: Time,
) -> Result<(), ControlError> {
    let tags = of(transaction, template).await?;
    if tags.iter().all(|known| known.tag != tag) {
        quota::check_kept(Noun::Tag, TEMPLATE_NAMES_MAX, tags.len() as u64)?;
    }
    let insert = "INSERT INTO template_tags (template, tag, build, assigned_ms) VALUES ($1, $2, $3, $4)
        ON CONFLICT (template, tag) DO UPDATE SET build = excluded.build, assigned_ms = excluded.assigned_ms";
    let insert = sqlx::query(insert).bind(template.as_str()).bind(tag).bind(build.as_str()).bind(now.sql());
    insert.execute(&mut *transaction).await.map_err(failed("assign a tag"))?;
    let update = sqlx::query("UPDATE templates SET updated_ms = $1 WHERE id = $2").bind(now.sql());
    update.bind(template.as_str()).execute(transaction).await.map_err(failed("assign a tag"))?;
    Ok(())
}

/// Removes a tag.
pub(super) async fn remove(
    transaction: &mut AnyConnection,
    template: &TemplateId,
    tag: &str,
) -> Result<(), ControlError> {
    let delete = sqlx::query("DELETE FROM template_tags WHERE template = $1 AND tag = $2").bind(template.as_str());
    let removed = delete.bind(tag).execute(transaction).await.map_err(failed("remove a tag"))?.rows_affected();
    if removed == 0 { Err(ControlError::not_found(Noun::Tag, tag)) } else { Ok(()) }
}
