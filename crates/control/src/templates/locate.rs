//! Which template a name is, for a team.
//!
//! A private template of another team is forbidden if the request has its id, which cannot be guessed. A name of
//! another team is forbidden whether it exists or not, unless it is public: the answer tells nothing of what there is.

use base::id::{TeamId, TemplateId};
use db::{Fields, failed};
use sqlx::AnyConnection;

use super::TemplateRef;
use crate::{ControlError, Noun, teams::SYSTEM};

/// The template that the team sees under this name.
pub(super) async fn visible(
    connection: &mut AnyConnection,
    team: &TeamId,
    name: &TemplateRef,
) -> Result<TemplateId, ControlError> {
    let foreign = || ControlError::ForeignTemplate { name: name.to_string() };
    if let Some(found) = by_id(connection, name).await? {
        return if found.team == *team || found.public { Ok(found.id) } else { Err(foreign()) };
    }
    let mut own = true;
    let found = match name.slug() {
        Some(slug) => {
            own = slug_of(connection, team).await? == slug.as_str();
            by_name(connection, slug.as_str(), name.name()).await?
        }
        None => {
            let slug = slug_of(connection, team).await?;
            match by_name(connection, &slug, name.name()).await? {
                Some(found) => Some(found),
                None => by_name(connection, SYSTEM, name.name()).await?.filter(|found| found.public),
            }
        }
    };
    match found {
        Some(found) if found.team == *team || found.public => Ok(found.id),
        None if own => Err(ControlError::not_found(Noun::Template, name)),
        Some(_) | None => Err(foreign()),
    }
}

/// The team's own template of this name, to change it.
pub(super) async fn own(
    connection: &mut AnyConnection,
    team: &TeamId,
    name: &TemplateRef,
) -> Result<TemplateId, ControlError> {
    let id = visible(connection, team, name).await?;
    let owner = sqlx::query("SELECT team FROM templates WHERE id = $1").bind(id.as_str()).fetch_one(connection).await;
    if owner.map_err(failed("look a template up"))?.text("team")? == team.as_str() {
        return Ok(id);
    }
    Err(ControlError::ForeignTemplate { name: name.to_string() })
}

struct Found {
    id: TemplateId,
    team: TeamId,
    public: bool,
}

async fn by_id(connection: &mut AnyConnection, name: &TemplateRef) -> Result<Option<Found>, ControlError> {
    let Some(id) = name.id() else { return Ok(None) };
    let select = sqlx::query("SELECT id, team, public FROM templates WHERE id = $1").bind(id.to_string());
    let row = select.fetch_optional(connection).await.map_err(failed("look a template up"))?;
    row.as_ref().map(found).transpose()
}

/// The template with this name in the team with this slug.
async fn by_name(connection: &mut AnyConnection, slug: &str, name: &str) -> Result<Option<Found>, ControlError> {
    let select = "SELECT templates.id AS id, templates.team AS team, public FROM template_names
        JOIN teams ON teams.id = template_names.team JOIN templates ON templates.id = template_names.template
        WHERE teams.slug = $1 AND template_names.name = $2";
    let select = sqlx::query(select).bind(slug).bind(name);
    let row = select.fetch_optional(connection).await.map_err(failed("look a template up"))?;
    row.as_ref().map(found).transpose()
}

fn found(row: &sqlx::any::AnyRow) -> Result<Found, ControlError> {
    let (id, team) = (row.parsed("id", "template id")?, row.parsed("team", "team id")?);
    Ok(Found { id, team, public: row.flag("public")? })
}

async fn slug_of(connection: &mut AnyConnection, team: &TeamId) -> Result<String, ControlError> {
    let select = sqlx::query("SELECT slug FROM teams WHERE id = $1").bind(team.as_str());
    let row = select.fetch_optional(connection).await.map_err(failed("look a team up"))?;
    Ok(row.ok_or_else(|| ControlError::not_found(Noun::Team, team))?.text("slug")?)
}
