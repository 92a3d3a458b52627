//! Templates and builds as rows.

use base::id::{TeamId, TemplateId};
use db::{DbError, Fields, failed};
use sqlx::{Any, AnyConnection, AssertSqlSafe, any::AnyRow, pool::PoolConnection};

use super::{Build, BuildStatus, DEFAULT_TAG, Template, TemplateKind};
use crate::{ControlError, Inner, Noun, Order, Page, PageToken, Size, Time};

pub(super) const BUILD_COLUMNS: &str =
    "id, template, status, reason, source, origin, cpus, memory_mb, disk_mb, created_ms, updated_ms";

pub(super) async fn reader(inner: &Inner) -> Result<PoolConnection<Any>, ControlError> {
    Ok(inner.db.pool().acquire().await.map_err(failed("connect to the database"))?)
}

/// A template with what belongs to it, as `team` sees it.
pub(super) async fn template(
    connection: &mut AnyConnection,
    team: &TeamId,
    id: &TemplateId,
) -> Result<Template, ControlError> {
    let failed = || failed("read a template");
    let select = "SELECT templates.id AS id, team, slug, kind, public, templates.created_ms AS created_ms, updated_ms,
        spawned_ms, spawn_count,
        (SELECT COUNT(*) FROM template_builds WHERE template = templates.id) AS build_count
        FROM templates JOIN teams ON teams.id = templates.team WHERE templates.id = $1";
    let row = sqlx::query(select).bind(id.as_str()).fetch_optional(&mut *connection).await.map_err(failed())?;
    let row = row.ok_or_else(|| ControlError::not_found(Noun::Template, id))?;
    let select = sqlx::query("SELECT name FROM template_names WHERE template = $1 ORDER BY name").bind(id.as_str());
    let names = select.fetch_all(&mut *connection).await.map_err(failed())?;
    let names = names.iter().map(|row| row.text("name")).collect::<Result<_, _>>()?;
    let select = format!(
        "SELECT {BUILD_COLUMNS} FROM template_builds WHERE template = $1 ORDER BY CASE WHEN id IN
        (SELECT build FROM template_tags WHERE template = $1 AND tag = '{DEFAULT_TAG}') THEN 0 ELSE 1 END,
        created_ms DESC, id LIMIT 1"
    );
    let newest = sqlx::query(AssertSqlSafe(select)).bind(id.as_str()).fetch_optional(connection).await;
    let newest = newest.map_err(failed())?.as_ref().map(build).transpose()?;
    Ok(seen(&row, team, names, newest)?)
}

/// Other teams do not see how a template is used.
fn seen(row: &AnyRow, team: &TeamId, names: Vec<String>, build: Option<Build>) -> Result<Template, DbError> {
    let owner: TeamId = row.parsed("team", "team id")?;
    let usage = |count: u64| if owner == *team { count } else { 0 };
    let kind = match row.text("kind")?.as_str() {
        "snapshot" => TemplateKind::Snapshot,
        _ => TemplateKind::Template,
    };
    let (spawned, spawn_count) = (usage(row.count("spawned_ms")?), usage(row.count("spawn_count")?));
    let build_count = usage(row.count("build_count")?);
    Ok(Template {
        id: row.parsed("id", "template id")?,
        slug: row.parsed("slug", "slug")?,
        kind,
        public: row.flag("public")?,
        names,
        created: Time::from_ms(row.count("created_ms")?),
        updated: Time::from_ms(row.count("updated_ms")?),
        spawned: (spawned > 0).then(|| Time::from_ms(spawned)),
        spawn_count,
        build_count,
        build,
        team: owner,
    })
}

/// The templates of a page, and where the next one begins. `rows` has id and time, and one row too many if there are
/// more. A template that was removed a moment ago is left out.
pub(super) async fn page(
    connection: &mut AnyConnection,
    team: &TeamId,
    rows: &[AnyRow],
    page: &Page,
) -> Result<(Vec<Template>, Option<PageToken>), ControlError> {
    let key = |row: &AnyRow| Ok::<_, DbError>((Time::from_ms(row.count("created_ms")?), row.text("id")?));
    let mut keys = rows.iter().map(key).collect::<Result<Vec<_>, _>>()?;
    let next = page.cut(&mut keys, Order::Desc, Clone::clone);
    let mut templates = Vec::with_capacity(keys.len());
    for row in &rows[..keys.len()] {
        match template(connection, team, &row.parsed("id", "template id")?).await {
            Ok(template) => templates.push(template),
            Err(ControlError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((templates, next))
}

pub(super) fn build(row: &AnyRow) -> Result<Build, DbError> {
    let status = row.text("status")?;
    let known = [BuildStatus::Waiting, BuildStatus::Building, BuildStatus::Ready, BuildStatus::Error];
    let known = known.into_iter().find(|known| known.as_str() == status);
    let origin = row.text("origin")?;
    let size = Size { cpus: row.count("cpus")?, memory_mb: row.count("memory_mb")?, disk_mb: row.count("disk_mb")? };
    Ok(Build {
        id: row.parsed("id", "build id")?,
        template: row.parsed("template", "template id")?,
        status: known.ok_or(DbError::Damaged { expected: "status of a build", value: status })?,
        reason: row.text("reason")?,
        source: row.text("source")?,
        origin: if origin.is_empty() { None } else { Some(row.parsed("origin", "sandbox id")?) },
        size,
        created: Time::from_ms(row.count("created_ms")?),
        updated: Time::from_ms(row.count("updated_ms")?),
    })
}
